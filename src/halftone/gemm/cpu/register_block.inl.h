// A register-blocked product over panels: kRows rows x kPanels panels of accumulators, one broadcast unit of A against one
// group of B per step. V names the vector type and its dot products; it is local to the including file.
#pragma once
#include "halftone/gemm/cpu/kernels.h"

namespace halftone::gemm {

template <class V, class Dot, int kRows, int kPanels>
inline void register_block(const TileArgs& t, const std::byte* a, std::byte* acc, const std::byte* b) {
  using R = typename Dot::Acc;
  constexpr int kParts = V::kParts;  // registers per group of 16 columns
  R sum[kRows][kPanels * kParts];
  auto* base = reinterpret_cast<typename Dot::Element*>(acc);
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kPanels * kParts; ++j) sum[i][j] = t.first ? Dot::zero() : Dot::load(base + i * t.acc_ld + j * (16 / kParts));
  const int64_t row = t.a.row, step = t.a.group;
  for (int64_t g = 0; g < t.groups; ++g, a += step, b += kGroupBytes) {
    typename Dot::B v[kPanels * kParts];
    for (int p = 0; p < kPanels; ++p)
      for (int h = 0; h < kParts; ++h) v[p * kParts + h] = Dot::load_b(b + p * t.panel_stride + h * (64 / kParts));
    for (int i = 0; i < kRows; ++i) {
      const auto x = Dot::broadcast(a + i * row);
      for (int j = 0; j < kPanels * kParts; ++j) sum[i][j] = Dot::dot(sum[i][j], x, v[j]);
    }
  }
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kPanels * kParts; ++j) Dot::store(base + i * t.acc_ld + j * (16 / kParts), sum[i][j]);
}

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
