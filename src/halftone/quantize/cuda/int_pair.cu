#include "halftone/quantize/cuda/pair.cuh"

namespace halftone::device {
namespace {

struct PairShared : PairWarps {
  alignas(16) float factors[2][kTile];  // inverse scales of the tile's rows and columns
};

// int8 or int4 codes, one a byte or packed, of both copies of bf16 elements with scales of rows and of columns and stochastic rounding: a
// thread has 8 x 8 elements, and makes both codes of one together. They wait in shared memory, so that the registers suffice for three
// thread blocks, without which arithmetic and memory take turns.
template <Element kElement, bool kPacked>
__global__ void __launch_bounds__(kTileThreads, 3) int_pair_kernel(const __grid_constant__ TileArgs a) {
  extern __shared__ __align__(128) uint8_t memory[];
  PairShared& shared = *reinterpret_cast<PairShared*>(memory);
  constexpr int kRowBytes = PairShared::kRowBytes;
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const auto [tile_r, tile_c] = TileAt(a.backwards);
  if (tile_r >= a.tiles_r) return;
  const int row_in = (warp >> 1) * 32 + (lane >> 3) * 8, column_in = (warp & 1) * 64 + (lane & 7) * 8;
  const int row = tile_r * kTile + row_in, column = tile_c * kTile + column_in;

  if (!a.dependent) wait_for_primary();
  start_dependents();
  uint8_t* own = shared.warps[warp] + lane * 16;
  copy_own(a, row, column, (tile_r + 1) * kTile <= a.rows && (tile_c + 1) * kTile <= a.cols, own);
  // Draws of two rows at a time. They follow from positions alone: the first come while the elements do.
  const PairDraws draws(a, row, column);
  uint32_t row_draws[4][4], column_draws[4][4];
  draws.two_rows(0, row_draws, column_draws);

  // A thread computes the scale of a row or of a column.
  if (a.dependent) wait_for_primary();
  const auto factor_of = [&](const CopyArgs& d, int first, bool first_tile) {
    const int v = first + thread % kTile;
    const uint32_t amax = v < d.R ? d.group_amax[v] : 0u;
    ScalePair s;
    if constexpr (kElement == Element::int4) {
      s = int4_scale(amax, v < d.R ? d.group_amax[d.R + v] : 0u, d.scale_floor);
    } else {
      s = int8_scale(amax, d.scale_floor);
    }
    if (d.scales != nullptr && first_tile && v < d.R) static_cast<float*>(d.scales)[v] = s.scale;
    return s.inv;
  };
  const float factor =
      thread < kTile ? factor_of(a.row, tile_r * kTile, tile_c == 0) : factor_of(a.transposed, tile_c * kTile, tile_r == 0);
  shared.factors[thread / kTile][thread % kTile] = factor == factor ? factor : 0.0f;
  wait_for_copies();
  // Codes of poisoned rows and columns are 0, and so are those of finite elements times 0. Others poison both their row and their column.
  if (__syncthreads_or(factor != factor) != 0) {
#pragma unroll 1
    for (int i = 0; i < 8; ++i) {
      auto* words = reinterpret_cast<uint32_t*>(own + i * kRowBytes);
#pragma unroll
      for (int k = 0; k < 4; ++k) clear_specials(words[k]);
    }
  }

  // Codes of two in 16 bits each.
  const auto two_codes = [](uint32_t low, uint32_t high) {
    return kElement == Element::int4 ? __byte_perm(low, high, 0x5410) : integer_pair(low, high);
  };
  const int valid_rows = column < a.row.C ? min(max(a.row.R - row, 0), 8) : 0;
  const int64_t at = int64_t{row} * a.row.C + column;
  uint8_t* row_codes = kPacked ? a.row.packed + at / 2 : a.row.codes + at;
  const auto row_bytes = static_cast<uint32_t>(kPacked ? a.row.C / 2 : a.row.C);
  const uint32_t digit = blockDim.x / (kTileThreads / 16);  // 16, unknown to the compiler, see multiply_add
  float by_column[8];
  uint32_t columns[2][8];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float by_row[4];
    read4(&shared.factors[0][row_in + half * 4], by_row);
    uint32_t even[8];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int i = half * 4 + j;
      if (i == 0) read4(&shared.factors[1][column_in], by_column), read4(&shared.factors[1][column_in + 4], by_column + 4);
      const int n = i < 2 ? i : 2 + i % 2;  // where the row's draws are
      if (i >= 2 && i % 2 == 0) draws.two_rows(static_cast<uint32_t>(i), row_draws + n, column_draws + n);
      const uint4 x = *reinterpret_cast<const uint4*>(own + i * kRowBytes);
      const uint32_t words[4] = {x.x, x.y, x.z, x.w};
      uint32_t s[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v = k % 2 == 0 ? widened<0>(words[k >> 1]) : widened<1>(words[k >> 1]), y = v * by_row[j], z = v * by_column[k];
        const uint32_t of_row = row_draws[n][k >> 1], of_column = column_draws[n][k >> 1];
        constexpr int kAdd = kPacked ? kInt4Bias : 0;
        s[k] = round_integer<kAdd>(y, k % 2 == 0 ? draw_number<0>(of_row) : draw_number<1>(of_row));
        const uint32_t c = round_integer<kAdd>(z, k % 2 == 0 ? draw_number<0>(of_column) : draw_number<1>(of_column));
        if (j % 2 == 0) {
          even[k] = c;
        } else if constexpr (kPacked) {
          const uint32_t pair = multiply_add(c, digit, even[k]);
          columns[half][k] = j == 1 ? pair : __byte_perm(columns[half][k], pair, 0x0040);
        } else {
          const uint32_t pair = two_codes(even[k], c);
          columns[half][k] = j == 1 ? pair : __byte_perm(columns[half][k], pair, 0x6420);
        }
      }
      uint8_t* to = row_codes + uint64_t{row_bytes} * static_cast<uint32_t>(i);
      if constexpr (kPacked) {
        store_if(i < valid_rows, to, pack_int4(s, digit));
      } else {
        store_if(i < valid_rows, to,
                 uint2{__byte_perm(two_codes(s[0], s[1]), two_codes(s[2], s[3]), 0x6420),
                       __byte_perm(two_codes(s[4], s[5]), two_codes(s[6], s[7]), 0x6420)});
      }
    }
  }
  __syncwarp();
  if constexpr (kPacked) {
    uint32_t packed[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) packed[k] = __byte_perm(columns[0][k], columns[1][k], 0x5410) ^ kInt4Biased;
    stage_packed_columns(shared, packed, warp, lane);
    __syncthreads();
    flush_packed_columns(shared, a.transposed, tile_r, tile_c, thread);
  } else {
    stage_columns(shared, columns, warp, lane);
    __syncthreads();
    flush_columns(shared, a.transposed, tile_r, tile_c, thread);
  }
}

bool takes(const CopyArgs& d, Element element) { return d.element == element && !d.per_tensor && d.in_range && d.outer == nullptr; }

}  // namespace

bool launch_int_pair(const TileArgs& a, Form form, TileGrid tiles, cudaStream_t stream) {
  const Element element = a.row.element;
  if (!takes(a.row, element) || !takes(a.transposed, element)) return false;
  const auto go = [&](auto* kernel) { return launch_pair(kernel, band_grid(tiles), kTileThreads, sizeof(PairShared), stream, a); };
  if (form == Form::codes && element == Element::int8) return go(int_pair_kernel<Element::int8, false>);
  if (form == Form::codes && element == Element::int4) return go(int_pair_kernel<Element::int4, false>);
  if (form != Form::packed || element != Element::int4) return false;
  return launch_int4_pair(a, tiles, stream) || go(int_pair_kernel<Element::int4, true>);
}

}  // namespace halftone::device
