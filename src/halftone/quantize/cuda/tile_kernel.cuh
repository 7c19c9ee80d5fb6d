#pragma once
#include "halftone/quantize/cuda/amax_vector.cuh"
#include "halftone/quantize/cuda/dependent.cuh"
#include "halftone/quantize/cuda/gathered_rows.cuh"
#include "halftone/quantize/cuda/group_scale.cuh"
#include "halftone/quantize/cuda/store_codes.cuh"

namespace halftone::device {

// Copies with scales per tensor, row, column or 128 elements.

// Position of a thread's 8 x 8 elements in a copy: vector i covers elements (r + i, c) to (r + i, c + 7).
struct Place {
  int lane, warp, r, c;
  bool first_tile;  // first tile along C: this thread block writes the row scales
};

// Scales of the rows that a lane owns, if an earlier pass collected their maxima or the tensor's. Read for both copies before either is
// computed, and computed before the elements arrive.
template <Coder kCoder, int kAxis>
struct Groups {
  static constexpr int kOwn = kAxis == 0 ? 1 : 2;
  uint32_t amax[kOwn], negative[kOwn];
  float factor[kOwn];
  static __device__ __forceinline__ int first(int lane) { return kAxis == 0 ? lane & 7 : (lane >> 3) * 2; }
  // Whether this thread writes them, among the tile's eight warps that own the same rows.
  static __device__ __forceinline__ bool writes(const Place& p) { return kAxis == 0 ? (p.warp & 1) == 0 : (p.warp >> 1) == 0; }

  __device__ __forceinline__ void read(const CopyArgs& d, const Place& p, uint32_t tensor_amax) {
    const int set = kAxis == 1 ? first_of_set(d, p.c) : 0;
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const int r = p.r + first(p.lane) + j;
      const bool has = d.group_amax != nullptr && r < d.R;
      amax[j] = d.per_tensor ? tensor_amax : has ? d.group_amax[set + r] : 0u;
      negative[j] = 0;
      if (kCoder == Coder::integer && d.element == Element::int4 && has) negative[j] = d.group_amax[set + d.R + r];
    }
  }
  __device__ __forceinline__ void make(const CopyArgs& d, const Place& p) {
    auto* scales = static_cast<float*>(d.scales);
    const bool writer = scales != nullptr && p.first_tile && writes(p);
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const int r = p.r + first(p.lane) + j;
      const ScalePair s = kCoder == Coder::integer && d.scale_pair != nullptr ? d.scale_pair[set_of_row(d, kAxis == 0 ? p.r : p.c)]
                                                                              : group_rule<kCoder>(d, amax[j], negative[j]);
      if (writer && r < (d.per_tensor ? 1 : d.R)) scales[r] = s.scale;
      factor[j] = s.inv;
    }
  }
};

// Draws of a thread's elements: along axis 0 a vector is one group, along axis 1 its elements belong to eight groups.
template <int kAxis>
struct TileDraws {
  uint32_t v[8][4];  // along axis 0 two rows at a time
  uint32_t constant;
  template <Coder kCoder>
  __device__ __forceinline__ uint32_t at(int vector, int i) const {
    const int group = kAxis == 0 ? vector : i, element = kAxis == 0 ? i : vector;
    const uint32_t word = v[group][element >> 1];
    return (element & 1) == 0 ? placed<kCoder, 0>(word, constant) : placed<kCoder, 1>(word, constant);
  }
};

template <int kAxis>
__device__ __forceinline__ uint32_t first_group(const CopyArgs& d, const Place& p) {
  return d.draws.first + static_cast<uint32_t>(kAxis == 0 ? p.r : p.c) * d.draws.row + static_cast<uint32_t>(kAxis == 0 ? p.c : p.r) / 8;
}
// Staging layout of a transposed copy, [vector][16 chunks of eight elements], so that full cache lines are stored. A chunk has kBytes, 4
// (packed) or 8. Chunks are swizzled within a vector against bank conflicts, in units of 16 bytes.
template <int kBytes>
__device__ __forceinline__ int staged_chunk(int vector, int chunk) {
  const int group = vector >> 3;
  return chunk ^ (kBytes == 4 ? (group & 3) << 2 : (group & 7) << 1);
}
// Bytes per chunk; 0: no staging. Form::any: packed codes. Compute-bound kernels stage no codes: the second pass through smem costs more
// than full lines save.
constexpr int staged_bytes(Coder coder, bool stochastic, Form form) {
  if (form == Form::codes) return stochastic ? 0 : 8;
  return coder == Coder::integer ? 4 : 0;
}

