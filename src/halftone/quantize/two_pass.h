#pragma once
#include <atomic>
#include <cstring>
#include <vector>

#include "halftone/base/error.h"
#include "halftone/base/parallel.h"
#include "halftone/quantize/isa.h"
#include "halftone/quantize/kernels.h"
#include "halftone/quantize/panels.h"

// Internal: shared code of the row-and-column quantisers.
namespace halftone::quantize {

inline constexpr int64_t kTileRows = 64;  // both passes assign multiples of this, so a thread finds its rows in its L2

struct Source {
  const void* x;
  DType type;
  int64_t rows, cols, ld;

  const void* row(int64_t r, int64_t c = 0) const {
    return static_cast<const std::byte*>(x) + (r * ld + c) * static_cast<int64_t>(size_of(type));
  }
  float at(int64_t r, int64_t c) const {
    const int64_t i = r * ld + c;
    return type == DType::f32 ? static_cast<const float*>(x)[i] : static_cast<float>(static_cast<const bf16*>(x)[i]);
  }
};

inline void check_source(const char* what, const Source& s) {
  check(s.type == DType::bf16 || s.type == DType::f32, "{}: expected bf16 or f32 elements, found type {}", what, static_cast<int>(s.type));
  check(s.rows >= 0 && s.cols >= 0, "{}: expected sizes >= 0, found {} x {}", what, s.rows, s.cols);
  check(s.rows <= 1 || s.ld >= s.cols, "{}: expected a row stride >= {} columns, found {}", what, s.cols, s.ld);
  check(s.x != nullptr || s.rows * s.cols == 0, "{}: no input for {} x {} elements", what, s.rows, s.cols);
}

inline const Kernels& kernels(Isa isa) {
  check(available(isa), "instruction set {} is not available on this processor", name(isa));
  return isa >= Isa::avx512 ? kernels_avx512() : kernels_v3();
}

// Grows, never shrinks: no allocation in the steady state.
template <class T>
T* scratch(std::vector<T>& v, int64_t n) {
  if (static_cast<int64_t>(v.size()) < n) v.resize(static_cast<size_t>(n));
  return v.data();
}

// First pass, by rows: on_row(r, amax bits of the row) for every row if by_row; with by_col also the amax of every column, then on_col(c,
// amax bits). Second pass, if by_col: on_tile(first row, last row) in tiles of kTileRows rows.
template <class Row, class Col, class Tile>
void two_pass(const Source& s, const Kernels& k, bool by_row, bool by_col, Row&& on_row, Col&& on_col, Tile&& on_tile) {
  static thread_local std::vector<uint32_t> buffer;
  const int64_t tiles = ceil_div(s.rows, kTileRows), slots = max_threads();
  const int64_t grain = std::max<int64_t>(1, (int64_t{1} << 14) / std::max<int64_t>(1, kTileRows * s.cols));
  uint32_t* partial = by_col ? scratch(buffer, slots * s.cols) : nullptr;
  std::atomic<int64_t> used = 0;
  parallel_for(tiles, grain, [&](int64_t begin, int64_t end) {
    uint32_t* col_amax = nullptr;
    if (by_col) {
      col_amax = partial + used.fetch_add(1) * s.cols;
      std::memset(col_amax, 0, static_cast<size_t>(s.cols) * sizeof(uint32_t));
    }
    constexpr int64_t kRows = 8;
    uint32_t row_amax[kRows];
    const int64_t last = std::min(s.rows, end * kTileRows);
    for (int64_t r = begin * kTileRows; r < last; r += kRows) {
      const int64_t n = std::min(kRows, last - r);
      k.amax(s.row(r), s.type, n, s.cols, s.ld, by_row ? row_amax : nullptr, col_amax);
      if (by_row)
        for (int64_t i = 0; i < n; ++i) on_row(r + i, row_amax[i]);
    }
  });
  if (!by_col) return;
  for (int64_t c = 0; c < s.cols; ++c) {
    uint32_t amax = 0;
    for (int64_t i = 0; i < used.load(); ++i) amax = std::max(amax, partial[i * s.cols + c]);
    on_col(c, amax);
  }
  parallel_for(tiles, grain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) on_tile(t * kTileRows, std::min(s.rows, (t + 1) * kTileRows));
  });
}

}  // namespace halftone::quantize
