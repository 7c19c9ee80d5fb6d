#pragma once
#include <cstdint>

#include "halftone/base/dtype.h"

namespace halftone {

// Causal softmax attention on the CPU: out = softmax(scale * q k^T + mask) v for every head, and its gradient.
// The mask is aligned at the end: query i of a row stands at position i + kv_len + gap - q_len and sees the keys up to it
// (all of them when training, q_len == kv_len; a cache of earlier keys when generating, q_len < kv_len; where others hold the `gap`
// keys after these, these alone).
// Query head h reads key/value head h / (heads / kv_heads).
struct AttentionShape {
  int64_t batch = 0, q_len = 0, kv_len = 0;
  int heads = 0, kv_heads = 0, head_dim = 0;  // head_dim: of queries and keys, a multiple of 8 up to 256
  int64_t window = 0;                         // above 0: a query sees the last `window` of these keys, its own position counted
  int v_dim = 0;                              // of values and outputs, likewise; 0: head_dim
  int64_t gap = 0;                            // positions between the last key's and the last query's
  int64_t positions() const { return kv_len + gap; }
};

// Element (b, t, h, d) of a tensor lies at b * batch_stride + t * row + h * head + d, in elements; slices of a fused
// [B * S, (H + 2 * Hkv) * hd] projection are given by their first element and the common row length. A batch stride of 0
// means rows that follow one another (length * row), a `head` of 0 heads that do.
struct AttentionLayout {
  int64_t row = 0, batch_stride = 0, head = 0;
};

struct AttentionForward {
  AttentionShape shape;
  DType dtype = DType::bf16;  // of q, k, v and out: bf16 or f32; softmax and sums are fp32
  float scale = 1;            // positive, usually head_dim^-0.5
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* out = nullptr;
  float* lse = nullptr;  // [B, H, q_len] natural logarithm of the softmax sum, or null; -inf where nothing is seen
  AttentionLayout q_layout, k_layout, v_layout, out_layout;
  const int32_t* doc_start = nullptr;  // [B, kv_len + gap] first key position that a position sees, or null
};

// dq, dk and dv are written, not accumulated, each in its own layout; out, lse are the forward's results.
struct AttentionBackward {
  AttentionShape shape;
  DType dtype = DType::bf16;
  float scale = 1;
  const void *q = nullptr, *k = nullptr, *v = nullptr, *out = nullptr, *d_out = nullptr;
  const float* lse = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  AttentionLayout q_layout, k_layout, v_layout, out_layout, d_out_layout, dq_layout, dk_layout, dv_layout;
  const int32_t* doc_start = nullptr;
};

// A query that sees no key (possible when q_len > kv_len, or with a gap) gets a zero row. The results do not depend on the number of
// threads. Throws Error on shapes, types or layouts outside the above; a batch or length of zero is a no-op.
void causal_attention_forward(const AttentionForward& p);
void causal_attention_backward(const AttentionBackward& p);

}  // namespace halftone
