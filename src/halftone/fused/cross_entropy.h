#pragma once
#include <cstdint>

#include "halftone/base/dtype.h"
#include "halftone/base/ignored_label.h"

namespace halftone {

// Cross-entropy of a chunk of rows and, in the same pass over a row, the gradient of the logits:
//   lse = log sum_v exp(z_v),  loss = lse - z_label,
//   dz = ((1 + 2 * z_loss * lse) * exp(z - lse) - onehot(label)) * grad_scale * *grad_factor:
// the gradient of loss + z_loss * lse^2 (Chowdhery et al. 2022, section 5); `loss` contains the first term only.
// Rows labelled kIgnoredLabel have loss 0 and gradient 0. Rows are contiguous, strides are in elements.
struct CrossEntropy {
  int64_t rows = 0, vocab = 0;   // R, V
  DType dtype = DType::bf16;     // dtype of logits: bf16 or f32
  const void* logits = nullptr;  // [R, V]
  int64_t logits_stride = 0;
  DType label_dtype = DType::s64;  // s64 or s32
  const void* labels = nullptr;    // [R]
  float z_loss = 0.0f;
  float grad_scale = 1.0f;             // usually 1 / valid tokens of the whole step
  const float* grad_factor = nullptr;  // [1] on the logits' device, or null for 1: a factor unknown to the host
  DType dlogits_dtype = DType::bf16;   // bf16 or f32
  void* dlogits = nullptr;             // [R, V] or null (evaluation); may be logits if the types are equal
  int64_t dlogits_stride = 0;
  float* loss = nullptr;  // [R] or null
  float* lse = nullptr;   // [R] or null
  // Sharded vocabulary: the V columns start at first_column. A call without dlogits computes lse (over these columns) and target; its loss
  // is partial. A call with whole_lse computes dlogits.
  int64_t first_column = 0, whole_vocab = 0;  // 0: V is the full vocabulary
  const float* whole_lse = nullptr;           // [R] or null
  float* target = nullptr;                    // [R] or null: z_label, 0 if the label is outside these columns
};
struct CrossEntropyResult {
  double loss_sum = 0;  // fp64 sum over rows in order
  int64_t valid = 0;    // rows whose label is not ignored
};
// Throws Error if a label is neither in the full vocabulary nor kIgnoredLabel.
CrossEntropyResult cross_entropy(const CrossEntropy& p);

}  // namespace halftone
