#pragma once
#include <cstring>

#include "halftone/gemm/cpu/gemm.h"

namespace halftone::gemm::ref {

// Element (row of k, column) of a panel matrix as double.
inline double panel_element(const void* panels, DType type, int64_t k, int64_t row, int64_t column) {
  const auto* p = static_cast<const std::byte*>(panels) + panel_offset(type, k, row, column);
  if (type == DType::s8) return static_cast<double>(*reinterpret_cast<const int8_t*>(p));
  if (type == DType::bf16) return static_cast<double>(static_cast<float>(*reinterpret_cast<const bf16*>(p)));
  return static_cast<double>(*reinterpret_cast<const float*>(p));
}

inline double a_element(const Gemm& g, int64_t i, int64_t j) {
  if (g.a_panels) return panel_element(g.a, g.type, g.k, j, i);
  const int64_t at = i * g.lda + j;
  if (g.type == DType::s8) return static_cast<double>(static_cast<const int8_t*>(g.a)[at]);
  if (g.type == DType::bf16) return static_cast<double>(static_cast<float>(static_cast<const bf16*>(g.a)[at]));
  return static_cast<double>(static_cast<const float*>(g.a)[at]);
}

// Scalar reference of gemm::run: accumulates in fp64 (exact for s8), then the fp32 epilogue of gemm.h.
inline void run(const Gemm& g) {
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t j = 0; j < g.n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < g.k; ++l) sum += a_element(g, i, l) * panel_element(g.b, g.type, g.k, l, j);
      auto v = static_cast<float>(sum);
      if (g.scale_m != nullptr) v *= g.scale_m[i];
      if (g.scale_n != nullptr) v *= g.scale_n[j];
      if (g.bias != nullptr) v += g.bias[j];
      if (g.c_type == DType::f32) {
        float& c = static_cast<float*>(g.c)[i * g.ldc + j];
        c = g.accumulate ? v + c : v;
      } else {
        bf16& c = static_cast<bf16*>(g.c)[i * g.ldc + j];
        c = bf16(g.accumulate ? v + static_cast<float>(c) : v);
      }
    }
  }
}

}  // namespace halftone::gemm::ref
