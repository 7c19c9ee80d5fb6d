#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <vector>

#include "halftone/fused/step_outcome.h"
#include "halftone/ops/weight.h"
#include "halftone/optim/step.h"

namespace halftone {

// One flat buffer of parameters with its gradient and optimizer states, all 1-D of the same length.
struct FlatParameters {
  at::Tensor param;                   // float32 masters, or bfloat16
  at::Tensor grad;                    // float32
  std::vector<at::Tensor> states;     // of the optimizer; float32 or bfloat16, perhaps in host memory (ops/host_memory.h)
  at::Tensor compute;                 // bfloat16 copy rewritten with the parameters, or undefined
  std::vector<StoredWeight*> stored;  // instead of `param`, one per segment: weights that exist as codes only
  std::vector<OptimizerSegment> segments;
};

struct OptimizerHyper {
  size_t optimizer = 0;  // its place in optim/registry.h
  optim::Options options;
  bool stochastic_rounding = false;
  bool zero_grad = true;  // zero gradients after the step; false: they become stale (Weight)
};

// Step t (from 1) of optim/step.h over the buffer. `outcome`: null, or on the buffer's device, as in OptimizerStep. Stored weights are
// dequantised to float32 one at a time, updated, and requantised with fresh scales and stochastic rounding by 32-bit draws of the
// segment's key (numerics.md section 7).
void optimizer_step(FlatParameters& flat, const OptimizerHyper& hyper, int64_t t, const StepOutcome* outcome = nullptr);

// Completes the outcome, which holds the sum of losses on the device of the gradients (flat, float32): computes the gradient norm, summed
// in fp64 in a fixed order, and the values derived from it. On a GPU everything is queued. `add_up`, with several ranks, all-reduces
// {this rank's sum of losses, its sum of squares}, fp64 [2] on the device.
void judge_step(std::span<const at::Tensor> gradients, const StepLimits& limits, StepOutcome* outcome,
                const std::function<void(at::Tensor&)>& add_up = {});

// compute = bfloat16(param), rounded to nearest even.
void refresh_compute_copy(FlatParameters& flat);

}  // namespace halftone
