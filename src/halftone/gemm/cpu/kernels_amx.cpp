#include <algorithm>

#include "halftone/gemm/cpu/simd.inl.h"

namespace halftone::gemm {
namespace {

// All eight tiles are 16 rows x 64 bytes: 0-3 accumulate a 32 x 32 block of C, 4 and 5 hold A, 6 and 7 hold B.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

void enter() {
  static constexpr TileConfig config{};
  _tile_loadconfig(&config);
}
void leave() { _tile_release(); }

// TDPs on C tile c = A tile a . B tile b.
#define HALFTONE_TDP(c, a, b) \
  if constexpr (kInteger)     \
    _tile_dpbssd(c, a, b);    \
  else                        \
    _tile_dpbf16ps(c, a, b)

// Prefetch distance of B into L1, in steps.
constexpr int64_t kAhead = 2;

template <bool kInteger>
void tile(const TileArgs& t) {
  auto* acc = static_cast<std::byte*>(t.acc);
  const int64_t ld = t.acc_ld * 4;
  const bool two_rows = t.rows > 16, two_cols = t.panels > 1;
  const std::byte *a0 = t.a.data, *a1 = two_rows ? a0 + t.a.half : a0;
  const std::byte *b0 = t.b, *b1 = two_cols ? b0 + t.panel_stride : b0;
  const int64_t second = b1 - b0, steps = t.groups / kTileGroups;
  if (t.first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, acc, ld);
    if (two_cols) _tile_loadd(1, acc + 64, ld);
    if (two_rows) _tile_loadd(2, acc + 16 * ld, ld);
    if (two_rows && two_cols) _tile_loadd(3, acc + 16 * ld + 64, ld);
  }
  const int64_t slice = t.pending == nullptr ? 0 : ceil_div(t.pending->rows, std::max<int64_t>(steps, 1));
  int64_t finished = 0;
  for (int64_t i = 0; i < steps; ++i) {
    _tile_loadd(4, a0, t.a.row);
    _tile_loadd(6, b0, 64);
    HALFTONE_TDP(0, 4, 6);
    _tile_loadd(5, a1, t.a.row);
    HALFTONE_TDP(2, 5, 6);
    _tile_loadd(7, b1, 64);
    HALFTONE_TDP(1, 4, 7);
    HALFTONE_TDP(3, 5, 7);
    a0 += t.a.tile, a1 += t.a.tile, b0 += 1024, b1 += 1024;
    const std::byte* ahead = i + kAhead < steps ? b0 + (kAhead - 1) * 1024 : t.next_b + (i + kAhead - steps) * 1024;
    for (int64_t line = 0; line < 1024; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(ahead + line), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(ahead + second + line), _MM_HINT_T0);
    }
    if (slice != 0 && finished < t.pending->rows) {
      const int64_t until = std::min(t.pending->rows, finished + slice);
      t.finish(*t.pending, finished, until);
      finished = until;
    }
  }
  if (slice != 0 && finished < t.pending->rows) t.finish(*t.pending, finished, t.pending->rows);
  _tile_stored(0, acc, ld);
  if (two_cols) _tile_stored(1, acc + 64, ld);
  if (two_rows) _tile_stored(2, acc + 16 * ld, ld);
  if (two_rows && two_cols) _tile_stored(3, acc + 16 * ld + 64, ld);
}
#undef HALFTONE_TDP

}  // namespace

const Kernels& kernels_amx() {
  static constexpr Kernels table = [] {
    Kernels k = wide_kernels(2);
    k.amx = true, k.chunk = 128, k.enter = enter, k.leave = leave;
    k.s8 = tile<true>, k.widen_s8 = nullptr;
    k.bf16 = tile<false>, k.widen_bf16 = nullptr;
    return k;
  }();
  return table;
}

}  // namespace halftone::gemm
