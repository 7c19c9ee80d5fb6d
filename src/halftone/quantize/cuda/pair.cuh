#pragma once
#include "halftone/quantize/cuda/async_copy.cuh"
#include "halftone/quantize/cuda/blocks_kernel.cuh"

namespace halftone::device {

// Kernels whose threads make both codes of an element together, of bf16 with stochastic rounding: a thread has 8 x 8 elements, a warp
// 32 rows of 64. Both draws of an element are then its thread's own, and it is widened once.

// An element of a pair as fp32. The lower one by the integer units: shifts may go to the multipliers, which have more to do here.
template <int kHalf>
__device__ __forceinline__ float widened(uint32_t pair) {
  return __uint_as_float(kHalf == 0 ? __byte_perm(pair, 0u, 0x1044) : pair & 0xFFFF0000u);
}
// Without a branch, across which nothing would be overlapped.
__device__ __forceinline__ void store_if(bool valid, uint8_t* to, uint2 v) {
  asm volatile("{.reg .pred p; setp.ne.u32 p, %3, 0; @p st.global.v2.u32 [%0], {%1,%2};}" ::"l"(to), "r"(v.x), "r"(v.y),
               "r"(static_cast<uint32_t>(valid))
               : "memory");
}

// What a warp has in shared memory: row i of its lanes' 8 x 8 elements, 16 bytes a lane; then, in their place, its piece of the transposed
// copy: 64 columns of 32 codes.
struct PairWarps {
  static constexpr int kRowBytes = 32 * 16;
  alignas(128) uint8_t warps[8][8 * kRowBytes];
  // Columns change places so that lanes meet different banks, when they write eight columns apart and when they read a column of four
  // warps.
  static __device__ __forceinline__ int codes_at(int warp, int column, int at) {
    return (column * 32 + at) ^ (((column >> 3) + (warp >> 1)) & 3) << 5;
  }
};

// Every lane copies what it reads itself, from element (row, column) on; zeros beyond the matrix. whole: the tile lies within it.
__device__ __forceinline__ void copy_own(const TileArgs& a, int row, int column, bool whole, uint8_t* own) {
  constexpr int kRowBytes = PairWarps::kRowBytes;
  const auto* source = static_cast<const uint8_t*>(a.x) + (int64_t{row} * a.ld + column) * 2;
  const auto stride = static_cast<uint32_t>(a.ld * 2);
  if (whole) {
    const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(own));
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) copy_async(to + i * kRowBytes, source + uint64_t{stride} * i);
    return;
  }
  const int valid = column < a.cols ? a.rows - row : 0;
#pragma unroll 1
  for (int i = 0; i < 8; ++i) {
    copy_async(own + i * kRowBytes, i < valid ? source + uint64_t{stride} * static_cast<uint32_t>(i) : static_cast<const uint8_t*>(a.x),
               i < valid);
  }
}

// The draws of a thread's elements, from (row, column) on, for either copy.
struct PairDraws {
  const TileArgs& a;
  const StepWords row_step = step_words(a.row.draws), column_step = step_words(a.transposed.draws);
  const uint32_t row_group, column_group;
  __device__ __forceinline__ PairDraws(const TileArgs& args, int row, int column)
      : a(args), row_group(first_group(a.row.draws, row, column)), column_group(first_group(a.transposed.draws, row, column)) {}
  static __device__ __forceinline__ uint32_t first_group(const Draws& d, int row, int column) {
    return d.first + static_cast<uint32_t>(row) * d.row + static_cast<uint32_t>(column) / 8;
  }
  // Of rows i and i + 1.
  __device__ __forceinline__ void two_rows(uint32_t i, uint32_t (*of_row)[4], uint32_t (*of_column)[4]) const {
    draw8<2>(a.row.draws, row_step, row_group + i * a.row.draws.row, a.row.draws.row, of_row);
    draw8<2>(a.transposed.draws, column_step, column_group + i * a.transposed.draws.row, a.transposed.draws.row, of_column);
  }
};

// The transposed copy: codes of a thread's eight columns, four rows a word, in the place of its warp's elements, and from there to memory.
__device__ __forceinline__ void stage_columns(PairWarps& shared, const uint32_t (&columns)[2][8], int warp, int lane) {
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    *reinterpret_cast<uint2*>(shared.warps[warp] + PairWarps::codes_at(warp, (lane & 7) * 8 + k, (lane >> 3) * 8)) = {columns[0][k],
                                                                                                                      columns[1][k]};
  }
}
__device__ __forceinline__ void flush_columns(const PairWarps& shared, const CopyArgs& d, int tile_r, int tile_c, int thread) {
  flush_pieces<8, kTile, kTile, kTileThreads>(d.codes, d, tile_c * kTile, tile_r * kTile, thread, [&](int v, int at) {
    const int of = (at >> 5) * 2 + (v >> 6);
    return shared.warps[of] + PairWarps::codes_at(of, v & 63, at & 31);
  });
}

__device__ __forceinline__ void read4(const float* at, float* to) {
  const float4 f = *reinterpret_cast<const float4*>(at);
  to[0] = f.x, to[1] = f.y, to[2] = f.z, to[3] = f.w;
}

}  // namespace halftone::device
