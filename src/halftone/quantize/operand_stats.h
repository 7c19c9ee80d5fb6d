#pragma once
#include <atomic>
#include <cstring>
#include <vector>

#include "halftone/base/parallel.h"
#include "halftone/quantize/operand_kernels.h"
#include "halftone/quantize/panels.h"
#include "halftone/quantize/stochastic.h"

// Internal: the given matrix with the statistics that quantize_operand computes before encoding.
namespace halftone::quantize {

inline constexpr int64_t kTileRows = 64;  // all passes assign multiples of this,
                                          // so a thread finds its rows in its L2

struct Source {
  const void* x;
  DType type;
  int64_t rows, cols, ld;

  const void* row(int64_t r, int64_t c = 0) const {
    return static_cast<const std::byte*>(x) + (r * ld + c) * static_cast<int64_t>(size_of(type));
  }
  // Calls f(begin, end) for ranges of tiles of kTileRows rows in parallel.
  template <class F>
  void over_tiles(F&& f) const {
    const int64_t grain = std::max<int64_t>(1, (int64_t{1} << 14) / std::max<int64_t>(1, kTileRows * cols));
    parallel_for(ceil_div(rows, kTileRows), grain, std::forward<F>(f));
  }
};

// Grows, never shrinks: no allocation in the steady state.
template <class T>
T* scratch(std::vector<T>& v, int64_t n) {
  if (static_cast<int64_t>(v.size()) < n) v.resize(static_cast<size_t>(n));
  return v.data();
}

// bits32(|x|) maxima: calls on_row(r, amax) for every row while it is in cache and, if `columns`, then on_column(c, amax).
template <class OnRow, class OnColumn>
void over_amax(const Source& s, const OperandKernels& k, bool columns, OnRow&& on_row, OnColumn&& on_column) {
  static thread_local std::vector<uint32_t> buffer;
  uint32_t* partial = columns ? scratch(buffer, max_threads() * s.cols) : nullptr;
  std::atomic<int64_t> used = 0;
  s.over_tiles([&](int64_t begin, int64_t end) {
    uint32_t* col_amax = nullptr;
    if (columns) {
      col_amax = partial + used.fetch_add(1) * s.cols;
      std::memset(col_amax, 0, static_cast<size_t>(s.cols) * sizeof(uint32_t));
    }
    constexpr int64_t kRows = 8;
    uint32_t row_amax[kRows];
    const int64_t last = std::min(s.rows, end * kTileRows);
    for (int64_t r = begin * kTileRows; r < last; r += kRows) {
      const int64_t n = std::min(kRows, last - r);
      k.amax(s.row(r), s.type, n, s.cols, s.ld, row_amax, col_amax);
      for (int64_t i = 0; i < n; ++i) on_row(r + i, row_amax[i]);
    }
  });
  for (int64_t c = 0; columns && c < s.cols; ++c) {
    uint32_t amax = 0;
    for (int64_t i = 0; i < used.load(); ++i) amax = std::max(amax, partial[i * s.cols + c]);
    on_column(c, amax);
  }
}

// Integer maxima of bits32(|x|) over the elements without and with the sign bit (int4_scale).
struct SignedStats {
  std::vector<uint32_t> row_pos, row_neg, column_pos, column_neg;
  uint32_t pos = 0, neg = 0;
};
SignedStats signed_amax(const Source& s);

// Sum of |x| in the order of formats/pairwise_sum.h over the row-major elements.
double absolute_sum(const Source& s);

// 16-bit draws: that of element (r, c) is first[r * ld + c].
struct DrawTile {
  const uint16_t* first;
  int64_t ld;
};
constexpr int64_t draw_elements(int64_t rows, int64_t width) { return rows * (round_up(width, 8) + 8) + kDrawSlack; }
// Draws of rows x width elements at (r0, c0) of a matrix of `cols` columns; out has draw_elements(rows, width) elements. GroupLayout of 8
// draws begin at logical indices that are multiples of 8, hence the room before each row.
DrawTile draw_tile(const OperandKernels& k, const Rounding& how, int64_t cols, int64_t r0, int64_t c0, int64_t rows, int64_t width,
                   uint16_t* out);

}  // namespace halftone::quantize
