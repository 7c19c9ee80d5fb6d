#include "halftone/nn/moe.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/scatter.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>
#include <ATen/ops/xlogy.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "halftone/base/error.h"
#include "halftone/ops/autograd_node.h"
#include "halftone/ops/batch_invariant.h"
#include "halftone/ops/range.h"
#include "halftone/ops/swiglu.h"

namespace halftone::nn {
namespace {

// The selected experts of every token, int32 [T, k], by score plus a bias that affects the selection only.
at::Tensor chosen(const at::Tensor& scores, const Routing& r, const at::Tensor& bias) {
  at::Tensor s = scores.detach();
  if (bias.defined()) s = s + bias;
  if (r.kept_groups > 0 && r.kept_groups < r.groups) {
    const int64_t each = r.experts / r.groups;
    const at::Tensor grouped = s.view({-1, r.groups, each});
    const at::Tensor of_group = std::get<0>(grouped.topk(std::min<int64_t>(2, each), -1)).sum(-1);
    const at::Tensor kept =
        at::zeros(of_group.sizes(), of_group.options().dtype(at::kBool)).scatter_(1, std::get<1>(of_group.topk(r.kept_groups, -1)), true);
    s = at::where(kept.unsqueeze(-1), grouped, -std::numeric_limits<double>::infinity()).view_as(s);
  }
  return std::get<1>(s.topk(r.top_k, -1)).to(at::kInt);
}

// The choice of debug.moe_force_load_balance: as many tokens for every expert, whatever the scores. real: fp32 [T], 0 for padding, or
// undefined.
at::Tensor in_turn(int64_t tokens, const Routing& r, const at::Tensor& real, at::Device device) {
  const auto ints = at::TensorOptions().dtype(at::kInt).device(device);
  if (!real.defined()) return (at::arange(tokens * r.top_k, ints) % r.experts).view({tokens, r.top_k});
  const at::Tensor before = real.to(at::kInt).cumsum(0, at::kInt) - 1;
  return (before.unsqueeze(1) * r.top_k + at::arange(r.top_k, ints)) % r.experts;
}

// Identity on `x` that also backpropagates factor * loss, times the pass's own factor if there is one.
at::Tensor with_loss(const at::Tensor& x, const at::Tensor& loss, double factor, const at::Tensor& of_pass) {
  at::Tensor out = x.detach();
  if (records(x, loss)) {
    connect("router_loss", {x, loss}, {&out}, [of = loss.options(), factor, of_pass](const variable_list& g) -> variable_list {
      at::Tensor d = at::zeros({}, of) + factor;
      if (of_pass.defined()) d.mul_(of_pass.reshape({}));
      return {g[0], d};
    });
  }
  return out;
}

}  // namespace

GroupedExperts::GroupedExperts(const Shape& s, Init gate, Init up, Init down) : shape_(s) {
  if (s.clamped) {
    weights_ = {&add_parameter("mlp1_weight", {s.experts, 2 * s.hidden, s.dim}, gate)};
    gate_up_bias_ = &add_parameter("mlp1_bias", {s.experts, 2 * s.hidden}, gate);
    weights_.push_back(&add_parameter("mlp2_weight", {s.experts, s.dim, s.hidden}, down));
    down_bias_ = &add_parameter("mlp2_bias", {s.experts, s.dim}, down);
    gate_up_.weights = {&weights_[0]->weight}, down_.weights = {&weights_[1]->weight};
    return;
  }
  weights_ = {&add_parameter("w1", {s.experts, s.hidden, s.dim}, gate), &add_parameter("w2", {s.experts, s.dim, s.hidden}, down),
              &add_parameter("w3", {s.experts, s.hidden, s.dim}, up)};
  gate_up_.weights = {&weights_[0]->weight, &weights_[2]->weight}, down_.weights = {&weights_[1]->weight};
}

std::vector<std::string_view> GroupedExperts::class_names() const {
  if (shape_.clamped) return {"GptOssGroupedExperts", "GroupedExperts", "Module"};
  return {"GroupedExperts", "Module"};
}

void GroupedExperts::set_recipe(const LayerRecipe& recipe) {
  const LinearRecipe& r = recipe.linear;
  check(recipe.scheme.family->experts,
        "quantize.scheme: {} supports linear layers only; {} are experts, add GroupedExperts to quantize.ignore", r.name, fqn());
  check(recipe.lora_rank == 0, "quantize.lora_rank: {} are experts, which have none; add GroupedExperts to quantize.ignore", fqn());
  gate_up_.recipe = down_.recipe = r, deosc_ = recipe.deosc;
  for (FusedLinears* f : {&gate_up_, &down_}) f->prepared.reset(), f->slices.reset(), f->logged = {};
  // De-oscillation needs all elements that share a scale on one rank.
  const bool of_whole = r.w_forward.granularity == Granularity::tensor || r.w_forward.two_level == TwoLevel::tensor;
  for (Parameter* p : weights_) {
    p->codes_alone = r.reads_weight_codes_alone();
    p->row_block = deosc_.step > 0 && of_whole ? p->shape[1] : r.weight_rows();
  }
}

void GroupedExperts::split(int64_t index, int64_t processes) {
  const int64_t own = shape_.experts / processes;
  for_each_parameter([&](Parameter& p) {
    p.parts = {{0, index * own, p.shape[0]}}, p.shape[0] = own;
    p.expert = true, p.unit += ".experts";
    if (p.shape.size() == 3) p.weight.first_row = index * own * p.shape[1];
  });
}

at::Tensor GroupedExperts::operator()(const at::Tensor& x, const ExpertRows& rows, const at::Tensor& gates, const StepContext& step) {
  constexpr double kLimit = 7;  // GPT-OSS's limit
  const std::vector<at::Tensor> gu = gathered_linear(x, gate_up_, rows, step);
  const at::Tensor h = shape_.clamped ? clamped_swiglu(add_group_bias(gu[0], gate_up_bias_->weight, rows), kLimit) : swiglu(gu[0], gu[1]);
  if (!shape_.clamped || !adds_bias_) return combined_linear(h, down_, rows, gates, step);
  const at::Tensor y = add_group_bias(grouped_linear(h, down_, rows, step)[0], down_bias_->weight, rows);
  return gates.defined() ? combine_rows(y, gates, rows) : sum_rows(y, rows);
}

Router::Router(int64_t dim, int64_t experts, Init init, bool bias) : gate(add<RouterGate>("gate", dim, experts, init, bias)) {}

MoE::MoE(const Shape& s, Init in, Init up, Init out)
    : shape_(s),
      router_(add<Router>("router", s.dim, s.routing.experts, out, s.clamped)),
      experts_(add<GroupedExperts>("experts", GroupedExperts::Shape{s.dim, s.hidden, s.routing.experts, s.clamped}, in, up, out)) {
  const Routing& r = s.routing;
  check(r.top_k >= 1 && r.top_k <= r.experts, "experts: a token goes to {} of {} experts", r.top_k, r.experts);
  check(r.groups == 0 || r.experts % r.groups == 0, "experts: {} experts do not divide into {} groups", r.experts, r.groups);
  check(r.kept_groups == 0 || r.kept_groups * (r.experts / r.groups) >= r.top_k, "experts: {} of {} groups hold fewer than {} experts",
        r.kept_groups, r.groups, r.top_k);
  if (s.shared_hidden > 0) shared_ = &add<FeedForward>("shared_experts", s.dim, s.shared_hidden, in, up, out);
  if (!s.expert_bias && s.balance == 0) return;
  expert_bias_ = &add_parameter("expert_bias", {r.experts}, {Init::Kind::zeros});
  expert_bias_->buffer = true;
}

at::Tensor MoE::operator()(const Activation& x, const SequenceInfo& info) {
  const Range range("{}", fqn());
  const Activation all = port().enter(x);
  const at::Tensor y = routed(all, info);
  const bool apart = shared_ != nullptr && shared_->has_port();
  const at::Tensor left = port().leave(shared_ == nullptr || apart ? y : y + (*shared_)(all, info.step));
  return apart ? left + (*shared_)(x, info.step) : left;
}

at::Tensor MoE::routed(const Activation& x, const SequenceInfo& info) {
  const Routing& r = shape_.routing;
  at::Tensor logits = router_.gate(x, info.step, at::kFloat);
  const at::Tensor padding = info.padding.defined() ? port().own_rows(info.padding, logits.size(0)) : at::Tensor();
  const at::Tensor real = padding.defined() ? padding.logical_not().to(at::kFloat) : at::Tensor();  // 1 for a token
  at::Tensor scores = r.score == Routing::Score::softmax ? at::softmax(logits, -1)
                      : batch_invariant()                ? even_sigmoid(logits)
                                                         : at::sigmoid(logits);
  const at::Tensor bias = expert_bias_ != nullptr ? expert_bias_->weight.value : at::Tensor();
  const at::Tensor expert = force_balance_ ? in_turn(logits.size(0), r, real, logits.device()) : chosen(scores, r, bias);
  const at::Tensor choices = (padding.defined() ? expert.masked_fill(padding.unsqueeze(1), r.experts) : expert).contiguous();
  ExpertRows rows = place_experts(choices, r.experts, padding.defined());
  if (at::globalContext().deterministicAlgorithms() && rows.tokens == info.batch * info.seq)
    rows.documents = info.documents.start, rows.tokens_in_row = info.seq;
  Dispatch dispatch;
  if (dispatch_) dispatch = dispatch_(rows, choices);
  const Port::Copies copies = port().copies();  // of these tokens, each routed alike
  if (info.counts && load_.defined() && copies.index == 0) count(scores.detach(), rows, real, dispatch.dropped);

  at::Tensor gates = scores.gather(1, expert.to(at::kLong));
  if (r.normalize) gates = gates / ((batch_invariant() ? even_sum(gates) : gates.sum(-1, true)) + 1e-20);
  if (r.scale != 1) gates = gates * r.scale;
  // The losses are means over the tokens times their number. With padding only the device knows that number: sums instead.
  const double tokens = real.defined() ? 1 : static_cast<double>(logits.size(0));
  const double factor = tokens * info.grad_scale / static_cast<double>(copies.count);
  if (shape_.aux_loss > 0) {
    // E * sum over experts of its share of the choices and its mean probability (Fedus et al. 2021).
    const at::Tensor share =
        real.defined() ? rows.counts / (real.sum() * r.top_k).clamp_min(1) : rows.counts / static_cast<double>(rows.tokens * r.top_k);
    const at::Tensor p = r.score == Routing::Score::softmax ? scores : scores / (scores.sum(-1, true) + 1e-20);
    const at::Tensor of_tokens = real.defined() ? (p * real.unsqueeze(1)).sum(0) : p.mean(0);
    gates = with_loss(gates, (share * of_tokens).sum() * static_cast<double>(r.experts), shape_.aux_loss * factor, info.loss_factor);
  }
  if (shape_.z_loss > 0) {
    const at::Tensor squares = at::logsumexp(logits, -1).square();
    gates = with_loss(gates, real.defined() ? (squares * real).sum() : squares.mean(), shape_.z_loss * factor, info.loss_factor);
  }

  if (!dispatch_) return experts_(x, rows, gates.contiguous(), info.step);
  if (dispatch.kept.defined()) gates = gates * dispatch.kept;
  return dispatch.combine(experts_(dispatch.send(x), dispatch.received, {}, info.step), gates.contiguous());
}

void MoE::prepare(at::Device device) {
  load_ = at::zeros({shape_.routing.experts + 3}, at::TensorOptions().dtype(at::kDouble).device(device));
}

void MoE::count(const at::Tensor& scores, const ExpertRows& rows, const at::Tensor& real, const at::Tensor& dropped) {
  const int64_t experts = shape_.routing.experts;
  const at::Tensor p = shape_.routing.score == Routing::Score::softmax ? scores : scores / (scores.sum(-1, true) + 1e-20);
  load_.narrow(0, 0, experts).add_(rows.counts);
  const at::Tensor entropy = at::xlogy(p, p);
  load_.narrow(0, experts, 1).sub_((real.defined() ? entropy * real.unsqueeze(1) : entropy).sum());
  at::Tensor tokens = load_.narrow(0, experts + 1, 1);
  real.defined() ? tokens.add_(real.sum()) : tokens.add_(static_cast<double>(rows.tokens));
  if (dropped.defined()) load_.narrow(0, experts + 2, 1).add_(dropped);
}

void MoE::balance(const at::Tensor& updated) {
  if (shape_.balance > 0 && expert_bias_->master.defined()) {
    const at::Tensor n = load_.narrow(0, 0, shape_.routing.experts);
    at::Tensor d = (n.mean() - n).sign() * shape_.balance;
    d -= d.mean();
    if (updated.defined()) d = at::where(updated, d, 0.0);
    expert_bias_->master.add_(d);
  }
  load_.zero_();
}

}  // namespace halftone::nn
