#pragma once
#include <algorithm>

#include "halftone/quantize/cuda/blocks_kernel.cuh"
#include "halftone/quantize/cuda/rotate.cuh"
#include "halftone/quantize/cuda/tile_pass.cuh"

namespace halftone::device {

// Maxima of 128-blocks: every warp leaves those of its 32 rows and 64 columns, and lanes read back those that they own.
struct SharedAmax {
  uint32_t rows[2][kTile], columns[4][kTile], warps[8];
};
template <class T>
__device__ __forceinline__ void exchange(SharedAmax& s, const Vec8<T> (&x)[8], int warp, int lane, bool tiles, uint32_t (&row)[2],
                                         uint32_t (&column)[2]) {
  const Amax8<T> of_rows = amax_of(x), of_columns = amax_across(x);
  Owned<T, 0, 4> rows(of_rows, lane);
  Owned<T, 1, 4> columns(of_columns, lane);
  const int r = (warp >> 1) * 32 + (lane >> 3) * 8, c = (warp & 1) * 64 + (lane & 7) * 8;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const uint32_t a = max(rows.amax[j], __shfl_xor_sync(0xFFFFFFFFu, rows.amax[j], 4));
    if ((lane & 4) == 0) s.rows[warp & 1][r + Owned<T, 0, 4>::first(lane) + j] = a;
    s.columns[warp >> 1][c + Owned<T, 1, 4>::first(lane) + j] = columns.amax[j];
  }
  const uint32_t whole = __reduce_max_sync(0xFFFFFFFFu, amax_total(of_rows));
  if (lane == 0) s.warps[warp] = whole;
  __syncthreads();
  if (tiles) {
    row[0] = __reduce_max_sync(0xFFFFFFFFu, s.warps[lane & 7]);
    row[1] = column[0] = column[1] = row[0];
    return;
  }
  const int r_own = r + (lane & 7), c_own = c + (lane >> 3) * 2;
  row[0] = row[1] = max(s.rows[0][r_own], s.rows[1][r_own]);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    column[j] = max(max(s.columns[0][c_own + j], s.columns[1][c_own + j]), max(s.columns[2][c_own + j], s.columns[3][c_own + j]));
  }
}

// Thread blocks that share a multiprocessor: as many as the registers allow without spilling.
template <class T>
constexpr int blocks_on_sm(Coder coder, Step step, int block, bool stochastic, Copies copies) {
  if (sizeof(T) == 4 || (stochastic && copies != Copies::row)) return 2;
  if (block == 128 && !stochastic && copies == Copies::both) return 4;
  return !stochastic && coder != Coder::e2m1 && (copies == Copies::row || block == 0) ? 4 : 3;
}

