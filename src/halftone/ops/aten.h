#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

#include "halftone/ops/attention.h"

// Attention on a GPU, by LibTorch's operations, without autograd. Back-ends, the first that takes a query runs it: cuDNN, flash-2 (of
// documents, too, as sequences of their own; values narrower than keys are padded), math (matrix products that write the scores, on any
// device).
namespace halftone::aten {

// What the choice of a back-end depends on.
struct AttentionQuery {
  bool cuda = false, cudnn = false, deterministic = false, documents = false, window = false;
  bool last = false;  // the queries are those of the last of the keys
  at::ScalarType dtype = at::kBFloat16;
  int64_t head_dim = 0, v_dim = 0, seq = 0;  // v_dim 0: head_dim
  bool operator==(const AttentionQuery&) const = default;
};
// The back-end that takes the query, what it does to it and why those before it do not: "flash-2 (cudnn: head size 80, it takes 64 and
// 128)".
std::string describe_attention(const AttentionQuery& query);

struct AttentionBackend;
struct AttentionState {
  at::Tensor out;                             // [T, H * dv]
  at::Tensor q, k, v;                         // [B, S, heads, d or dv], views
  at::Tensor attended, lse, seed, offset;     // out as [B, S, H, dv], the same memory where the back-end writes it so
  const AttentionBackend* backend = nullptr;  // null: the first that takes it, and the log-sum-exp is [B, H, S]
};
// `backend`: by this one, an Error where it lacks something; empty: by the first that takes it.
AttentionState attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionArgs& args,
                         std::string_view backend = {});
// As q, k and v of the state.
struct AttentionGradients {
  at::Tensor q, k, v;
};
// d_out as the state's `attended`.
AttentionGradients attention_backward(const at::Tensor& d_out, const AttentionState& state, const AttentionArgs& args);
// Of Lq queries and Lk keys a row: query i sees keys up to i + Lk - Lq, of them those in args.window. By the first back-end that takes
// them, so that a prompt does not need the memory of its scores; nothing for backward.
AttentionState attention_cached(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionArgs& args);

}  // namespace halftone::aten
