#pragma once
#include <cstdint>

#include "halftone/base/dtype.h"

namespace halftone {

// RMSNorm (Zhang and Sennrich, 2019): y = x * rstd * w, rstd = 1 / sqrt(mean(x^2) + eps), per row, computed in fp32 and
// rounded once. Rows are contiguous, strides count elements. With `residual` the sum x + residual is rounded to
// `dtype`, written to `sum` and normalised (may be x or residual itself).
struct RmsNormForward {
  int64_t rows = 0, cols = 0;       // T, D
  DType dtype = DType::bf16;        // x, residual, sum, y: bf16 or f32
  DType weight_dtype = DType::f32;  // bf16 or f32
  const void* x = nullptr;          // [T, D]
  int64_t x_stride = 0;
  const void* residual = nullptr;  // [T, D] or null
  int64_t residual_stride = 0;
  void* sum = nullptr;  // [T, D], only with residual
  int64_t sum_stride = 0;
  const void* weight = nullptr;  // [D]
  float eps = 1e-5f;
  void* y = nullptr;  // [T, D], may be x when there is no residual
  int64_t y_stride = 0;
  float* rstd = nullptr;  // [T] or null
};
void rms_norm_forward(const RmsNormForward& p);

// With xhat = x * rstd and g = dy * w:  dx = residual_grad + rstd * (g - xhat * mean(g * xhat)),  dw += sum_t dy * xhat.
// Rows are summed for dw in blocks whose bounds depend on T alone, so the result does not depend on the thread count.
struct RmsNormBackward {
  int64_t rows = 0, cols = 0;
  DType dtype = DType::bf16;  // x, dy, residual_grad, dx
  DType weight_dtype = DType::f32;
  const void* x = nullptr;  // [T, D], what forward normalised (the sum if there was a residual)
  int64_t x_stride = 0;
  const void* weight = nullptr;  // [D]
  const float* rstd = nullptr;   // [T], from forward
  const void* dy = nullptr;      // [T, D]
  int64_t dy_stride = 0;
  const void* residual_grad = nullptr;  // [T, D] or null; may be dx itself
  int64_t residual_grad_stride = 0;
  void* dx = nullptr;  // [T, D]; may be dy or residual_grad
  int64_t dx_stride = 0;
  float* dw = nullptr;  // [D], accumulated (beta = 1), or null
};
void rms_norm_backward(const RmsNormBackward& p);

}  // namespace halftone
