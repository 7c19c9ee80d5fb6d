#pragma once
#include <cstdint>

#include "halftone/base/dtype.h"

namespace halftone {

// Panels: layout of a CPU GEMM operand that is contracted along its rows. Matrix [k, n], k contracted, becomes
//   [n / 16] panels x [groups of k] x [16 columns] x [G consecutive k]
// with G = 4 (s8), 2 (bf16), 1 (f32). One group of 16 columns is 64 bytes: one AVX-512 register for vpdpbusd / vdpbf16ps;
// 16 groups (1 KiB) are one AMX tile for TDPBSSD / TDPBF16PS. Groups and columns are zero-padded to multiples of 16.
// A panel is contiguous; panels follow each other.
inline constexpr int64_t kPanelColumns = 16;
inline constexpr int64_t kTileGroups = 16;
inline constexpr int64_t kGroupBytes = 64;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// G: consecutive elements along k in a 4-byte unit.
constexpr int64_t group_size(DType type) { return 4 / static_cast<int64_t>(size_of(type)); }
// Groups per panel, padding included; bytes per panel; bytes of the full matrix.
constexpr int64_t panel_groups(DType type, int64_t k) { return round_up(ceil_div(k, group_size(type)), kTileGroups); }
constexpr int64_t panel_bytes(DType type, int64_t k) { return panel_groups(type, k) * kGroupBytes; }
constexpr int64_t panels_bytes(DType type, int64_t k, int64_t n) { return ceil_div(n, kPanelColumns) * panel_bytes(type, k); }
// Byte offset of element (row of k, column of n).
constexpr int64_t panel_offset(DType type, int64_t k, int64_t row, int64_t column) {
  const int64_t g = group_size(type);
  return column / kPanelColumns * panel_bytes(type, k) + row / g * kGroupBytes + column % kPanelColumns * 4 +
         row % g * static_cast<int64_t>(size_of(type));
}

}  // namespace halftone
