#pragma once
#include <ATen/core/Tensor.h>

#include <tuple>

#include "halftone/ops/attention.h"

// The ops' formulas in portable tensor operations, without autograd: what devices without kernels of ours run, and the
// oracle of the tests. fp32 arithmetic inside, one rounding to the activation dtype.
namespace halftone::aten {

std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& x, const at::Tensor& w, double eps);  // y in w's dtype, rstd [T]
// dx and dw (fp32) for y = x * rstd * w.
std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                                                     const at::Tensor& w);
at::Tensor swiglu(const at::Tensor& gu);
at::Tensor swiglu_backward(const at::Tensor& dh, const at::Tensor& gu);
// x[T, heads * d] rotated by +angle or -angle.
at::Tensor rotate(const at::Tensor& x, int64_t heads, const AttentionArgs& args, bool inverse, int64_t first_position = 0);

struct AttentionState {
  at::Tensor out, lse;                          // out [T, H * d]
  at::Tensor q, k, v, flash_out, seed, offset;  // kept for backward
  int64_t max_q = 0, max_k = 0;
  bool flash = false;
};
// qkv with q, k already rotated.
AttentionState attention(const at::Tensor& qkv, const AttentionArgs& args, bool keep);
at::Tensor attention_backward(const at::Tensor& d_out, const AttentionState& state, const AttentionArgs& args);  // dqkv, before un-rotation
// q[B, H, Lq, d], k and v[B, Hkv, Lk, d], query i sees keys up to i + Lk - Lq; [B * Lq, H * d].
at::Tensor attention_cached(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionArgs& args);

}  // namespace halftone::aten
