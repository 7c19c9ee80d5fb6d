#pragma once
#include <cstdint>

#include "halftone/base/dtype.h"

namespace halftone {

// Sum of squares in fp64 of n elements (bf16 or f32), added in blocks of kNormBlock whose order is fixed: the same bits
// for every thread count and instruction set. A NaN or an infinity anywhere makes the result not finite (and nothing else
// does: the square of an fp32 number fits fp64).
inline constexpr int64_t kNormBlock = 4096;
double sum_of_squares(const void* x, int64_t n, DType dtype = DType::f32);

// min(1, max_norm / (norm + 1e-6)); 1 when max_norm is infinite; NaN stays NaN.
float clip_factor(double norm, double max_norm);

void scale_in_place(float* x, int64_t n, float factor);
void fill_zero(void* x, int64_t bytes);
void cast_to_bf16(const float* x, bf16* y, int64_t n);  // to nearest even
void cast_to_f32(const bf16* x, float* y, int64_t n);
void accumulate(float* sum, const void* x, int64_t n, DType dtype);  // sum += x

}  // namespace halftone
