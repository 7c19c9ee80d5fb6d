// Register-blocked GEMM over panels: kRows rows x kPanels panels of accumulators; each step multiplies one broadcast unit of A by one group
// of B. V names the vector type and its dot products; it is local to the including file.
#pragma once
#include <algorithm>

#include "halftone/gemm/cpu/kernels.h"

namespace halftone::gemm {

// Register loops must be unrolled completely; otherwise the sums are spilled to memory.
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

template <class V, class Dot, int kPanels>
inline void register_rows(const TileArgs& t, int64_t panel) {
  constexpr int kRest = 16 % V::kRows;  // rows left over in a half; the rows of a half have one stride
  const std::byte* b = t.b + panel * t.panel_stride;
  for (int64_t r = 0; r<t.rows; r += r % 16 + V::kRows> 16 ? kRest : V::kRows) {
    const std::byte* a = t.a.data + r / 16 * t.a.half + r % 16 * t.a.row;
    std::byte* acc = static_cast<std::byte*>(t.acc) + (r * t.acc_ld + panel * kPanelColumns) * 4;
    if constexpr (kRest != 0) {
      if (r % 16 + V::kRows > 16) {
        register_block<V, Dot, kRest, kPanels>(t, a, acc, b);
        continue;
      }
    }
    register_block<V, Dot, V::kRows, kPanels>(t, a, acc, b);
  }
}

// Panels are the outer loop, so that those of one register block stay in L1 while the rows pass.
template <class V, class Dot>
void register_tile(const TileArgs& t) {
  int64_t p = 0;
  for (; p + V::kPanels <= t.panels; p += V::kPanels) register_rows<V, Dot, V::kPanels>(t, p);
  if constexpr (V::kPanels > 2)
    for (; p + 2 <= t.panels; p += 2) register_rows<V, Dot, 2>(t, p);
  if constexpr (V::kPanels > 1)
    for (; p < t.panels; ++p) register_rows<V, Dot, 1>(t, p);
}

// Dot products of unsigned by signed codes: 128 is added to B, which adds 128 * sum(a) to every element of a row. int32 arithmetic wraps,
// so subtracting it afterwards is exact.
template <class V, class Dot>
void offset_tile(const TileArgs& t) {
  alignas(64) int32_t sums[kBlockRows] = {};
  const auto add = [](typename Dot::Acc sum, const std::byte* a) { return Dot::dot(sum, V::loadi(a), Dot::offset()); };
  for (int64_t h = 0; h * 16 < t.rows; ++h) {
    const std::byte* a = t.a.data + h * t.a.half;
    if (t.a.row == 4) {  // panels: one lane per row
      for (int64_t r = 0; r < 16; r += V::kLanes) {
        auto sum = Dot::zero();
        for (int64_t g = 0; g < t.groups; ++g) sum = add(sum, a + g * t.a.group + r * 4);
        Dot::store(sums + h * 16 + r, sum);
      }
      continue;
    }
    for (int64_t r = 0; r < std::min<int64_t>(16, t.rows - h * 16); ++r) {
      const std::byte* row = a + r * t.a.row;
      auto sum = Dot::zero();
      int64_t g = 0;
      for (; g + V::kLanes <= t.groups; g += V::kLanes) sum = add(sum, row + g * 4);
      if (g < t.groups) {
        alignas(64) std::byte rest[64] = {};
        __builtin_memcpy(rest, row + g * 4, static_cast<size_t>(t.groups - g) * 4);
        sum = add(sum, rest);
      }
      sums[h * 16 + r] = V::sum_of(sum);
    }
  }
  register_tile<V, Dot>(t);
  auto* acc = static_cast<int32_t*>(t.acc);
  for (int64_t r = 0; r < t.rows; ++r) {
    for (int64_t c = 0; c < t.panels * 16; c += V::kLanes) {
      int32_t* p = acc + r * t.acc_ld + c;
      Dot::store(p, V::subi(Dot::load(p), V::seti(static_cast<uint32_t>(sums[r]))));
    }
  }
}

// Splits 4-byte units; V::split returns the two units of each lane.
template <class V, class Split>
void widen_row(const std::byte* src, int64_t units, std::byte* out) {
  constexpr int64_t kBytes = V::kLanes * 4;
  int64_t u = 0;
  for (; u + V::kLanes <= units; u += V::kLanes)
    V::store_zipped(out + u * 8, Split::low(V::loadi(src + u * 4)), Split::high(V::loadi(src + u * 4)));
  if (u == units) return;
  alignas(64) std::byte from[kBytes] = {}, to[2 * kBytes];
  __builtin_memcpy(from, src + u * 4, static_cast<size_t>(units - u) * 4);
  V::store_zipped(to, Split::low(V::loadi(from)), Split::high(V::loadi(from)));
  __builtin_memcpy(out + u * 8, to, static_cast<size_t>(units - u) * 8);
}
template <class V, class Split>
void widen_panel(const std::byte* src, int64_t groups, std::byte* out) {
  for (int64_t g = 0; g < groups; ++g, src += kGroupBytes, out += 2 * kGroupBytes) {
    for (int64_t at = 0; at < kGroupBytes; at += V::kLanes * 4) {
      const auto units = V::loadi(src + at);
      V::store(out + at, Split::low(units));
      V::store(out + kGroupBytes + at, Split::high(units));
    }
  }
}
template <class V, class Split>
inline constexpr Widen kWiden{widen_row<V, Split>, widen_panel<V, Split>};

}  // namespace halftone::gemm
