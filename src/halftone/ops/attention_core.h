#pragma once
#include "halftone/fused/rope.h"
#include "halftone/ops/aten.h"

// What the attention ops share: rotation, and from rotated heads on the kernels of the processor (attention/causal.h) or LibTorch's
// back-ends (ops/aten.h), sinks, caches. Without autograd.
namespace halftone {

// [T, ...] with `heads` heads in its first columns -> [B, S, heads, dim], a view, and back, a view where heads lie beside each other.
at::Tensor as_heads(const at::Tensor& rows, const AttentionArgs& args, int64_t heads, int64_t dim);
at::Tensor as_rows(const at::Tensor& heads);

// Of `heads` heads in the first columns of `from`, into those of `to`; the first token of a row stands at `first_position`.
Rope rotation(const at::Tensor& from, const at::Tensor& to, int64_t heads, const AttentionArgs& args, int64_t first_position);
void run(const Rope& p, c10::Device device);

void check_sinks(const AttentionArgs& args);

// The log-sum-exp as [B, S, H], a view. Back-ends write [B, H, S], cuDNN with a last dimension of 1, flash-2 of documents [H, T].
at::Tensor log_sum_exp(const aten::AttentionState& state);

// q [B, S, H, d], k [B, S, Hkv, d] and v [B, S, Hkv, dv] as attention reads them, elements of a head beside each other. keep: what
// backward needs stays in the state.
aten::AttentionState attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionArgs& args, bool keep);

// One call of a kernel, of args.seq queries in each of args.batch rows: without sinks, and the state's `out` is left out.
aten::AttentionState attend_once(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionArgs& args);
// d_out as the state's `attended`; `room` as below.
aten::AttentionGradients attend_once_backward(const at::Tensor& d_out, const aten::AttentionState& state, const AttentionArgs& args,
                                              const aten::AttentionGradients& room);

// Gradients before un-rotation, of d_out [T, H * dv], for a state with its q, k and v; those of the sinks are added to their weight. The
// kernels of the processor write them into `room`; LibTorch's make tensors of their own.
aten::AttentionGradients attend_backward(const at::Tensor& d_out, const aten::AttentionState& state, const AttentionArgs& args,
                                         const aten::AttentionGradients& room);

// Appends k and v of args.seq new positions to the cache; [T, H * dv] of their queries.
at::Tensor attend_cached(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionArgs& args, KvCache& cache);

}  // namespace halftone