// Writes one copy of the thread's elements: scales, codes, stores. kBlock: 128, scales from `shared_amax`, or 0, scales from `groups`. x:
// vectors along C. shared_amax: maxima of the vectors that the lane owns. elements: staging buffer of a transposed copy.
template <Coder kCoder, int kBlock, bool kStochastic, Form kForm, int kAxis, class T>
__device__ __forceinline__ void write_copy(const CopyArgs& d, const Place& p, const ElementVector<T> (&x)[8],
                                           const uint32_t (&shared_amax)[2], const Groups<kCoder, kAxis>& groups, uint8_t* elements) {
  constexpr int kOwn = kAxis == 0 ? 1 : 2;
  Outputs<kForm> out(d, int64_t{p.r} * d.C + p.c, static_cast<uint32_t>(d.C));
  float factor[kOwn];
  if (d.outer != nullptr && p.r == 0 && p.c == 0) *d.outer = 1;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    if constexpr (kBlock == 0) {
      factor[j] = groups.factor[j];
    } else {
      auto* scales = static_cast<float*>(d.scales);
      const int r = p.r + groups.first(p.lane) + j, block = p.c / kBlock;
      const ScalePair s = group_rule<kCoder>(d, shared_amax[j], 0);
      if (scales != nullptr && groups.writes(p) && r < d.R && block * kBlock < d.C && (!d.tile || r % kBlock == 0))
        scales[int64_t{d.tile ? r / kBlock : r} * d.blocks + block] = s.scale;
      factor[j] = s.inv;
    }
  }
  TileDraws<kAxis> draws;
  const uint32_t group = first_group<kAxis>(d, p);
  const StepWords step = kStochastic ? step_words(d.draws) : StepWords{};
  if constexpr (kStochastic)
    draws.constant = __shfl_sync(0xFFFFFFFFu, d.draw_constant, 0);  // keep it in a register; otherwise the compiler reloads it at every use
  if constexpr (kStochastic && kAxis == 1) draw8<8>(d.draws, step, group, d.draws.row, draws.v);
  const int valid = p.c < d.C ? min(max(d.R - p.r, 0), 8) : 0;
  constexpr int kBytes = kAxis == 1 ? staged_bytes(kCoder, kStochastic, kForm) : 0;
  if constexpr (kBytes != 0) {
    const int vector = p.r % kTile;
    uint8_t* at = elements + (vector * 16 + staged_chunk<kBytes>(vector, p.c % kTile / 8)) * kBytes;
    if constexpr (kBytes == 8) out.codes = at, out.stride = kTile;
    if (kBytes == 4 && out.has(kPacked)) out.packed = at, out.packed_stride = kTile / 2;
  }
  const auto write = [&]<bool kPlain>() {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const Factor by{
          kAxis == 0 ? __shfl_sync(0xFFFFFFFFu, factor[0], i, 8) : __shfl_sync(0xFFFFFFFFu, factor[i % kOwn], (p.lane & 7) | (i >> 1) << 3),
          0};
      if constexpr (kStochastic && kAxis == 0) {
        if (i % 2 == 0) draw8<2>(d.draws, step, group + i * d.draws.row, d.draws.row, draws.v + i);
      }
      // 128-blocks need no clamp: the scale follows from the amax.
      const Codes8 q = encode8<kCoder, Step::multiply, kStochastic, kBlock != 128>(x[i], by, d.low, d.high,
                                                                                   [&](int k) { return draws.template at<kCoder>(i, k); });
      // Values equal the codes; the scales are applied in the GEMM.
      if (kPlain || i < valid)
        store_codes<kCoder, Place8::byte0>(out, i, d.lost, q, !kPlain && by.f != by.f, {__float_as_uint(1.0f), 0, 0});
    }
  };
  // Fast path without per-vector checks: all vectors valid, all scales finite.
  if constexpr (!kStochastic) {
    bool plain = valid == 8;
#pragma unroll
    for (int j = 0; j < kOwn; ++j) plain = plain && factor[j] == factor[j];
    if (__all_sync(0xFFFFFFFFu, plain)) return write.template operator()<true>();
  }
  write.template operator()<false>();
}

