#pragma once
#include <cstdint>
#include <span>

#include "halftone/base/dtype.h"
#include "halftone/base/philox.h"
#include "halftone/fused/step_outcome.h"
#include "halftone/optim/registry.h"

namespace halftone {

// Range of the flat buffers with its own settings: usually one parameter, or several with the same settings.
struct OptimizerSegment {
  int64_t offset = 0, count = 0;
  double lr = 0, weight_decay = 0;
  PhiloxKey key{};           // stochastic rounding: philox_key(seed, fqn + "#param") (numerics.md section 4)
  uint64_t first_index = 0;  // element index of the segment's first element in the unsharded parameter
};

// One step of an optimizer over flat buffers (numerics.md 10.2, platform.md 5.4), in fp32 arithmetic: g *= outcome->grad_factor, then the
// rule's update() with unrounded states. Elements outside all segments are not touched. A step that does not update only zeroes the
// gradient if zero_grad is set.
struct OptimizerStep {
  size_t optimizer = 0;  // its place in optim/registry.h
  optim::Options options;
  int64_t step = 1;  // t, from 1
  std::span<const OptimizerSegment> segments;
  DType param_dtype = DType::f32;  // f32 or bf16
  void* param = nullptr;
  bool stochastic_rounding = false;                   // bf16 parameters: stochastic rounding, else nearest even
  DType state_dtype = DType::f32;                     // f32 or bf16 (rounded to nearest even)
  void* states[optim::Optimizers::kMostStates] = {};  // null from the first that the rule does not need
  DType grad_dtype = DType::f32;                      // f32 or bf16
  void* grad = nullptr;
  const StepOutcome* outcome = nullptr;  // null: factor 1, the step updates
  bool zero_grad = false;                // zero the gradient in the same pass
  bf16* compute_copy = nullptr;          // null, or output for the parameter rounded to nearest even, in the same pass
};
void optimizer_step(const OptimizerStep& p);

}  // namespace halftone
