#pragma once
#include "halftone/fused/rope.h"
#include "halftone/ops/aten.h"

// Shared by the attention ops: rotation; then, from rotated heads on, the CPU kernels (attention/causal.h) or LibTorch's back-ends
// (ops/aten.h), sinks and KV caches. Without autograd.
namespace halftone {

// [T, ...] with `heads` heads in its first columns -> [B, S, heads, dim], a view; and back, a view if the heads are adjacent.
at::Tensor as_heads(const at::Tensor& rows, const AttentionArgs& args, int64_t heads, int64_t dim);
at::Tensor as_rows(const at::Tensor& heads);

// Rotates `heads` heads in the first columns of `from` into those of `to`; the first token of a row has position `first_position`.
Rope rotation(const at::Tensor& from, const at::Tensor& to, int64_t heads, const AttentionArgs& args, int64_t first_position);
void run(const Rope& p, c10::Device device);

void check_sinks(const AttentionArgs& args);

// The log-sum-exp as a view [B, S, H]. Back-ends write [B, H, S], cuDNN with a trailing dimension of 1, flash-2 with documents [H, T].
at::Tensor log_sum_exp(const aten::AttentionState& state);

// q [B, S, H, d], k [B, S, Hkv, d] and v [B, S, Hkv, dv] as attention reads them, unit stride within a head. keep: the state keeps
// everything backward needs.
aten::AttentionState attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionArgs& args, bool keep);

// One kernel call with args.seq queries in each of args.batch rows: without sinks; does not set the state's `out`.
aten::AttentionState attend_once(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionArgs& args);
// d_out is shaped like the state's `attended`; `room` as below.
aten::AttentionGradients attend_once_backward(const at::Tensor& d_out, const aten::AttentionState& state, const AttentionArgs& args,
                                              const aten::AttentionGradients& room);

// The core of attention for rows of which other processes have some positions (Documents::port): this process's queries attend to keys
// and values of all of them. Arguments as of attend_once and its backward; the state's log-sum-exp covers the queries, [B, H, S].
class AttentionPort {
 public:
  virtual ~AttentionPort() = default;
  virtual aten::AttentionState attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionArgs& args) const = 0;
  virtual aten::AttentionGradients backward(const at::Tensor& d_out, const aten::AttentionState& state, const AttentionArgs& args,
                                            const aten::AttentionGradients& room) const = 0;
};

// Gradients before un-rotation from d_out [T, H * dv], for a state with its q, k and v; gradients of the sinks are accumulated in their
// weight. The CPU kernels write into `room`; LibTorch's back-ends allocate tensors.
aten::AttentionGradients attend_backward(const at::Tensor& d_out, const aten::AttentionState& state, const AttentionArgs& args,
                                         const aten::AttentionGradients& room);

// Appends k and v of args.seq new positions to the cache; returns [T, H * dv] for their queries.
at::Tensor attend_cached(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionArgs& args, KvCache& cache);

}  // namespace halftone
