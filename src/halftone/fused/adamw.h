#pragma once
#include <cstdint>
#include <span>

#include "halftone/base/dtype.h"
#include "halftone/base/philox.h"
#include "halftone/fused/step_outcome.h"

namespace halftone {

enum class OptimizerRule {
  adamw,  // decoupled decay: p -= lr * wd * p
  adam,   // g += wd * p
  sgd,    // g += wd * p; m = momentum * m + g; p -= lr * m (m unused when momentum is 0)
};

// Range of the flat buffers with its own settings: usually one parameter, or several with the same settings.
struct OptimizerSegment {
  int64_t offset = 0, count = 0;
  double lr = 0, weight_decay = 0;
  PhiloxKey key{};           // stochastic rounding: philox_key(seed, fqn + "#param") (numerics.md section 4)
  uint64_t first_index = 0;  // element index of the segment's first element in the unsharded parameter
};

// One optimizer step over flat buffers (numerics.md 10.2, platform.md 5.4), fp32 arithmetic:
//   g *= outcome->grad_factor; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; p -= lr * (m / (1-b1^t)) / (sqrt(v) / sqrt(1-b2^t) + eps)
// with the new, unrounded m and v. Elements outside all segments are not touched. A step that does not update only zeroes the gradient
// if zero_grad is set.
struct OptimizerStep {
  OptimizerRule rule = OptimizerRule::adamw;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;  // sgd: beta1 is the momentum
  int64_t step = 1;                              // t, from 1
  std::span<const OptimizerSegment> segments;
  DType param_dtype = DType::f32;  // f32 or bf16
  void* param = nullptr;
  bool stochastic_rounding = false;  // bf16 parameters: stochastic rounding, else nearest even
  DType state_dtype = DType::f32;    // f32 or bf16 (rounded to nearest even)
  void* m = nullptr;                 // sgd: null when beta1 is 0
  void* v = nullptr;                 // sgd: null
  DType grad_dtype = DType::f32;     // f32 or bf16
  void* grad = nullptr;
  const StepOutcome* outcome = nullptr;  // null: factor 1, the step updates
  bool zero_grad = false;                // zero the gradient in the same pass
  bf16* compute_copy = nullptr;          // null, or output for the parameter rounded to nearest even, in the same pass
};
void optimizer_step(const OptimizerStep& p);

}  // namespace halftone
