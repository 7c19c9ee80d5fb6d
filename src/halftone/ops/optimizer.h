#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "halftone/fused/adamw.h"
#include "halftone/ops/weight.h"

namespace halftone {

// One flat buffer of parameters with its gradient and moments, all 1-D of the same length.
struct FlatParameters {
  at::Tensor param;                   // float32 masters, or bfloat16
  at::Tensor grad;                    // float32
  at::Tensor m, v;                    // float32 or bfloat16; undefined where the rule needs none
  at::Tensor compute;                 // bfloat16 copy rewritten with the parameters, or undefined
  std::vector<StoredWeight*> stored;  // in place of `param`, one per segment: weights that exist as codes only
  std::vector<OptimizerSegment> segments;
};

struct OptimizerHyper {
  OptimizerRule rule = OptimizerRule::adamw;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  bool stochastic_rounding = false;
};

// Step t (from 1) of fused/adamw.h over the buffer, gradients multiplied by grad_factor (float32 scalar on the buffer's
// device), then zeroed. Stored weights are dequantised to float32 one at a time, updated, and quantised again under fresh
// scales with stochastic rounding by 32-bit draws of the segment's key (numerics.md section 7).
void optimizer_step(FlatParameters& flat, const OptimizerHyper& hyper, int64_t t, const at::Tensor& grad_factor);

// Sum of squares in float64 on the tensor's device (scalar), added in a fixed order.
at::Tensor sum_of_squares(const at::Tensor& flat);

// compute = bfloat16(param), to nearest even.
void refresh_compute_copy(FlatParameters& flat);

}  // namespace halftone
