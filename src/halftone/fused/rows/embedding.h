#pragma once
#include "halftone/fused/embedding.h"
#include "halftone/fused/simd.h"

namespace halftone::HALFTONE_SIMD {

inline int64_t id_at(const void* ids, DType type, int64_t t) {
  return type == DType::s64 ? static_cast<const int64_t*>(ids)[t] : static_cast<const int32_t*>(ids)[t];
}

[[gnu::flatten]] inline void embedding_forward_rows(const EmbeddingForward& p, int64_t begin, int64_t end) {
  with_float(p.table_dtype, [&](auto w) {
    with_float(p.dtype, [&](auto x) {
      const auto* table = static_cast<const typename decltype(w)::type*>(p.table);
      auto* out = static_cast<typename decltype(x)::type*>(p.out);
      for (int64_t t = begin; t < end; ++t) {
        const auto* row = table + id_at(p.ids, p.id_dtype, t) * p.table_stride;
        auto* y = out + t * p.out_stride;
        each_vector(0, p.cols, [&](int64_t i, auto lanes) { store(y + i, load(row + i, lanes), lanes); });
      }
    });
  });
}

// Processes columns [begin, end) of every token.
[[gnu::flatten]] inline void embedding_backward_columns(const EmbeddingBackward& p, int64_t begin, int64_t end) {
  with_float(p.dtype, [&](auto type) {
    const auto* dy = static_cast<const typename decltype(type)::type*>(p.dy);
    for (int64_t t = 0; t < p.tokens; ++t) {
      float* row = p.dtable + id_at(p.ids, p.id_dtype, t) * p.dtable_stride;
      const auto* grad = dy + t * p.dy_stride;
      each_vector(begin, end, [&](int64_t i, auto lanes) { store(row + i, load(row + i, lanes) + load(grad + i, lanes), lanes); });
    }
  });
}

}  // namespace halftone::HALFTONE_SIMD
