#pragma once
#include "halftone/fused/rope.h"

namespace halftone {

constexpr int64_t kMostNormRopeDim = 256;

// RMSNorm of every head and its rotation in one pass: out = rope(x * rstd * w), rstd = 1 / sqrt(mean(x^2) + eps) over the head, fp32
// inside, one rounding. The heads of a call share the weight. `rope.inverse` does not count.
struct NormRope {
  Rope rope;                     // head_dim at most kMostNormRopeDim; `rotated` may be fewer than are normalised
  const void* weight = nullptr;  // [d], in the type of x
  float eps = 1e-6f;
};
void norm_rope(const NormRope& p);

// With g the gradient of what was written, rotated back, and xhat = x * rstd of what was read, rstd computed again:
//   dx = rstd * (g w - xhat * mean(g w xhat)),  dw += sum over tokens and heads of g xhat.
// Tokens are summed for dw in blocks whose bounds depend on T alone, so the result does not depend on the thread count.
struct NormRopeBackward {
  NormRope norm;            // rope.x: the gradient of what was written; rope.out: that of what was read, may be the same memory
  const void* x = nullptr;  // [T, heads, d] what forward read
  int64_t x_stride = 0;
  float* dw = nullptr;  // [d], accumulated (beta = 1), or null
};
void norm_rope_backward(const NormRopeBackward& p);

}  // namespace halftone
