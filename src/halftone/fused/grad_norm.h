#pragma once
#include <cstdint>

#include "halftone/base/dtype.h"
#include "halftone/fused/step_outcome.h"

namespace halftone {

// Sum of squares in fp64 of n elements (bf16 or f32), in blocks of kNormBlock with a fixed order: bit-identical for every thread count and
// instruction set. The result is non-finite exactly if an element is NaN or infinite (the square of an fp32 number fits in fp64).
inline constexpr int64_t kNormBlock = 4096;
double sum_of_squares(const void* x, int64_t n, DType dtype = DType::f32);

// CUDA version: two launches, another fixed order. The first writes norm_parts(n) partial sums per buffer; the second takes the root of
// their total and decides the step's outcome.
constexpr int64_t norm_parts(int64_t n) {
  constexpr int64_t kMost = 1056, kPiece = 4096;  // blocks resident on 132 SMs; elements that a block reads at once
  return (n + kPiece - 1) / kPiece < kMost ? (n + kPiece - 1) / kPiece : kMost;
}
struct PartialSquares {
  const float* x = nullptr;  // [n], 16-byte aligned
  int64_t n = 0;
  double* parts = nullptr;  // [norm_parts(n)]
};
struct JudgeStep {
  const double* parts = nullptr;  // [count]
  int64_t count = 0;
  StepLimits limits;
  StepOutcome* outcome = nullptr;  // holds the sum of losses
};

void scale_in_place(float* x, int64_t n, float factor);
void fill_zero(void* x, int64_t bytes);
void cast_to_bf16(const float* x, bf16* y, int64_t n);  // round to nearest even
void cast_to_f32(const bf16* x, float* y, int64_t n);
void accumulate(float* sum, const void* x, int64_t n, DType dtype);  // sum += x

}  // namespace halftone
