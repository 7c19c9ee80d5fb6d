#include "halftone/nn/layers.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/rsqrt.h>

#include <algorithm>
#include <cmath>

#include "halftone/base/error.h"
#include "halftone/ops/activation_stats.h"
#include "halftone/ops/embedding.h"
#include "halftone/ops/norm.h"
#include "halftone/ops/range.h"
#include "halftone/ops/scale_columns.h"
#include "halftone/ops/swiglu.h"

namespace halftone::nn {

Linear::Linear(int64_t in, int64_t out, Init init, bool with_bias) : weight(add_parameter("weight", {out, in}, init)) {
  fused_.weights = {&weight.weight};
  if (!with_bias) return;
  bias = &add_parameter("bias", {out}, {Init::Kind::zeros});
  fused_.biases = {&bias->weight};
}

at::Tensor Linear::operator()(const Activation& x_in, const StepContext& step, at::ScalarType out) {
  const Activation x = norm_ == nullptr ? x_in : (*norm_)(x_in, {}).second;
  const at::Tensor y = linear(x, fused_, step, out);
  return has_side() ? y + side(x, step) : y;
}

at::Tensor Linear::leave(const Activation& x, const StepContext& step, const Port& port) {
  const RowShares shares = has_norm() || has_side() ? RowShares() : port.shares(Way::out, recipe());
  if (shares.output != nullptr) return linear(x, fused_, step, at::ScalarType::Undefined, shares);
  return port.leave((*this)(x, step));
}

void Linear::tie(Parameter& owner) {
  fused_.weights = {&owner.weight};
  owner_ = &owner;
}

void Linear::set_recipe(const LayerRecipe& recipe) {
  constexpr double kSideStd = 0.02;
  fused_.recipe = recipe.linear, deosc_ = recipe.deosc;
  fused_.prepared.reset(), fused_.logged = {};
  if (recipe.linear.w_forward.stored) {
    check(owner_ == nullptr,
          "quantize.scheme: {} keeps no float copy of {}, whose weight is tied to the embedding; add {} to quantize.ignore",
          recipe.linear.name, fqn(), fqn());
    weight.stored_as = recipe.linear.w_forward;
  }
  weight.row_block = recipe.linear.weight_rows();
  weight.codes_alone = recipe.linear.reads_weight_codes_alone();
  if (owner_ != nullptr && !recipe.deosc_asked) deosc_ = {};
  check(owner_ == nullptr || deosc_.step == 0,
        "quantize.deosc_step: {} has a weight tied to the embedding, which is not quantised there; add {} to quantize.ignore", fqn(),
        fqn());
  if (recipe.lora_rank == 0 || has_side()) return;
  const int64_t r = recipe.lora_rank, k = in_features();
  check(owner_ == nullptr, "quantize.lora_rank: {} has a weight tied to the embedding; add {} to quantize.ignore", fqn(), fqn());
  Parameter& v = add_parameter("lora_v", {r, k}, {Init::Kind::zeros});
  sigma_ = &add_parameter("lora_sigma", {r}, {Init::Kind::ones});
  Parameter& u = add_parameter("lora_u", {out_features(), r}, {Init::Kind::normal, kSideStd});
  for (Parameter* p : {&v, sigma_, &u}) p->added = true;
  side_v_.weights = {&v.weight}, side_u_.weights = {&u.weight};
  side_v_.recipe = side_u_.recipe = recipe.linear;
  assign_names(fqn());
}

at::Tensor Linear::side(const Activation& x, const StepContext& step) {
  return linear(scale_columns(linear(x, side_v_, step), sigma_->weight), side_u_, step);
}

LinearCall Linear::call_with_side(const at::Tensor& x, const LinearOptions& options) {
  LinearCall whole = linear_call(x, fused_, options);
  LinearOptions narrow = options;
  narrow.out = x.scalar_type(), narrow.x_amax = at::Tensor();
  LinearCall v = linear_call(x, side_v_, narrow);
  narrow.out = options.out;
  LinearCall u = linear_call(scaled_columns(v.y, sigma_->weight), side_u_, narrow);
  whole.y.add_(u.y);
  if (!options.keep) return whole;
  whole.dgrad = [this, product = std::move(whole.dgrad), hidden = v.y, v = std::move(v.dgrad), u = std::move(u.dgrad)](const Activation& dy,
                                                                                                                       bool want_dx) {
    const at::Tensor dx = product(dy, want_dx);
    const at::Tensor of_side = v(scaled_columns_backward(u(dy.value, true), hidden, sigma_->weight), want_dx);
    return want_dx ? dx + of_side : dx;
  };
  whole.wgrad = [product = std::move(whole.wgrad), v = std::move(v.wgrad), u = std::move(u.wgrad)] { product(), v(), u(); };
  return whole;
}

Head Linear::head() {
  Head h = head_of(fused_);
  h.columns = port().logit_columns(read());
  if (!has_side()) return h;
  h.call = [this](const at::Tensor& x, const LinearOptions& options) { return call_with_side(x, options); };
  for (Weight* w : {side_v_.weights[0], &sigma_->weight, side_u_.weights[0]}) h.weights.push_back(w);
  return h;
}

void Linear::add_norm(double eps, const std::string& copy_of) {
  norm_ = &add<RMSNorm>("norm", in_features(), eps);
  norm_->weight.added = true, norm_->weight.copy_of = copy_of;
  assign_names(fqn());
}

at::Tensor Siblings::operator()(const Activation& x, const StepContext& step) {
  regroup();
  std::vector<at::Tensor> outputs;
  for (Part& part : parts_) {
    if (part.linears.front()->has_norm()) {
      outputs.push_back((*part.linears.front())(x, step));
      continue;
    }
    at::Tensor y = linear(x, part.fused, step);
    if (part.linears.front()->has_side()) {
      std::vector<at::Tensor> sides;
      for (Linear* l : part.linears) sides.push_back(l->side(x, step));
      y = y + (sides.size() == 1 ? sides[0] : at::cat(sides, 1));
    }
    outputs.push_back(y);
  }
  return outputs.size() == 1 ? outputs[0] : at::cat(outputs, 1);
}

at::Tensor Siblings::enter(const Activation& x, const StepContext& step, const Port& port) {
  regroup();
  const Linear& first = *parts_.front().linears.front();
  if (parts_.size() == 1 && !first.has_norm() && !first.has_side()) {
    const RowShares shares = port.shares(Way::in, first.recipe());
    if (shares.input != nullptr) return linear(x, parts_.front().fused, step, at::ScalarType::Undefined, shares);
  }
  return (*this)(port.enter(x), step);
}

std::shared_ptr<GradientAmax> Siblings::gradient_amax() const { return parts_.size() == 1 ? parts_.front().fused.dy_amax : nullptr; }

void Siblings::regroup() {
  const auto current = [](const Part& part) {
    return std::ranges::all_of(part.linears, [&](const Linear* l) { return l->recipe() == part.fused.recipe; });
  };
  if (!parts_.empty() && std::ranges::all_of(parts_, current)) return;
  parts_.clear();
  for (Linear* l : linears_) {
    const bool joins = !parts_.empty() && !l->has_norm() && parts_.back().fused.recipe == l->recipe() &&
                       parts_.back().linears.front()->has_side() == l->has_side() && !parts_.back().linears.front()->has_norm();
    if (!joins) {
      parts_.emplace_back();
      parts_.back().fused.recipe = l->recipe();
    }
    FusedLinears& fused = parts_.back().fused;
    parts_.back().linears.push_back(l);
    fused.weights.push_back(&l->weight.weight);
    fused.biases.push_back(l->bias == nullptr ? nullptr : &l->bias->weight);
  }
  for (Part& part : parts_) {
    if (!part.linears.front()->has_norm() && reads_dy_amax(part.fused.recipe)) part.fused.dy_amax = std::make_shared<GradientAmax>();
  }
}

RMSNorm::RMSNorm(int64_t dim, double eps) : weight(add_parameter("weight", {dim}, {Init::Kind::ones})), eps_(eps) {}

std::pair<at::Tensor, Activation> RMSNorm::operator()(const at::Tensor& x, const at::Tensor& branch, const std::vector<Linear*>& readers) {
  const bool amax = std::any_of(readers.begin(), readers.end(), [](const Linear* l) { return reads_x_amax(l->recipe()); });
  if (!weight.parts.empty()) return over_ports(branch.defined() ? x + branch : x);
  if (!retired_) return add_rms_norm(x, branch, weight.weight, eps_, amax);
  const at::Tensor sum = branch.defined() ? x + branch : x;
  return {sum, sum};
}

// Every process has some columns of each row, which depend on the sum of squares of all; so do their gradients, in backward.
std::pair<at::Tensor, Activation> RMSNorm::over_ports(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor squares = port().column_sums(wide.square().sum(1, true));
  const at::Tensor normal = wide * at::rsqrt(squares / static_cast<double>(weight.parts[0].whole) + eps_);
  return {x, scale_columns(normal.to(x.scalar_type()), weight.weight)};
}

void RMSNorm::retire() {
  retired_ = true;
  weight.shape = {0};
}

Embedding::Embedding(int64_t vocab, int64_t dim, Init init) : weight(add_parameter("weight", {vocab, dim}, init)) {}

at::Tensor Embedding::operator()(const at::Tensor& tokens, at::ScalarType dtype) {
  const at::ScalarType type = c10::promoteTypes(dtype, weight.weight.value.scalar_type());
  if (weight.parts.empty()) return embedding(tokens, weight.weight, type);
  const at::Tensor row = tokens - weight.parts[0].first, others = row.lt(0).logical_or_(row.ge(weight.shape[0]));
  return port().leave(embedding(row.masked_fill(others, 0), weight.weight, type).masked_fill(others.unsqueeze(1), 0));
}

void clear_padding(const at::Tensor& x, const at::Tensor& padding, const Port& port) {
  if (!padding.defined()) return;
  const at::NoGradGuard no_grad;
  x.detach().masked_fill_(port.own_rows(padding, x.size(0)).unsqueeze(1), 0);
}

Attention::Attention(const Shape& s, int layer, Init in, Init out)
    : shape_(s),
      layer_(layer),
      wq_(add<Linear>("wq", s.dim, s.heads * s.head_dim, in, s.qkv_bias)),
      wk_(add<Linear>("wk", s.dim, s.kv_heads * s.head_dim, in, s.qkv_bias)),
      wv_(add<Linear>("wv", s.dim, s.kv_heads * s.head_dim, in, s.qkv_bias)),
      wo_(add<Linear>("wo", s.heads * s.head_dim, s.dim, out, s.out_bias)),
      qkv_({&wq_, &wk_, &wv_}) {
  if (s.sinks) sinks_ = &add_parameter("sinks", {s.heads}, out);
  if (s.qk_norm_eps <= 0) return;
  q_norm_ = &add<RMSNorm>("q_norm", s.head_dim, s.qk_norm_eps), k_norm_ = &add<RMSNorm>("k_norm", s.head_dim, s.qk_norm_eps);
}

at::Tensor Attention::operator()(const Activation& x, const SequenceInfo& info) {
  const Range range("{}", fqn());
  AttentionArgs args;
  args.batch = info.batch, args.seq = info.seq, args.head_dim = shape_.head_dim;
  args.heads = wq_.out_features() / shape_.head_dim, args.kv_heads = wk_.out_features() / shape_.head_dim;  // on this rank
  args.scale = 1.0 / std::sqrt(static_cast<double>(shape_.head_dim));
  args.cos = info.cos, args.sin = info.sin, args.rotate_halves = shape_.rotate_halves;
  args.positions = info.positions, args.documents = info.documents, args.window = shape_.window;
  if (q_norm_ != nullptr) args.q_norm = &q_norm_->weight.weight, args.k_norm = &k_norm_->weight.weight, args.norm_eps = shape_.qk_norm_eps;
  if (sinks_ != nullptr) args.sinks = &sinks_->weight;
  const at::Tensor qkv = qkv_.enter(x, info.step, port());
  if (const auto& stats = activation_stats(); stats && info.counts) stats->attention(fqn(), qkv, args);
  const Activation seen = info.caches ? Activation(causal_attention_cached(qkv, args, info.caches->at(layer_)))
                                      : causal_attention(qkv, args, info.step.recompute_results.get());
  clear_padding(seen, info.padding, port());
  const at::Tensor y = wo_.leave(seen, info.step, port());
  if (wo_.bias != nullptr) clear_padding(y, info.padding, port());
  return y;
}

FeedForward::FeedForward(int64_t dim, int64_t hidden, Init gate, Init up, Init down, bool bias)
    : w1_(add<Linear>("w1", dim, hidden, gate, bias)),
      w3_(add<Linear>("w3", dim, hidden, up, bias)),
      w2_(add<Linear>("w2", hidden, dim, down, bias)),
      gate_up_({&w1_, &w3_}) {}

at::Tensor FeedForward::operator()(const Activation& x, const StepContext& step, const at::Tensor& padding) {
  const Range range("{}", fqn());
  const at::Tensor gu = gate_up_.enter(x, step, port());
  if (w1_.bias != nullptr) clear_padding(gu, padding, port());
  const bool apart = w2_.has_norm() || w2_.has_side();
  const RowShares shares = apart ? RowShares() : port().shares(Way::out, w2_.recipe());
  at::Tensor y = apart ? w2_.leave(swiglu(gu, reads_x_amax(w2_.recipe()), gate_up_.gradient_amax()), step, port())
                       : swiglu_linear(gu, w2_.fused(), step, gate_up_.gradient_amax(), shares);
  if (!apart && shares.output == nullptr) y = port().leave(y);
  if (w2_.bias != nullptr) clear_padding(y, padding, port());
  return y;
}

}  // namespace halftone::nn
