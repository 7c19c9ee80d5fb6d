#pragma once
#include "halftone/fused/rope.h"

namespace halftone {

constexpr int64_t kMostNormRopeDim = 256;

// RMSNorm of every head and its rotation in one pass: out = rope(x * rstd * w), rstd = 1 / sqrt(mean(x^2) + eps) over the head, computed in
// fp32, rounded once. All heads of a call share the weight. `rope.inverse` is ignored.
struct NormRope {
  Rope rope;                     // head_dim at most kMostNormRopeDim; `rotated` may be less than the normalised head_dim
  const void* weight = nullptr;  // [d], same dtype as x
  float eps = 1e-6f;
};
void norm_rope(const NormRope& p);

// With g the rotated-back gradient of the output, and xhat = x * rstd of the input, rstd recomputed:
//   dx = rstd * (g w - xhat * mean(g w xhat)),  dw += sum over tokens and heads of g xhat.
// dw is summed over tokens in blocks whose bounds depend on T only, so the result does not depend on the thread count.
struct NormRopeBackward {
  NormRope norm;            // rope.x: gradient of the output; rope.out: gradient of the input, may alias rope.x
  const void* x = nullptr;  // [T, heads, d] forward input
  int64_t x_stride = 0;
  float* dw = nullptr;  // [d], accumulated (beta = 1), or null
};
void norm_rope_backward(const NormRopeBackward& p);

}  // namespace halftone
