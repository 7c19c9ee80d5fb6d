#include "halftone/nn/pass.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "halftone/base/error.h"
#include "halftone/ops/range.h"

namespace halftone::nn {
namespace {

using torch::autograd::variable_list;

Stream leaves(const Stream& s) {
  const auto leaf = [](const at::Tensor& t) { return t.defined() ? t.detach().set_requires_grad(true) : t; };
  return {leaf(s.x), leaf(s.branch)};
}
variable_list parts(const Stream& s) { return s.branch.defined() ? variable_list{s.x, s.branch} : variable_list{s.x}; }
// A recomputed block reads and returns one tensor, the only one that is kept of it.
Stream joined(const Stream& s) { return s.branch.defined() ? Stream{s.x + s.branch, {}} : s; }

// Gradients of what a unit read from those of what it wrote.
Stream differentiate(const Stream& in, const variable_list& out, const variable_list& d_out) {
  const variable_list d = torch::autograd::grad(out, parts(in), d_out);
  return {d[0], d.size() > 1 ? d[1] : at::Tensor()};
}

}  // namespace

Pass::Pass(Model& model, const ModelInput& input, const at::Tensor& labels, double grad_scale, bool keep)
    : model_(model), info_(model.sequence_info(input)) {
  const at::AutoGradMode grad(keep);
  const auto for_block = [&](int64_t next, const Stream& s) { return keep && recomputed(next) ? joined(s) : s; };
  Stream out = embedded_ = for_block(0, model.embed(input.tokens, info_));
  for (int64_t i = 0; i < model.blocks(); ++i) {
    const Range range("layers.{} forward", i);
    const Stream in = keep ? leaves(out) : out;
    if (!keep) {
      out = model.block(i, in, info_);
    } else if (recomputed(i)) {
      const at::NoGradGuard no_grad;
      out = joined(model.block(i, in, info_));
      blocks_.push_back({in, {}});
    } else {
      out = for_block(i + 1, model.block(i, in, info_));
      blocks_.push_back({in, out});
    }
  }
  head_in_ = keep ? leaves(out) : out;
  loss_ = model.head(head_in_, labels, grad_scale, info_);
  if (!keep) embedded_ = head_in_ = Stream();
}

void Pass::backward() {
  check(embedded_.x.defined(), "the backward pass of a micro-batch needs its forward pass to keep, and runs once");
  Stream d = differentiate(head_in_, {loss_.loss}, {});
  loss_.loss = at::Tensor(), head_in_ = Stream();
  for (int64_t i = static_cast<int64_t>(blocks_.size()) - 1; i >= 0; --i) {
    const Range range("layers.{} backward", i);
    Unit& unit = blocks_[static_cast<size_t>(i)];
    if (!unit.out.x.defined()) {
      const at::AutoGradMode grad(true);
      unit.out = joined(model_.block(i, unit.in, info_));
    }
    d = differentiate(unit.in, parts(unit.out), parts(d));
    blocks_.pop_back();
  }
  torch::autograd::backward(parts(embedded_), parts(d));
  embedded_ = Stream();
}

}  // namespace halftone::nn
