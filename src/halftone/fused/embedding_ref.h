#pragma once
#include "halftone/fused/embedding.h"
#include "halftone/fused/ref.h"

namespace halftone {

// [T, D]
inline std::vector<double> embedding_forward_ref(const EmbeddingForward& p) {
  std::vector<double> out;
  for (int64_t t = 0; t < p.tokens; ++t) {
    for (int64_t i = 0; i < p.cols; ++i)
      out.push_back(element_at(p.table, p.table_dtype, integer_at(p.ids, p.id_dtype, t) * p.table_stride + i));
  }
  return out;
}

// [V, D]: the gradient only, without the previous contents of dtable
inline std::vector<double> embedding_backward_ref(const EmbeddingBackward& p) {
  std::vector<double> out(static_cast<size_t>(p.vocab * p.cols));
  for (int64_t t = 0; t < p.tokens; ++t) {
    for (int64_t i = 0; i < p.cols; ++i) {
      out[static_cast<size_t>(integer_at(p.ids, p.id_dtype, t) * p.cols + i)] += element_at(p.dy, p.dtype, t * p.dy_stride + i);
    }
  }
  return out;
}

}  // namespace halftone