// Stores the staged elements of a transposed copy, 16 bytes per thread and step, full lines per warp.
template <int kBytes>
__device__ __forceinline__ void flush_elements(uint8_t* to, const CopyArgs& d, const uint8_t* staged, int r0, int c0, int thread) {
  constexpr int kPieces = kBytes, kEach = kTile / kPieces, kStep = kTileThreads / kPieces;  // pieces per vector; elements, vectors per step
  const int c = c0 + thread % kPieces * kEach;
  if (to == nullptr || c >= d.C) return;
  int vector = thread / kPieces;
  uint8_t* out = to + (int64_t{r0 + vector} * d.C + c) * kBytes / 8;
  const int64_t step = int64_t{kStep} * d.C * kBytes / 8;
  const bool whole = c + kEach <= d.C && reinterpret_cast<uintptr_t>(out) % 16 == 0 && step % 16 == 0;
#pragma unroll
  for (int i = 0; i < kTile / kStep; ++i, vector += kStep, out += step) {
    if (r0 + vector >= d.R) return;
    const uint4 w =
        *reinterpret_cast<const uint4*>(staged + (vector * 16 + staged_chunk<kBytes>(vector, thread % kPieces * (16 / kBytes))) * kBytes);
    if (whole) {
      *reinterpret_cast<uint4*>(out) = w;
    } else if constexpr (kBytes == 8) {
      auto* parts = reinterpret_cast<uint2*>(out);
      parts[0] = {w.x, w.y};
      if (c + 8 < d.C) parts[1] = {w.z, w.w};
    } else {
      auto* parts = reinterpret_cast<uint32_t*>(out);
      parts[0] = w.x;
      if (c + 8 < d.C) parts[1] = w.y;
      if (c + 16 < d.C) parts[2] = w.z;
      if (c + 24 < d.C) parts[3] = w.w;
    }
  }
}

