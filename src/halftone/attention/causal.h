#pragma once
#include <cstdint>

#include "halftone/base/dtype.h"

namespace halftone {

// Causal softmax attention on the CPU: out = softmax(scale * q k^T + mask) v for every head, and its gradient. The mask is aligned at the
// end: query i is at position i + kv_len + gap - q_len and attends to the keys up to its position: training q_len == kv_len, decoding with
// a KV cache q_len < kv_len. Other processes may hold the `gap` keys after these; only the local keys are attended to.
// Query head h reads key/value head h / (heads / kv_heads).
struct AttentionShape {
  int64_t batch = 0, q_len = 0, kv_len = 0;
  int heads = 0, kv_heads = 0, head_dim = 0;  // head_dim: queries and keys, a multiple of 8 up to 256
  int64_t window = 0;                         // if > 0: a query attends to the last `window` positions, its own included
  int v_dim = 0;                              // head size of values and outputs, same limits; 0: head_dim
  int64_t gap = 0;                            // positions between the last key and the last query
  int64_t positions() const { return kv_len + gap; }
};

// Element (b, t, h, d) of a tensor is at b * batch_stride + t * row + h * head + d, in elements. Slices of a fused [B * S, (H + 2 * Hkv) *
// hd] projection are given by their first element and the common row length. A batch stride of 0 means contiguous rows (length * row), a
// `head` of 0 contiguous heads.
struct AttentionLayout {
  int64_t row = 0, batch_stride = 0, head = 0;
};

struct AttentionForward {
  AttentionShape shape;
  DType dtype = DType::bf16;  // dtype of q, k, v and out: bf16 or f32; softmax and sums are fp32
  float scale = 1;            // positive, usually head_dim^-0.5
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* out = nullptr;
  float* lse = nullptr;  // [B, H, q_len] natural logarithm of the softmax sum, or null; -inf if no key is visible
  AttentionLayout q_layout, k_layout, v_layout, out_layout;
  const int32_t* doc_start = nullptr;  // [B, kv_len + gap] first key visible to a position, or null
  // The bits of a query's output depend on the query and its visible keys alone: not on the other queries of the call, on the place of
  // its document in the row or on earlier keys that a window hides. Keys are summed in blocks that begin at multiples of
  // kInvariantKeys from the document's first key, or from key 0 without documents. Without a gap.
  bool invariant = false;
  int64_t lse_head = 0;  // elements between heads of lse; 0: q_len
};
inline constexpr int64_t kInvariantKeys = 128;

// dq, dk and dv are overwritten, each in its own layout; out and lse come from the forward pass.
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

// A query without visible keys (possible if q_len > kv_len, or with a gap) gets a zero row. Results do not depend on the thread count.
// Throws Error on shapes, types or layouts outside the above; a batch or length of zero is a no-op.
void causal_attention_forward(const AttentionForward& p);
void causal_attention_backward(const AttentionBackward& p);

}  // namespace halftone
