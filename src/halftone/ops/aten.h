#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

#include "halftone/ops/attention.h"

// Attention on a GPU through LibTorch's operations, without autograd. The first back-end that supports a query runs it: cuDNN, flash-2
// (documents too, as sequences of their own; values narrower than keys are padded), math (matrix products that materialize the scores, on
// any device).
namespace halftone::aten {

// Everything the choice of a back-end depends on.
struct AttentionQuery {
  bool cuda = false, cudnn = false, deterministic = false, documents = false, window = false;
  bool last = false;       // the queries are the last positions of the keys
  bool invariant = false;  // a query's sum depends on its own keys alone (ops/batch_invariant.h)
  at::ScalarType dtype = at::kBFloat16;
  int64_t head_dim = 0, v_dim = 0, seq = 0;  // v_dim 0: head_dim
  bool operator==(const AttentionQuery&) const = default;
};
// The back-end that runs the query, how it modifies it, and why the earlier ones cannot run it: "flash-2 (cudnn: head size 80, it takes
// 64 and 128)".
std::string describe_attention(const AttentionQuery& query);

struct AttentionBackend;
struct AttentionState {
  at::Tensor out;                             // [T, H * dv]
  at::Tensor q, k, v;                         // [B, S, heads, d or dv], views
  at::Tensor attended, lse, seed, offset;     // attended: out as [B, S, H, dv], the same memory if the back-end writes that layout
  const AttentionBackend* backend = nullptr;  // null: the first that supports it, and the log-sum-exp is [B, H, S]
};
// `backend`: use this one, Error if it does not support the query; empty: the first that does.
AttentionState attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionArgs& args,
                         std::string_view backend = {});
// Shaped like q, k and v of the state.
struct AttentionGradients {
  at::Tensor q, k, v;
};
// d_out is shaped like the state's `attended`.
AttentionGradients attention_backward(const at::Tensor& d_out, const AttentionState& state, const AttentionArgs& args);
// Lq queries and Lk keys per row: query i sees keys up to i + Lk - Lq, limited to args.window. Uses the first back-end that supports
// them, so that a prompt does not need memory for its scores; keeps nothing for backward.
AttentionState attention_cached(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionArgs& args);

}  // namespace halftone::aten