// Quantises 128 x 128 elements: every thread loads 8 x 8 of them once and makes its part of both copies in registers. What it has
// of a row copy it stores itself; a transposed copy goes through shared memory, so that lines are stored whole. x is aligned to 16 bytes,
// cols, ld and the C of both copies to 8.
template <class T, Coder kCoder, Step kStep, int kBlock, bool kStochastic, Form kForm, Copies kCopies>
__global__ void __launch_bounds__(kTileThreads, blocks_on_sm<T>(kCoder, kStep, kBlock, kStochastic, kCopies))
    tile_kernel(const __grid_constant__ TileArgs a) {
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  // x: tile row within a band of eight, y: tile column, z: band. What neighbours along either axis write into the same sectors
  // (scales) then comes together in time.
  const auto [tile_r, tile_c] = TileAt(a.backwards);
  if (tile_r >= a.tiles_r) return;
  constexpr bool kRow = kCopies != Copies::transposed, kTransposed = kCopies != Copies::row;
  const bool wide = kCopies == Copies::row && (kBlock == 32 || kBlock == 128) && a.wide;
  const int row0 = tile_r * kTile + (wide ? tile_c % 4 * kWideRows : 0), column0 = (wide ? tile_c / 4 * 4 : tile_c) * kTile;
  const int row = row0 + (wide ? 0 : warp >> 1) * 32 + (lane >> 3) * 8, column = column0 + (wide ? warp : warp & 1) * 64 + (lane & 7) * 8;

  if (!a.dependent) wait_for_primary();
  start_dependents();
  Vec8<T> x[8];
  const T* source = static_cast<const T*>(a.x) + int64_t{row} * a.ld + column;
  const auto bytes = static_cast<uint32_t>(a.ld * sizeof(T));
  const auto row_at = [&](uint32_t i) {
    return reinterpret_cast<const T*>(reinterpret_cast<const uint8_t*>(source) + uint64_t{bytes} * i);
  };
  if (row0 + (wide ? kWideRows : kTile) <= a.rows && column0 + (wide ? kWideColumns : kTile) <= a.cols) {
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) load8(row_at(i), x[i]);
  } else {
    const int valid = column < a.cols ? min(max(a.rows - row, 0), 8) : 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      x[i] = {};
      if (i < valid) load8(row_at(static_cast<uint32_t>(i)), x[i]);
    }
  }
  const Place row_place{lane, warp, row, column, column0 == 0, wide}, column_place{lane, warp, column, row, tile_r == 0, false};
  TileDraws<0> row_draws;
  TileDraws<1> column_draws;
  if constexpr (kTransposed && kStochastic && draws_early<T>(kCoder, kBlock, kCopies)) {
    const Draws& d = a.transposed.draws;
    draw8<8>(d, step_words(d), first_group<1>(a.transposed, column_place), d.row, column_draws.v);
  }
  if (a.dependent) wait_for_primary();
  uint32_t row_tensor = 0, transposed_tensor = 0;
  if constexpr (kRow) row_tensor = reduce_parts(a.row.tensor_amax, a.row.tensor_parts, lane);
  if constexpr (kTransposed) transposed_tensor = reduce_parts(a.transposed.tensor_amax, a.transposed.tensor_parts, lane);

  constexpr bool kGrouped = kBlock == 16 || kBlock == 32;
  __shared__ StagedScales staged[kGrouped ? 2 : 1];
  constexpr int kStaged = kTransposed ? staged_bytes(kCoder, kStep, kBlock, kStochastic, kForm, kCopies) : 0;
  alignas(16) __shared__ uint8_t elements[kStaged != 0 ? kTile * 16 * kStaged : 16];
  uint32_t row_shared[2] = {}, column_shared[2] = {};
  if constexpr (kBlock == 128) {
    __shared__ SharedAmax shared;
    exchange(shared, x, warp, lane, kRow ? a.row.tile : a.transposed.tile, row_shared, column_shared);
  }
  Groups<kCoder, 0> row_groups;
  Groups<kCoder, 1> column_groups;
  if constexpr (kBlock == 0) {
    if constexpr (kRow) row_groups.read(a.row, row_place, row_tensor);
    if constexpr (kTransposed) column_groups.read(a.transposed, column_place, transposed_tensor);
    if constexpr (kRow) {
      if (!row_groups.is_made(a.row)) row_groups.make(a.row, row_place);
    }
    if constexpr (kTransposed) {
      if (!column_groups.is_made(a.transposed)) column_groups.make(a.transposed, column_place);
    }
  }
  if constexpr (kRow) {
    const Amax8<T> amax = kGrouped ? amax_of(x) : Amax8<T>{};
    pass<kCoder, kStep, kBlock, kStochastic, kForm, kCopies, 0>(a.row, row_place, x, amax, row_shared, row_tensor, row_groups, row_draws,
                                                                staged[0], nullptr);
  }
  if constexpr (kTransposed) {
    Vec8<T> t[8];
    Amax8<T> amax{};
    if (kCoder == Coder::e2m1 && a.transposed.hadamard != 0) {
      rotate(x, t, a.transposed.hadamard, rotation_signs(a.transposed), lane);
      if constexpr (kGrouped) amax = amax_of(t);
    } else {
      if constexpr (kGrouped) amax = amax_across(x);
      transpose(x, t);
    }
    pass<kCoder, kStep, kBlock, kStochastic, kForm, kCopies, 1>(a.transposed, column_place, t, amax, column_shared, transposed_tensor,
                                                                column_groups, column_draws, staged[kGrouped ? 1 : 0], elements);
  }
  const int thread = static_cast<int>(threadIdx.x);
  if (wide) {
    __syncthreads();
    flush_wide_scales<kBlock>(a.row, staged[0], row0, column0, thread);
  } else if constexpr (kGrouped || kStaged != 0) {
    __syncthreads();
    if constexpr (kGrouped && kRow) flush_scales<kBlock>(a.row, staged[0], row0, column0, thread);
    if constexpr (kGrouped && kTransposed)
      flush_scales<kBlock>(a.transposed, staged[1], tile_c * kTile, tile_r * kTile, kRow ? thread - kTile : thread);
    if constexpr (kStaged != 0) {
      const CopyArgs& d = a.transposed;
      uint8_t* to = kStaged == 4 ? d.packed : kForm == Form::codes ? d.codes : static_cast<uint8_t*>(d.values);
      flush_elements<kStaged>(to, d, elements, tile_c * kTile, tile_r * kTile, thread);
    }
  }
}

