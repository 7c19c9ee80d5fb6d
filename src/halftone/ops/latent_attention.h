#pragma once
#include "halftone/ops/attention.h"

namespace halftone {

// Multi-head latent attention after its projections (DeepSeek-V2, arXiv 2405.04434, section 2.1), causal; documents, windows and sinks as
// in causal_attention. With rope = 2 * cos.size(1), nope = args.head_dim - rope, H = args.heads:
//   q       [T, H * (nope + rope)]   the last `rope` elements of every head are rotated
// [T, H * (nope + v_dim)]  every head's key, without the rotated part, and its value
// [T, rope]                the rotated part of the keys, shared by all heads
// -> [T, H * v_dim]. Each may be columns of a wider tensor. Consumes the storage of q: it is rotated in place, unless its block is
// recomputed (`results`), because these keep the unrotated output of the projection.
Activation latent_attention(const at::Tensor& q, const at::Tensor& kv, const at::Tensor& k_rope, const AttentionArgs& args,
                            RecomputeResults* results = nullptr);

// The same without autograd for `args.seq` new positions after cache.length earlier ones; appends keys and values of all heads to the
// cache: k [batch, capacity, H * (nope + rope)], v [batch, capacity, H * v_dim].
at::Tensor latent_attention_cached(const at::Tensor& q, const at::Tensor& kv, const at::Tensor& k_rope, const AttentionArgs& args,
                                   KvCache& cache);

}  // namespace halftone
