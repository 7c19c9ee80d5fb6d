// A register-blocked product over panels: kRows rows x kPanels panels of accumulators, one broadcast unit of A against one
// group of B per step. V names the vector type and its dot products; it is local to the including file.
#pragma once
#include "halftone/gemm/cpu/kernels.h"

namespace halftone::gemm {

// The loops over registers must be unrolled completely, or the sums live in memory.
#define HALFTONE_UNROLL _Pragma("GCC unroll 32")

template <class V, class Dot, int kRows, int kPanels>
inline void register_block(const TileArgs& t, const std::byte* a, std::byte* acc, const std::byte* b) {
  constexpr int kParts = V::kParts, kWidth = kPanels * kParts;  // registers per group of 16 columns, per row of the block
  constexpr int64_t kLanes = 16 / kParts;
  typename Dot::Acc sum[kRows][kWidth];
  auto* base = reinterpret_cast<typename Dot::Element*>(acc);
  const int64_t ld = t.acc_ld, row = t.a.row, step = t.a.group, panel = t.panel_stride;
  // clang-format off
  HALFTONE_UNROLL for (int i = 0; i < kRows; ++i) {
    HALFTONE_UNROLL for (int j = 0; j < kWidth; ++j) sum[i][j] = t.first ? Dot::zero() : Dot::load(base + i * ld + j * kLanes);
  }
  for (int64_t g = 0; g < t.groups; ++g, a += step, b += kGroupBytes) {
    typename Dot::B v[kWidth];
    HALFTONE_UNROLL for (int j = 0; j < kWidth; ++j) v[j] = Dot::load_b(b + j / kParts * panel + j % kParts * (64 / kParts));
    HALFTONE_UNROLL for (int i = 0; i < kRows; ++i) {
      const auto x = Dot::broadcast(a + i * row);
      HALFTONE_UNROLL for (int j = 0; j < kWidth; ++j) sum[i][j] = Dot::dot(sum[i][j], x, v[j]);
    }
  }
  HALFTONE_UNROLL for (int i = 0; i < kRows; ++i) {
    HALFTONE_UNROLL for (int j = 0; j < kWidth; ++j) Dot::store(base + i * ld + j * kLanes, sum[i][j]);
  }
  // clang-format on
}
#undef HALFTONE_UNROLL

template <class V, class Dot>
void register_tile(const TileArgs& t) {
  constexpr int kRows = V::kRows;
  static_assert(16 % kRows == 0);
  for (int64_t r = 0; r < t.rows; r += kRows) {
    const std::byte* a = t.a.data + r / 16 * t.a.half + r % 16 * t.a.row;
    std::byte* acc = static_cast<std::byte*>(t.acc) + r * t.acc_ld * 4;
    int64_t p = 0;
    const auto at = [&](int64_t panel) { return t.b + panel * t.panel_stride; };
    for (; p + V::kPanels <= t.panels; p += V::kPanels) register_block<V, Dot, kRows, V::kPanels>(t, a, acc + p * 64, at(p));
    if constexpr (V::kPanels > 2)
      for (; p + 2 <= t.panels; p += 2) register_block<V, Dot, kRows, 2>(t, a, acc + p * 64, at(p));
    for (; p < t.panels; ++p) register_block<V, Dot, kRows, 1>(t, a, acc + p * 64, at(p));
  }
}

}  // namespace halftone::gemm
