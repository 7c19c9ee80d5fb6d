#include "halftone/nn/pass.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <utility>

#include "halftone/base/error.h"
#include "halftone/ops/activation_stats.h"
#include "halftone/ops/autograd_node.h"
#include "halftone/ops/quantization_stats.h"
#include "halftone/ops/range.h"
#include "halftone/ops/recompute_results.h"

namespace halftone::nn {
namespace {

using torch::autograd::edge_list;

std::string unit_name(int64_t unit) { return unit == 0 ? "tok_embeddings" : fmt::format("layers.{}", unit - 1); }

// Detaches a unit's input: its graph begins there, in nodes without saved tensors.
Stream begin(const Stream& s) {
  const auto input = [](const at::Tensor& t) {
    if (!t.defined()) return t;
    at::Tensor u = t.detach();
    connect("unit", {}, {&u}, nullptr);
    return u;
  };
  return {input(s.x), input(s.branch)};
}
variable_list parts(const Stream& s) { return s.branch.defined() ? variable_list{s.x, s.branch} : variable_list{s.x}; }
edge_list edges(const variable_list& tensors) {
  edge_list result;
  for (const at::Tensor& t : tensors) result.push_back(torch::autograd::impl::gradient_edge(t));
  return result;
}
// A recomputed block reads and returns a single tensor, the only one kept.
Stream joined(const Stream& s) { return s.branch.defined() ? Stream{s.x + s.branch, {}} : s; }

at::Tensor stream_of(const Stream& s) {
  const at::NoGradGuard no_grad;
  return s.branch.defined() ? s.x + s.branch : s.x;
}

// From the gradients of a unit's output to those of its input. With an empty `begin` they go to the graph's leaves.
Stream differentiate(const edge_list& begin, const edge_list& end, const variable_list& d_out) {
  variable_list d = torch::autograd::Engine::get_default_engine().execute(end, d_out, false, false, begin.empty(), begin);
  d.resize(2);
  return {d[0], d[1]};
}

}  // namespace

Pass::Pass(Model& model, const ModelInput& input, const at::Tensor& labels, double grad_scale, bool keep, UnitAccess* access, PassPart part)
    : model_(model),
      access_(access),
      keep_(keep),
      first_(part.first),
      end_(part.end < 0 ? model.blocks() + 2 : part.end),
      info_(model.sequence_info(input)) {
  info_.counts = keep, info_.grad_scale = grad_scale;
  if (keep) info_.step.gradients = std::make_shared<WeightGradients>();
  const at::AutoGradMode grad(keep);
  const int64_t head_unit = model.blocks() + 1;
  Stream out{std::exchange(part.in, at::Tensor()), {}};
  for (int64_t unit = first_; unit < std::min(end_, head_unit); ++unit) {
    tell(&UnitAccess::before_forward, unit);
    const Stream in = keep && unit > 0 ? begin(out) : out;
    out = Stream();  // frees the branch: nothing else needs it once it is added
    out = forward(unit, in, input.tokens);
    if (const auto& stats = activation_stats(); stats && keep && unit > 0) stats->residual(unit_name(unit), stream_of(out));
  }
  end_ > head_unit ? head(out, labels, grad_scale) : void(out_ = out.x.detach());
}

Stream Pass::forward(int64_t unit, const Stream& in, const at::Tensor& tokens) {
  const Range range("{} forward", unit_name(unit));
  const auto write = [&] { return unit == 0 ? model_.embed(tokens, info_) : model_.block(unit - 1, in, info_); };
  const bool sends = unit + 1 == end_;
  if (recomputed(unit)) {
    const at::NoGradGuard no_grad;
    units_.push_back(
        {in, model_.recompute(unit - 1) == Recompute::op ? std::make_shared<RecomputeResults>() : nullptr, edges(parts(in)), {}});
    const Stream written = recomputed_block(unit - 1, units_.back(), true);
    if (units_.back().results && !quantization_stats()) units_.back().results->drop(written.branch);  // the statistics read every GEMM
    return joined(written);
  }
  const Stream out = sends || recomputed(unit + 1) ? joined(write()) : write();
  if (keep_) units_.push_back({{}, {}, unit > 0 ? edges(parts(in)) : edge_list(), edges(parts(out))});
  return out;
}

// Forward and backward: most of the head's gradients are computed with the loss.
void Pass::head(const Stream& out, const at::Tensor& labels, double grad_scale) {
  const int64_t unit = model_.blocks() + 1;
  tell(&UnitAccess::before_forward, unit);
  if (keep_) tell(&UnitAccess::before_backward, unit);
  const Stream in = keep_ ? begin(out) : out;
  HeadLoss loss = model_.head(in, labels, grad_scale, info_);
  loss_sum_ = loss.sum;
  if (!keep_) return;
  d_ = differentiate(edges(parts(in)), edges({loss.loss}), {at::ones_like(loss.loss)});
  tell(&UnitAccess::after_backward, unit);
}

Stream Pass::recomputed_block(int64_t block, const Unit& unit, bool first) const {
  SequenceInfo info = info_;
  info.step.recompute_results = unit.results, info.counts = first;
  return model_.block(block, unit.in, info);
}

at::Tensor Pass::backward(const at::Tensor& d_out, bool later) {
  check(keep_ && (!units_.empty() || d_.x.defined()),
        "the backward pass of a micro-batch runs once, after a forward pass that keeps activations");
  Stream d = d_.x.defined() ? std::exchange(d_, Stream()) : Stream{d_out, {}};
  left_.resize(later ? units_.size() : 0);
  for (; !units_.empty(); units_.pop_back()) {
    const auto unit = first_ + static_cast<int64_t>(units_.size()) - 1;
    const Range range("{} backward", unit_name(unit));
    Unit& u = units_.back();
    tell(&UnitAccess::before_backward, unit);
    if (u.end.empty()) {
      const at::AutoGradMode grad(true);
      if (u.results) u.results->begin_again();
      u.end = edges(parts(joined(recomputed_block(unit - 1, u, false))));
    }
    info_.step.gradients->later = later;
    d = differentiate(u.begin, u.end, parts(d));
    if (later) left_[units_.size() - 1] = std::exchange(info_.step.gradients->left, {});
    tell(&UnitAccess::after_backward, unit);
  }
  return first_ > 0 ? d.x : at::Tensor();
}

void Pass::weight_gradients() {
  for (; !left_.empty(); left_.pop_back()) {
    const auto unit = first_ + static_cast<int64_t>(left_.size()) - 1;
    const Range range("{} weight gradients", unit_name(unit));
    tell(&UnitAccess::before_backward, unit);
    const at::NoGradGuard no_grad;
    for (const auto& form : left_.back()) form();
    tell(&UnitAccess::after_backward, unit);
  }
}

}  // namespace halftone::nn
