#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

#include "halftone/ops/attention.h"

// Attention on a GPU, by LibTorch's operations, without autograd. Back-ends, the first that takes a query runs it: cuDNN, flash-2 (of
// documents, too, as sequences of their own), math (matrix products that write the scores, on any device).
namespace halftone::aten {

// What the choice of a back-end depends on.
struct AttentionQuery {
  bool cuda = false, cudnn = false, deterministic = false, documents = false, window = false;
  at::ScalarType dtype = at::kBFloat16;
  int64_t head_dim = 0, seq = 0;
  bool operator==(const AttentionQuery&) const = default;
};
// The back-end that takes the query and why those before it do not: "flash-2 (cudnn: head size 80, it takes 64 and 128)".
std::string describe_attention(const AttentionQuery& query);

struct AttentionBackend;
struct AttentionState {
  at::Tensor out;                          // [T, H * d]
  at::Tensor q, k, v;                      // [B, S, heads, d], views; kept for backward with all that follows
  at::Tensor attended, lse, seed, offset;  // out as [B, S, H, d], the same memory where the back-end writes it so
  const AttentionBackend* backend = nullptr;
};
// q and k as attention reads them are the first columns of qk (qkv itself, where they were rotated in place), v the last ones of qkv.
// `backend`: by this one, an Error where it lacks something; empty: by the first that takes it.
AttentionState attention(const at::Tensor& qk, const at::Tensor& qkv, const AttentionArgs& args, bool keep, std::string_view backend = {});
// q, k and v of a state whose other tensors are those of an earlier call on the same numbers.
void set_inputs(AttentionState& state, const at::Tensor& qk, const at::Tensor& qkv, const AttentionArgs& args);
// Before un-rotation, each [T, heads * d] with rows of adjacent elements.
struct AttentionGradients {
  at::Tensor q, k, v;
};
AttentionGradients attention_backward(const at::Tensor& d_out, const AttentionState& state, const AttentionArgs& args);
// q[B, H, Lq, d], k and v[B, Hkv, Lk, d], query i sees keys up to i + Lk - Lq, of them those in args.window; [B * Lq, H * d].
at::Tensor attention_cached(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionArgs& args);

}  // namespace halftone::aten
