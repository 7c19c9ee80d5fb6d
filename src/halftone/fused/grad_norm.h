#pragma once
#include <cstdint>

#include "halftone/base/dtype.h"
#include "halftone/fused/step_outcome.h"

namespace halftone {

// Sum of squares in fp64 of n elements (bf16 or f32), added in blocks of kNormBlock whose order is fixed: the same bits
// for every thread count and instruction set. A NaN or an infinity anywhere makes the result not finite (and nothing else
// does: the square of an fp32 number fits fp64).
inline constexpr int64_t kNormBlock = 4096;
double sum_of_squares(const void* x, int64_t n, DType dtype = DType::f32);

// The same on a CUDA device, in two launches and in another fixed order: norm_parts(n) partial sums of every buffer, then the root of
// the sum of all of them and what follows from it.
constexpr int64_t norm_parts(int64_t n) {
  constexpr int64_t kMost = 1056, kPiece = 4096;  // all that run on 132 processors at once; what a block reads at once
  return (n + kPiece - 1) / kPiece < kMost ? (n + kPiece - 1) / kPiece : kMost;
}
struct PartialSquares {
  const float* x = nullptr;  // [n], on a boundary of 16 bytes
  int64_t n = 0;
  double* parts = nullptr;  // [norm_parts(n)]
};
struct JudgeStep {
  const double* parts = nullptr;  // [count]
  int64_t count = 0;
  StepLimits limits;
  StepOutcome* outcome = nullptr;  // with the sum of losses
};

void scale_in_place(float* x, int64_t n, float factor);
void fill_zero(void* x, int64_t bytes);
void cast_to_bf16(const float* x, bf16* y, int64_t n);  // to nearest even
void cast_to_f32(const bf16* x, float* y, int64_t n);
void accumulate(float* sum, const void* x, int64_t n, DType dtype);  // sum += x

}  // namespace halftone