// Maxima of 128-blocks: every warp writes those of its 32 rows and 64 columns; lanes read back the ones they own.
struct SharedAmax {
  uint32_t rows[2][kTile], columns[4][kTile], warps[8];
};
template <class T>
__device__ __forceinline__ void exchange(SharedAmax& s, const ElementVector<T> (&x)[8], int warp, int lane, bool tiles, uint32_t (&row)[2],
                                         uint32_t (&column)[2]) {
  const AmaxVector<T> of_rows = amax_of(x), of_columns = amax_across(x);
  Owned<T, 0> rows(of_rows, lane);
  Owned<T, 1> columns(of_columns, lane);
  const int r = (warp >> 1) * 32 + (lane >> 3) * 8, c = (warp & 1) * 64 + (lane & 7) * 8;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const uint32_t a = max(rows.amax[j], __shfl_xor_sync(0xFFFFFFFFu, rows.amax[j], 4));
    if ((lane & 4) == 0) s.rows[warp & 1][r + Owned<T, 0>::first(lane) + j] = a;
    s.columns[warp >> 1][c + Owned<T, 1>::first(lane) + j] = columns.amax[j];
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

// Thread blocks per SM: as many as the registers allow without spilling.
template <class T>
constexpr int blocks_on_sm(int block, bool stochastic, Copies copies) {
  if (sizeof(T) == 4 || (stochastic && copies != Copies::row)) return 2;
  return !stochastic && (block == 0 || copies != Copies::transposed) ? 4 : 3;
}

// Quantises 128 x 128 elements: every thread loads its 8 x 8 elements once and computes its part of both copies in registers. It stores the
// row copy directly; the transposed copy is staged in smem, so that full lines are stored. x is aligned to 16 bytes; cols, ld and the C of
// both copies are multiples of 8.
template <class T, Coder kCoder, int kBlock, bool kStochastic, Form kForm, Copies kCopies>
__global__ void __launch_bounds__(kTileThreads, blocks_on_sm<T>(kBlock, kStochastic, kCopies))
    tile_kernel(const __grid_constant__ TileArgs a) {
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const auto [turn, tile_c] = TileAt(a.backwards);
  if (turn >= a.tiles_r) return;
  constexpr bool kRow = kCopies != Copies::transposed, kTransposed = kCopies != Copies::row;
  if (!a.dependent) wait_for_primary();
  start_dependents();
  const int row0 = tile_in_turn(a.from, a.first_tile + turn) * kTile, column0 = tile_c * kTile;
  const int row = row0 + (warp >> 1) * 32 + (lane >> 3) * 8, column = column0 + (warp & 1) * 64 + (lane & 7) * 8;
  ElementVector<T> x[8];
  const T* source = static_cast<const T*>(a.x) + int64_t{row} * a.ld + column;
  const auto bytes = static_cast<uint32_t>(a.ld * sizeof(T));
  const auto row_at = [&](uint32_t i) {
    return reinterpret_cast<const T*>(reinterpret_cast<const uint8_t*>(source) + uint64_t{bytes} * i);
  };
  if (a.from.source != nullptr) {
    load_rows(a.from, static_cast<const T*>(a.x) + column, a.ld, row - (lane >> 3) * 8, lane, column < a.cols, x);
  } else if (row0 + kTile <= a.rows && column0 + kTile <= a.cols) {
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) load_vector(row_at(i), x[i]);
  } else {
    const int valid = column < a.cols ? min(max(a.rows - row, 0), 8) : 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      x[i] = {};
      if (i < valid) load_vector(row_at(static_cast<uint32_t>(i)), x[i]);
    }
  }
  round_elements(x, a.as_bf16);
  const Place row_place{lane, warp, row, column, column0 == 0}, column_place{lane, warp, column, row, row0 == 0};
  if (a.dependent) wait_for_primary();
  uint32_t row_shared[2] = {}, column_shared[2] = {};
  Groups<kCoder, 0> row_groups;
  Groups<kCoder, 1> column_groups;
  if constexpr (kBlock == 128) {
    __shared__ SharedAmax shared;
    exchange(shared, x, warp, lane, kRow ? a.row.tile : a.transposed.tile, row_shared, column_shared);
  } else {
    if constexpr (kRow) row_groups.read(a.row, row_place, read_tensor_amax(a.row, row0, lane));
    if constexpr (kTransposed) column_groups.read(a.transposed, column_place, read_tensor_amax(a.transposed, row0, lane));
    if constexpr (kRow) row_groups.make(a.row, row_place);
    if constexpr (kTransposed) column_groups.make(a.transposed, column_place);
  }
  if constexpr (kRow) write_copy<kCoder, kBlock, kStochastic, kForm, 0>(a.row, row_place, x, row_shared, row_groups, nullptr);
  if constexpr (kTransposed) {
    constexpr int kStaged = staged_bytes(kCoder, kStochastic, kForm);
    alignas(16) __shared__ uint8_t elements[kStaged != 0 ? kTile * 16 * kStaged : 16];
    ElementVector<T> t[8];
    transpose(x, t);
    write_copy<kCoder, kBlock, kStochastic, kForm, 1>(a.transposed, column_place, t, column_shared, column_groups, elements);
    if constexpr (kStaged != 0) {
      __syncthreads();
      flush_elements<kStaged>(kStaged == 4 ? a.transposed.packed : a.transposed.codes, a.transposed, elements, column0, row0,
                              static_cast<int>(threadIdx.x));
    }
  }
}

template <class T, Coder kCoder, int kBlock, bool kStochastic, Form kForm>
void launch_tiles(const TileArgs& a, Copies copies, TileGrid tiles, cudaStream_t stream) {
  launch_copies({band_grid(tiles), kTileThreads, stream, true}, a, copies,
                [&]<Copies kCopies>() { return std::make_pair(tile_kernel<T, kCoder, kBlock, kStochastic, kForm, kCopies>, 0); });
}

}  // namespace halftone::device
