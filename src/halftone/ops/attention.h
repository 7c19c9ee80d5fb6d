#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "halftone/ops/activation.h"

namespace halftone {

class AttentionPort;
class RecomputeResults;
struct Weight;

// Documents in packed rows: each is a contiguous run of positions in one row, and its tokens attend to no other document.
struct Documents {
  at::Tensor start;       // int32 [T]: position in its row where a token's document begins; undefined: no document boundaries
  at::Tensor offsets;     // int32 [documents + 1]: index of each document's first token among the T tokens, then T
  int64_t longest = 0;    // tokens
  at::Tensor host_start;  // int32 [B, S]: `start` in host memory
  // Set when queries and keys cover different positions (AttentionArgs::gap): `offsets` index queries, these index keys. Undefined: the
  // same.
  at::Tensor key_offsets;
  int64_t longest_keys = 0;
  // Set when other processes have some positions of these rows: the tensors hold this process's, positions are explicit, and the port
  // knows the documents, which are undefined here. Null: full rows.
  std::shared_ptr<const AttentionPort> port;
};
// From document starts, int32 [B, S] in host memory; copied to the device asynchronously. Error naming a position that neither begins a
// document nor belongs to that of the position before.
Documents documents_of(const at::Tensor& start, c10::Device device);

struct AttentionArgs {
  int64_t batch = 0, seq = 0;  // rows of qkv = batch * seq
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t v_dim = 0;           // elements of a value head; 0: head_dim
  double scale = 0;            // usually head_dim^-0.5
  at::Tensor cos, sin;         // fp32 [positions, rotated / 2]: for the first `rotated` elements of a head, all or fewer
  bool rotate_halves = false;  // pairs (j, j + d/2) instead of neighbours (2j, 2j + 1)
  at::Tensor positions;        // int32 [T] or undefined: 0..seq-1 in every row of the batch
  Documents documents;         // undefined: a token sees all earlier tokens of its row
  int64_t window = 0;          // above 0: a token sees only the last `window` of these, itself included
  int64_t gap = 0;             // for a call that covers part of the keys: the last query is this many positions after the last key
  // RMSNorm of every head of q and k before RoPE, weights [head_dim]; null: none.
  Weight *q_norm = nullptr, *k_norm = nullptr;
  double norm_eps = 0;
  // Sink logit per head [heads] that joins every softmax with a zero value: out * sigmoid(lse - sink). Null: none.
  Weight* sinks = nullptr;
};

// Causal self-attention with rotary embeddings: qkv[T, (H + 2 Hkv) * d] -> [T, H * d]. Consumes the storage of `qkv`: q and k are rotated
// in place unless they are normalised (the producer never reads qkv again). `results`: those kept for a recomputed block
// (ops/recompute_results.h).
Activation causal_attention(const at::Tensor& qkv, const AttentionArgs& args, RecomputeResults* results = nullptr);

// KV cache of one layer: keys [batch, capacity, Hkv * d] and values [batch, capacity, Hkv * dv] of the positions so far.
struct KvCache {
  at::Tensor k, v;
  int64_t length = 0;
};

// The same without autograd for `args.seq` new positions after cache.length earlier ones; appends them to the cache.
at::Tensor causal_attention_cached(const at::Tensor& qkv, const AttentionArgs& args, KvCache& cache);

}  // namespace halftone
