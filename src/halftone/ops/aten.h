#pragma once
#include <ATen/core/Tensor.h>

#include "halftone/ops/attention.h"

// Attention on a GPU, by LibTorch's operations, without autograd.
namespace halftone::aten {

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
