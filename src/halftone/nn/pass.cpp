#include "halftone/nn/pass.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "halftone/base/error.h"
#include "halftone/ops/node.h"
#include "halftone/ops/quantization_stats.h"
#include "halftone/ops/range.h"
#include "halftone/ops/saves.h"

namespace halftone::nn {
namespace {

using torch::autograd::edge_list;

// What a unit reads: its graph ends there, in nodes that hold no numbers.
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
// A recomputed block reads and returns one tensor, the only one that is kept of it.
Stream joined(const Stream& s) { return s.branch.defined() ? Stream{s.x + s.branch, {}} : s; }

// Gradients of what a unit read from those of what it wrote. Without a beginning they go to the graph's leaves.
Stream differentiate(const edge_list& begin, const edge_list& end, const variable_list& d_out) {
  variable_list d = torch::autograd::Engine::get_default_engine().execute(end, d_out, false, false, begin.empty(), begin);
  d.resize(2);
  return {d[0], d[1]};
}

}  // namespace

Pass::Pass(Model& model, const ModelInput& input, const at::Tensor& labels, double grad_scale, bool keep, UnitAccess* access)
    : model_(model), access_(access), info_(model.sequence_info(input)) {
  info_.counts = keep, info_.grad_scale = grad_scale;
  const at::AutoGradMode grad(keep);
  const auto for_block = [&](int64_t next, const Stream& s) { return keep && recomputed(next) ? joined(s) : s; };
  tell(&UnitAccess::before_forward, 0);
  Stream out = for_block(0, model.embed(input.tokens, info_));
  if (keep) embedding_.end = edges(parts(out));
  for (int64_t i = 0; i < model.blocks(); ++i) {
    const Range range("layers.{} forward", i);
    tell(&UnitAccess::before_forward, i + 1);
    const Stream in = keep ? begin(out) : out;
    out = Stream();  // nobody else needs the branch once it is added
    if (!keep) {
      out = model.block(i, in, info_);
    } else if (recomputed(i)) {
      const at::NoGradGuard no_grad;
      blocks_.push_back({in, model.recompute(i) == Recompute::op ? std::make_shared<Saves>() : nullptr, edges(parts(in)), {}});
      const Stream written = recomputed_block(i, blocks_.back(), true);
      if (blocks_.back().saves && !quantization_stats()) blocks_.back().saves->drop(written.branch);  // they read every product
      out = joined(written);
    } else {
      out = for_block(i + 1, model.block(i, in, info_));
      blocks_.push_back({{}, {}, edges(parts(in)), edges(parts(out))});
    }
  }
  tell(&UnitAccess::before_forward, model.blocks() + 1);
  if (keep) tell(&UnitAccess::before_backward, model.blocks() + 1);  // the head's weights have their gradients when the loss is known
  const Stream in = keep ? begin(out) : out;
  loss_ = model.head(in, labels, grad_scale, info_);
  if (keep) head_ = {{}, {}, edges(parts(in)), edges({loss_.loss})};
}

Stream Pass::recomputed_block(int64_t block, const Unit& unit, bool first) const {
  SequenceInfo info = info_;
  info.step.saves = unit.saves, info.counts = first;
  return model_.block(block, unit.in, info);
}

void Pass::backward() {
  check(!head_.end.empty(), "the backward pass of a micro-batch needs its forward pass to keep, and runs once");
  Stream d = differentiate(head_.begin, head_.end, {at::ones_like(loss_.loss)});
  loss_.loss = at::Tensor(), head_ = Unit();
  tell(&UnitAccess::after_backward, model_.blocks() + 1);
  for (int64_t i = static_cast<int64_t>(blocks_.size()) - 1; i >= 0; --i) {
    const Range range("layers.{} backward", i);
    Unit& unit = blocks_[static_cast<size_t>(i)];
    tell(&UnitAccess::before_backward, i + 1);
    if (unit.end.empty()) {
      const at::AutoGradMode grad(true);
      if (unit.saves) unit.saves->begin_again();
      unit.end = edges(parts(joined(recomputed_block(i, unit, false))));
    }
    d = differentiate(unit.begin, unit.end, parts(d));
    blocks_.pop_back();
    tell(&UnitAccess::after_backward, i + 1);
  }
  tell(&UnitAccess::before_backward, 0);
  differentiate({}, embedding_.end, parts(d));
  embedding_ = Unit();
  tell(&UnitAccess::after_backward, 0);
}

}  // namespace halftone::nn
