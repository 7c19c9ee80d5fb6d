#pragma once
#include <cstdint>

#include "halftone/base/dtype.h"
#include "halftone/base/ignored_label.h"

namespace halftone {

// Cross-entropy of a chunk of rows and, in the same pass over a row, the gradient of the logits:
//   lse = log sum_v exp(z_v),  loss = lse - z_label,
//   dz = ((1 + 2 * z_loss * lse) * exp(z - lse) - onehot(label)) * grad_scale * *grad_factor:
// that of loss + z_loss * lse^2 (Chowdhery et al. 2022, section 5), of which `loss` is the first term alone.
// Rows labelled kIgnoredLabel have loss 0 and gradient 0. Rows are contiguous, strides count elements.
struct CrossEntropy {
  int64_t rows = 0, vocab = 0;   // R, V
  DType dtype = DType::bf16;     // of logits: bf16 or f32
  const void* logits = nullptr;  // [R, V]
  int64_t logits_stride = 0;
  DType label_dtype = DType::s64;  // s64 or s32
  const void* labels = nullptr;    // [R]
  float z_loss = 0.0f;
  float grad_scale = 1.0f;             // usually 1 / valid tokens of the whole step
  const float* grad_factor = nullptr;  // one number where the logits are, or null for 1: what the host does not know
  DType dlogits_dtype = DType::bf16;   // bf16 or f32
  void* dlogits = nullptr;             // [R, V] or null (evaluation); may be logits when the types are equal
  int64_t dlogits_stride = 0;
  float* loss = nullptr;  // [R] or null
  float* lse = nullptr;   // [R] or null
  // Where the V columns are a part of a vocabulary, those from first_column on, a call without dlogits gives lse (of these columns) and
  // target, whose loss is not the whole's; one with whole_lse gives dlogits.
  int64_t first_column = 0, whole_vocab = 0;  // 0: V is all of it
  const float* whole_lse = nullptr;           // [R] or null
  float* target = nullptr;                    // [R] or null: z_label, 0 where the label is of no column here
};
struct CrossEntropyResult {
  double loss_sum = 0;  // rows added in order, in fp64
  int64_t valid = 0;    // rows whose label is not ignored
};
// Error when a label is neither in the whole vocabulary nor kIgnoredLabel.
CrossEntropyResult cross_entropy(const CrossEntropy& p);

}  // namespace halftone