template <class T, Coder kCoder, Step kStep, int kBlock, bool kStochastic, Form kForm>
void launch_tiles(const TileArgs& a, Copies copies, TileGrid tiles, cudaStream_t stream) {
  DependentLaunch overlapped(band_grid(tiles), kTileThreads, stream, true);
  cudaLaunchConfig_t& config = overlapped.config;
  if constexpr (by_blocks<T>(kCoder, kStep, kBlock, kForm)) {
    const int width = copies == Copies::row ? 0 : a.transposed.hadamard;
    const auto go = [&](auto kernel, size_t bytes) {
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
      config.dynamicSmemBytes = bytes;
      cudaLaunchKernelEx(&config, kernel, a);
    };
    const auto launch = [&]<Copies kCopies>() {
      if constexpr (kCopies != Copies::row && kCoder == Coder::e2m1) {
        constexpr size_t kBytes = sizeof(BlocksShared<T, kStochastic, kForm, kCopies, true>);
        if (width == 32) return go(blocks_kernel<T, kCoder, kStochastic, kForm, kCopies, true>, kBytes);
      }
      go(blocks_kernel<T, kCoder, kStochastic, kForm, kCopies, false>, sizeof(BlocksShared<T, kStochastic, kForm, kCopies, false>));
    };
    // Columns that are rotated one after the other share no scale.
    const bool shared = width == 32 && a.transposed.tile && BlocksShared<T, kStochastic, kForm, Copies::both, true>::kByColumn;
    if (width == 16 || shared) return launch_tiles<T, kCoder, kStep, kBlock, kStochastic, Form::any>(a, copies, tiles, stream);
    if (copies == Copies::row) return launch.template operator()<Copies::row>();
    if (copies == Copies::transposed) return launch.template operator()<Copies::transposed>();
    return launch.template operator()<Copies::both>();
  } else {
    const auto launch = [&](auto kernel) { cudaLaunchKernelEx(&config, kernel, a); };
    if (copies == Copies::row) return launch(tile_kernel<T, kCoder, kStep, kBlock, kStochastic, kForm, Copies::row>);
    if (copies == Copies::transposed) return launch(tile_kernel<T, kCoder, kStep, kBlock, kStochastic, kForm, Copies::transposed>);
    launch(tile_kernel<T, kCoder, kStep, kBlock, kStochastic, kForm, Copies::both>);
  }
}

}  // namespace halftone::device
