#include "halftone/ops/optimizer.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "halftone/fused/grad_norm.h"
#include "halftone/ops/common.h"
#include "halftone/ops/cuda_module.h"
#include "halftone/ops/stored_weight.h"

namespace halftone {
namespace {

// The fused kernel, on the CPU or in halftone_cuda.so.
void step_fused(FlatParameters& f, const OptimizerHyper& h, int64_t t, const StepOutcome* outcome) {
  OptimizerStep p;
  p.optimizer = h.optimizer, p.options = h.options, p.step = t;
  p.segments = f.segments;
  p.param_dtype = kernel_dtype(f.param), p.param = f.param.data_ptr(), p.stochastic_rounding = h.stochastic_rounding;
  for (size_t k = 0; k < f.states.size(); ++k) p.state_dtype = kernel_dtype(f.states[k]), p.states[k] = f.states[k].data_ptr();
  p.grad = f.grad.data_ptr(), p.outcome = outcome, p.zero_grad = h.zero_grad;
  if (f.compute.defined()) p.compute_copy = static_cast<bf16*>(f.compute.data_ptr());
  if (f.param.is_cpu()) return optimizer_step(p);
  cuda::launch("optimizer", &cuda::Module::optimizer_step, p, f.param.device());
}

// The segments of a unit without masters.
void step_stored(FlatParameters& f, const OptimizerHyper& h, int64_t t, const StepOutcome* outcome) {
  for (size_t i = 0; i < f.segments.size(); ++i) {
    const OptimizerSegment& s = f.segments[i];
    if (s.count == 0) continue;
    const at::Tensor w = dequantize(*f.stored[i]);
    FlatParameters one;
    one.param = w.view(-1), one.grad = f.grad.narrow(0, s.offset, s.count);
    for (const at::Tensor& state : f.states) one.states.push_back(state.narrow(0, s.offset, s.count));
    one.segments = {s};
    one.segments[0].offset = 0, one.segments[0].first_index = 0;
    OptimizerHyper plain = h;
    plain.stochastic_rounding = false;  // the quantiser rounds
    optimizer_step(one, plain, t, outcome);
    Rounding rounding;
    rounding.stochastic = true, rounding.key = s.key, rounding.step = static_cast<uint32_t>(t);
    rounding.first_row = static_cast<int64_t>(s.first_index) / w.size(1);
    store(w, rounding, *f.stored[i], outcome);
  }
}

}  // namespace

void optimizer_step(FlatParameters& flat, const OptimizerHyper& hyper, int64_t t, const StepOutcome* outcome) {
  at::NoGradGuard no_grad;
  if (!flat.stored.empty()) return step_stored(flat, hyper, t, outcome);
  step_fused(flat, hyper, t, outcome);
}

void judge_step(std::span<const at::Tensor> gradients, const StepLimits& limits, StepOutcome* outcome,
                const std::function<void(at::Tensor&)>& add_up) {
  const at::TensorOptions where = gradients.front().options();
  if (where.device().is_cpu()) {
    double squares = 0;
    for (const at::Tensor& g : gradients) squares += sum_of_squares(g.const_data_ptr(), g.numel(), kernel_dtype(g));
    if (add_up) {
      at::Tensor sums = at::tensor({outcome->loss_sum, squares}, at::kDouble);
      add_up(sums);
      outcome->loss_sum = sums.const_data_ptr<double>()[0], squares = sums.const_data_ptr<double>()[1];
    }
    return judge(*outcome, std::sqrt(squares), limits);
  }
  JudgeStep j;
  for (const at::Tensor& g : gradients) j.count += norm_parts(g.numel());
  const at::Tensor parts = at::empty({j.count}, where.dtype(at::kDouble));
  double* next = parts.mutable_data_ptr<double>();
  for (const at::Tensor& g : gradients) {
    cuda::launch("gradient norm", &cuda::Module::partial_squares, PartialSquares{g.const_data_ptr<float>(), g.numel(), next},
                 where.device());
    next += norm_parts(g.numel());
  }
  at::Tensor sums;
  if (add_up) {
    const at::Tensor loss_sum = at::for_blob(&outcome->loss_sum, {1}).options(parts.options()).target_device(where.device()).make_tensor();
    sums = at::cat({loss_sum, parts.sum().view({1})});
    add_up(sums);
    loss_sum.copy_(sums.narrow(0, 0, 1));
    j.count = 1;
  }
  j.parts = (add_up ? sums.narrow(0, 1, 1) : parts).const_data_ptr<double>(), j.limits = limits, j.outcome = outcome;
  cuda::launch("gradient norm", &cuda::Module::judge_step, j, where.device());
}

void refresh_compute_copy(FlatParameters& flat) {
  if (!flat.compute.defined()) return;
  at::NoGradGuard no_grad;
  if (flat.param.is_cpu() && flat.param.scalar_type() == at::kFloat) {
    cast_to_bf16(flat.param.const_data_ptr<float>(), static_cast<bf16*>(flat.compute.data_ptr()), flat.param.numel());
  } else {
    flat.compute.copy_(flat.param);
  }
}

}  // namespace halftone
