#include <bit>
#include <cmath>

#include "halftone/formats/int_scale.h"
#include "halftone/quantize/cuda/pair.cuh"

namespace halftone::device {
namespace {

// 1.5 * 2^23 + ceil(y - (u + 1/2) / 65536) for |y| <= 127 + 2^-17, u the draw in the given half of a word: numerics.md section 4. One
// product on the multipliers makes the number 127 + 1 - (u + 1/2) / 65536, in whose binade 2^-17 is one bit, from either half; its sum with
// y is rounded up to a grid that holds the integers, and then to them.
template <int kHalf>
__device__ __forceinline__ uint32_t round_int8(float y, uint32_t word) {
  uint32_t above;
  asm("dp2a.lo.u32.s32 %0, %1, %2, %3;" : "=r"(above) : "r"(word), "r"(kHalf == 0 ? 0x00FE : 0xFE00), "r"(0x42FFFFFF));
  return __float_as_uint(__fadd_ru(__fadd_ru(y, __uint_as_float(above)), 12582912.0f - 128.0f));
}
// The codes of two of those in 16 bits each: -128, from y = -127 - 2^-17 of the largest magnitude, is -127.
__device__ __forceinline__ uint32_t int8_pair(uint32_t a, uint32_t b) { return __vmaxs2(__byte_perm(a, b, 0x5410), 0xFF81FF81u); }

__device__ __forceinline__ void clear_specials(uint32_t& pair) {
  if ((pair & 0x00007F80u) == 0x00007F80u) pair &= 0xFFFF0000u;
  if ((pair & 0x7F800000u) == 0x7F800000u) pair &= 0x0000FFFFu;
}
struct PairShared : PairWarps {
  alignas(16) float factors[2][kTile];  // inverse scales of the tile's rows and columns
};

// int8 codes of both copies of bf16 elements with scales of rows and of columns and stochastic rounding: a thread has 8 x 8 elements, and
// makes both codes of one together. They wait in shared memory, so that the registers suffice for three thread blocks, without which
// arithmetic and memory take turns.
__global__ void __launch_bounds__(kTileThreads, 3) int8_pair_kernel(const __grid_constant__ TileArgs a) {
  extern __shared__ __align__(128) uint8_t memory[];
  PairShared& shared = *reinterpret_cast<PairShared*>(memory);
  constexpr int kRowBytes = PairShared::kRowBytes;
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const int band = static_cast<int>(a.backwards ? gridDim.z - 1 - blockIdx.z : blockIdx.z);
  const int tile_r = band * kBand + static_cast<int>(blockIdx.x);
  const int tile_c = static_cast<int>(a.backwards ? gridDim.y - 1 - blockIdx.y : blockIdx.y);
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
    const ScalePair s = int8_scale(v < d.R ? d.group_amax[v] : 0u, d.scale_floor);
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

  const int valid_rows = column < a.row.C ? min(max(a.row.R - row, 0), 8) : 0;
  uint8_t* row_codes = a.row.codes + (int64_t{row} * a.row.C + column);
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
        s[k] = k % 2 == 0 ? round_int8<0>(y, of_row) : round_int8<1>(y, of_row);
        const uint32_t c = k % 2 == 0 ? round_int8<0>(z, of_column) : round_int8<1>(z, of_column);
        if (j % 2 == 0) {
          even[k] = c;
        } else {
          const uint32_t pair = int8_pair(even[k], c);
          columns[half][k] = j == 1 ? pair : __byte_perm(columns[half][k], pair, 0x6420);
        }
      }
      store_if(i < valid_rows, row_codes + uint64_t{static_cast<uint32_t>(a.row.C)} * static_cast<uint32_t>(i),
               {__byte_perm(int8_pair(s[0], s[1]), int8_pair(s[2], s[3]), 0x6420),
                __byte_perm(int8_pair(s[4], s[5]), int8_pair(s[6], s[7]), 0x6420)});
    }
  }
  __syncwarp();
  stage_columns(shared, columns, warp, lane);
  __syncthreads();
  flush_columns(shared, a.transposed, tile_r, tile_c, thread);
}

// The quotient of a group's largest magnitude, from which no draw leads above 127: half a step of the draws.
constexpr float kInt8Most = 127.0f + 0x1p-17f;
constexpr bool stays_below(uint32_t significand) {
  const uint32_t amax = 0x3F800000u | significand << 16;
  return std::bit_cast<float>(amax) * int8_scale(amax).inv <= kInt8Most;
}
constexpr bool all_stay_below() {
  for (uint32_t i = 0; i < 128; ++i) {
    if (!stays_below(i)) return false;
  }
  return true;
}
static_assert(all_stay_below());  // of bf16, whose scales are their magnitude by 127
// The same where the scale is the floor.
bool floor_stays_below(float least) {
  float a = least * 127.0f;  // the largest magnitude whose scale that is
  while (a / 127.0f > least) a = std::nextafter(a, 0.0f);
  while (std::nextafter(a, INFINITY) / 127.0f <= least) a = std::nextafter(a, INFINITY);
  return a * (1.0f / least) <= kInt8Most;
}
bool takes(const CopyArgs& d) {
  return d.element == Element::int8 && !d.per_tensor && d.in_range && d.outer == nullptr &&
         floor_stays_below(d.scale_floor == 0 ? kIntScaleFloor : d.scale_floor);
}

}  // namespace

bool launch_int8_pair(const TileArgs& a, TileGrid tiles, cudaStream_t stream) {
  if (!takes(a.row) || !takes(a.transposed)) return false;
  DependentLaunch overlapped(band_grid(tiles), kTileThreads, stream, true);
  overlapped.config.dynamicSmemBytes = sizeof(PairShared);
  cudaLaunchKernelEx(&overlapped.config, int8_pair_kernel, a);
  return true;
}

}  // namespace halftone::device
