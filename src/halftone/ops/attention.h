#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "halftone/ops/activation.h"

namespace halftone {

class ContextRows;
class Saves;
struct Weight;

// Documents of packed rows: each is a run of places of one row, and its tokens see no other.
struct Documents {
  at::Tensor start;       // int32 [T]: place in its row where a token's document begins; undefined: rows are not divided
  at::Tensor offsets;     // int32 [documents + 1]: which of the T tokens each begins with, and T
  int64_t longest = 0;    // tokens
  at::Tensor host_start;  // int32 [B, S]: `start` in host memory
  // Where queries and keys are different places (ops/context_rows.h): offsets are of queries, these of keys. Undefined: the same.
  at::Tensor key_offsets;
  int64_t longest_keys = 0;
};
// From their starts, int32 [B, S] in host memory; copied to the device without waiting for it. Error naming a place that neither
// begins a document nor belongs to that of the place before.
Documents documents_of(const at::Tensor& start, c10::Device device);

struct AttentionArgs {
  int64_t batch = 0, seq = 0;  // rows of qkv = batch * seq
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t v_dim = 0;           // elements of a value head; 0: head_dim
  double scale = 0;            // usually head_dim^-0.5
  at::Tensor cos, sin;         // fp32 [positions, rotated / 2]: of the first `rotated` elements of a head, all or fewer
  bool rotate_halves = false;  // pairs (j, j + d/2) instead of neighbours (2j, 2j + 1)
  at::Tensor positions;        // int32 [T] or undefined: 0..seq-1 in every row of the batch
  Documents documents;         // without: a token sees all before it in its row
  int64_t window = 0;          // above 0: of these only the last, itself counted
  // The rows are shared with other processes: `seq` places of each are here, with explicit positions, and what documents there are is in
  // the context instead. Null: whole rows.
  std::shared_ptr<const ContextRows> context;
  int64_t gap = 0;  // of a call that covers a part of the keys (ContextRows::Call)
  // RMSNorm of every head of q and k before they are rotated, weights [head_dim]; null: none.
  Weight *q_norm = nullptr, *k_norm = nullptr;
  double norm_eps = 0;
  // A score [heads] that every softmax of a head has beside those of its keys, with no value: out * sigmoid(lse - sink). Null: none.
  Weight* sinks = nullptr;
};

// Causal self-attention with rotary embeddings: qkv[T, (H + 2 Hkv) * d] -> [T, H * d]. The storage of `qkv` is consumed:
// q and k are rotated in place, unless they are normalised (the producer never reads it again). `saves`: of a block that is recomputed
// (ops/saves.h).
Activation causal_attention(const at::Tensor& qkv, const AttentionArgs& args, Saves* saves = nullptr);

// Keys [batch, capacity, Hkv * d] and values [batch, capacity, Hkv * dv] of the positions seen so far, one layer.
struct KvCache {
  at::Tensor k, v;
  int64_t length = 0;
};

// The same without a graph for `args.seq` new positions after cache.length earlier ones; appends them to the cache.
at::Tensor causal_attention_cached(const at::Tensor& qkv, const AttentionArgs& args, KvCache& cache);

}  // namespace halftone
