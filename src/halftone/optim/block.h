#pragma once
#include "halftone/optim/step.h"

namespace halftone {

// Piece of an optimizer segment.
struct OptimizerBlock {
  int64_t offset, count;
  double lr, weight_decay;
  float grad_factor;
  const uint16_t* noise;  // [count rounded up to 16] draws for stochastic rounding, or null
};

// The same code for each instruction set (fused/simd.h).
namespace v3 {
void optimizer_block(const OptimizerStep&, const OptimizerBlock&);
}
namespace avx512 {
void optimizer_block(const OptimizerStep&, const OptimizerBlock&);  // needs cpu_features().avx512
}

}  // namespace halftone
