#pragma once
#include <cstdint>

#include "halftone/base/dtype.h"

namespace halftone {

// RMSNorm (Zhang and Sennrich, 2019): y = x * rstd * w, rstd = 1 / sqrt(mean(x^2) + eps), per row, computed in fp32, rounded once. Rows are
// contiguous, strides are in elements. x is the residual stream; with `branch` the sum x + branch is rounded to the stream's dtype, written
// to `sum` (may be x itself) and normalised.
struct RmsNormForward {
  int64_t rows = 0, cols = 0;       // T, D
  DType stream_dtype = DType::f32;  // x, sum: f32, or bf16 if dtype is also bf16
  DType dtype = DType::bf16;        // branch, y: bf16 or f32
  DType weight_dtype = DType::f32;  // bf16 or f32
  const void* x = nullptr;          // [T, D]
  int64_t x_stride = 0;
  const void* branch = nullptr;  // [T, D] or null
  int64_t branch_stride = 0;
  void* sum = nullptr;  // [T, D], only with branch
  int64_t sum_stride = 0;
  const void* weight = nullptr;  // [D]
  float eps = 1e-5f;
  void* y = nullptr;  // [T, D], may be x without a branch if the types agree
  int64_t y_stride = 0;
  float* rstd = nullptr;  // [T] or null
  // [1] or null: maximum of bits32(|y|), NaN the largest, for a quantiser that reads y (QuantizeOperand::amax).
  uint32_t* amax = nullptr;
};
void rms_norm_forward(const RmsNormForward& p);

// With xhat = x * rstd and g = dy * w:  dx = d_sum + rstd * (g - xhat * mean(g * xhat)),  dw += sum_t dy * xhat.
// dw is summed over rows in blocks whose bounds depend on T only, so the result does not depend on the thread count.
struct RmsNormBackward {
  int64_t rows = 0, cols = 0;
  DType stream_dtype = DType::f32;  // x, d_sum, dx
  DType dtype = DType::bf16;        // dy, d_branch
  DType weight_dtype = DType::f32;
  const void* x = nullptr;  // [T, D], input of the forward normalisation (the sum if there was a branch)
  int64_t x_stride = 0;
  const void* weight = nullptr;  // [D]
  const float* rstd = nullptr;   // [T], from forward
  const void* dy = nullptr;      // [T, D]
  int64_t dy_stride = 0;
  const void* d_sum = nullptr;  // [T, D] or null: gradient of the sum from later consumers; may be dx itself
  int64_t d_sum_stride = 0;
  void* dx = nullptr;  // [T, D]; may be d_sum, or dy if the types agree
  int64_t dx_stride = 0;
  void* d_branch = nullptr;  // [T, D] or null: dx rounded to `dtype`
  int64_t d_branch_stride = 0;
  float* dw = nullptr;  // [D], accumulated (beta = 1), or null
};
void rms_norm_backward(const RmsNormBackward& p);

}  // namespace halftone
