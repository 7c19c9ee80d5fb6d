#pragma once
#include <algorithm>

#include "halftone/quantize/cuda/async_copy.cuh"
#include "halftone/quantize/cuda/dependent.cuh"
#include "halftone/quantize/cuda/fp4_slab.h"
#include "halftone/quantize/cuda/fp4_slab_memory.cuh"
#include "halftone/quantize/cuda/tile_pass.cuh"

namespace halftone::device {

// NVFP4 and AMDFP4 copies. A warp has 32 x 64 elements to itself, brought to shared memory by asynchronous
// copies. A lane quantises whole blocks of 16: two columns of 16 (or, rotated, 32) rows for the transposed copy, 16 elements of a
// row for the other, so that maxima, rotations and scales need no exchange between lanes, and one lane computes one scale.
// Outputs of bf16 go through shared memory, too, and are stored as lines. No warp waits for another but for scales and packed
// columns, which the thread block stores together (a last warp that stored them alone was slower by up to a sixth).
// A thread block takes a tile of 128 x 128, eight slabs, or half of one, four slabs one above the other: 3 to 5% less time where both
// copies are rotated or rounded stochastically, and as much more where memory is the limit.
template <class T>
constexpr int slab_warps(bool stochastic, Copies copies, int width) {
  return sizeof(T) == 2 && copies == Copies::both && (stochastic || width != 0) ? 4 : 8;
}

// Shared memory: slabs of elements, slabs of draws that become outputs of the transposed copy, scales, packed columns.
template <class T>
constexpr int slab_bytes(bool stochastic, Form columns, Copies copies, int width) {
  const bool transposed = copies != Copies::row, second = transposed && (stochastic || columns == Form::bf16);
  const int warps = slab_warps<T>(stochastic, copies, width),
            packed = transposed && columns == Form::packed ? warps / 4 * kSlabColumns * 16 * 4 : 0;
  return warps * (kSlabOf<T> + (second ? kSlabBytes : 0)) + 2 * static_cast<int>(sizeof(StagedScales)) + packed;
}

// kCompact: the halves of 32 rows in a loop, so that the instructions of both copies of rotated elements stay in their cache (1 to 4% less
// time; the transposed copy alone would take 2 to 10% more).
template <class T, Step kStep, Rounds kRounds, Form kForm, int kWidth, bool kTies, bool kCompact, bool kReady, class Ready>
__device__ __forceinline__ void columns_pass(const CopyArgs& d, const BlockCode& code, const Shifts& by, const uint4* flips,
                                             const Slab<T>& s, const Fp4Level level, StagedScales& scales, uint8_t* packed,
                                             [[maybe_unused]] const Ready& ready) {
  constexpr bool kStochastic = kRounds != Rounds::nearest;
  constexpr int kRows = kWidth == 32 ? 32 : 16, kParts = kRows / 16;
  constexpr bool kPair = kHasFast<T, kStochastic> && kWidth == 0;
  [[maybe_unused]] uint32_t constant = 0;
  if constexpr (kRounds != Rounds::spread)
    constant = __shfl_sync(0xFFFFFFFFu, d.draw_constant, 0);  // in a register, where the compiler does not copy it for every use
  // Of the lane's first column; the second half of the slab's rows and the second column lie constants away.
  uint8_t* scale = &scales.scales[s.local_column + 2 * s.lane][s.local_row / 16];
  [[maybe_unused]] const bool rare = level.lift != 0 || d.tile;  // one question in the loop
  const int vector = s.local_column + 2 * s.lane;
  [[maybe_unused]] uint8_t* codes = packed + (vector * 16 + staged_chunk<4>(vector, s.local_row / 8)) * 4;
  // kCarried: addresses go from step to step.
  constexpr bool kSpread = kRounds == Rounds::spread, kCarried = kCompact && kSpread;
  // staged_values of the lane's columns: their chunks are one digit apart, which is an exclusive or.
  [[maybe_unused]] uint32_t staged, drawn;
  if constexpr (kCarried) staged = s.second_at + static_cast<uint32_t>((s.lane >> 1) * 128 + (((s.lane & 1) * 4 ^ (s.lane >> 1 & 3)) << 4));
  if constexpr (kSpread) drawn = s.second_at + drawn_at(s.lane >> 2, s.lane & 3) * 16;
#pragma unroll 1
  for (int first = 0; first < kSlabRows; first += kRows) {
    Block16<T> t[2][kRows / 16];
    [[maybe_unused]] ColumnPair pair;
    if constexpr (kPair) {
#pragma unroll
      for (int i = 0; i < 16; ++i) pair.w[i] = s.pair(first + i);
      if (rare && level.lift != 0) pair.lift(level.lift);
    } else {
      if constexpr (kReady) {
#pragma unroll
        for (int i = 0; i < kParts; ++i) t[0][i] = ready[0][i], t[1][i] = ready[1][i];
      } else {
        load_columns<T, kRows, kWidth, kSpread && sizeof(T) == 2>(s, first, flips, by, t);
      }
      if (level.lift != 0) {
#pragma unroll
        for (int i = 0; i < kRows / 16; ++i) t[0][i].lift(level.lift), t[1][i].lift(level.lift);
      }
    }
#pragma unroll(kCompact ? 1 : kParts)
    for (int part = 0; part < kParts; ++part) {
      const int at = kCompact ? 0 : part;
      const int half = kRows == 32 ? part : first / 16;
      uint32_t amax[2];
      if constexpr (kPair) {
        pair.amax(amax);
      } else {
        amax[0] = t[0][at].amax(), amax[1] = t[1][at].amax();
      }
      [[maybe_unused]] uint32_t draws[16] = {};
      if ((!kPair || rare) && d.tile) amax[0] = amax[1] = max_over(max(amax[0], amax[1]), 1 | 2 | 4);
      if constexpr (kSpread) {
        load_draws(s, drawn + static_cast<uint32_t>(kCarried ? 0 : half) * (kSlabBytes / 2), draws);
      } else if constexpr (kStochastic) {
#pragma unroll
        for (int i = 0; i < 16; ++i) draws[i] = *reinterpret_cast<const uint32_t*>(s.second + (half * 16 + i) * 128 + s.lane * 4);
      }
      constexpr int kWords = kForm == Form::bf16 ? 8 : 2;
      uint32_t out[2][kWords];
      [[maybe_unused]] bool beside = false;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        Fp4Block b = fp4_block<T, kStep, kRounds, kTies>(code, level, amax[j]);
        bool fast = kHasFast<T, kStochastic> && !b.special;
        if constexpr (kPair) {  // high_element takes finite pairs
          fast = fast && (j == 0 || !beside);
          beside = b.special;
        }
        if constexpr (kWatched<T, kStep, kStochastic>) {
          fast = __all_sync(0xFFFFFFFFu, fast16<kForm>(t[j][at], b, by, out[j])) && !b.special;
        }
        if (fast) {
          if constexpr (kPair) {
            fast16<kStep, kForm>(pair, j, b, by, out[j]);
          } else if constexpr (kHasFast<T, kStochastic>) {
            fast16<kStep, kForm>(t[j][at], b, by, out[j]);
          }
        } else {
          if constexpr (kPair) t[j][at] = pair.column(j);
          if (b.special) settle<T, kStep>(t[j][at], code, level, amax[j], b);
          quantise16<T, kStep, kRounds, kForm>(
              t[j][at], b, by,
              [&](int i, float y) {
                return j == 0 ? stochastic_e2m1<kRounds, 0>(y, draws[i], by.by2, constant)
                              : stochastic_e2m1<kRounds, 1>(y, draws[i], by.by2, constant);
              },
              out[j]);
        }
        scale[j * sizeof(scales.scales[0]) + half] = static_cast<uint8_t>(b.byte);
      }
      if constexpr (kForm == Form::bf16) {
        if (kStochastic) __syncwarp();  // the draws are read
#pragma unroll
        for (int j = 0; j < 2; ++j) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const uint4 v = {out[j][4 * c], out[j][4 * c + 1], out[j][4 * c + 2], out[j][4 * c + 3]};
            if constexpr (kCarried) {
              *reinterpret_cast<uint4*>(s.memory + (staged ^ static_cast<uint32_t>(2 * j + c) << 4)) = v;
            } else {
              *staged_values(s.second, half, 2 * s.lane + j, c) = v;
            }
          }
        }
        if constexpr (kCarried) staged = (staged ^ 64u) + kSlabBytes / 2;
      } else {
#pragma unroll
        for (int j = 0; j < 2; ++j) *reinterpret_cast<uint2*>(codes + j * 64 + half * 8) = {out[j][0], out[j][1]};
      }
      if constexpr (kCarried) drawn += kSlabBytes / 2;
      if constexpr (kCompact) {
        if (kCarried && part + 1 == kParts) break;
        t[0][0] = t[0][kParts - 1], t[1][0] = t[1][kParts - 1];
      }
    }
  }
  if constexpr (kForm == Form::bf16) {
    __syncwarp();
    const int chunk = s.lane & 3, column = s.lane >> 2, r = s.row + chunk * 8;
    auto* to = static_cast<uint8_t*>(d.values) + (int64_t{s.column + column} * d.C + r) * 2;
    const uint32_t step = static_cast<uint32_t>(d.C) * 16;
    if (s.row + kSlabRows <= d.C && s.column + kSlabColumns <= d.R) {
      if constexpr (kCarried) {
        const uint32_t from =
            s.second_at + static_cast<uint32_t>((chunk >> 1) * (kSlabBytes / 2) + (column >> 2) * 128 +
                                                (((column & 3) * 2 + (chunk & 1)) ^ (column >> 2) ^ (chunk >> 1) * 4) * 16);
#pragma unroll
        for (uint32_t k = 0; k < 8; ++k) {
          *reinterpret_cast<uint4*>(to + uint64_t{step} * k) =
              *reinterpret_cast<const uint4*>(s.memory + ((from ^ (k & 1) << 5) + k * 256));
        }
      } else {
#pragma unroll
        for (uint32_t k = 0; k < 8; ++k) {
          *reinterpret_cast<uint4*>(to + uint64_t{step} * k) = *staged_values(s.second, chunk >> 1, 8 * k + column, chunk & 1);
        }
      }
    } else {
      const int valid = r < d.C ? d.R - s.column - column : 0;
#pragma unroll 1
      for (uint32_t k = 0; k < 8 && static_cast<int>(8 * k) < valid; ++k) {
        *reinterpret_cast<uint4*>(to + uint64_t{step} * k) = *staged_values(s.second, chunk >> 1, 8 * k + column, chunk & 1);
      }
    }
  }
}

// Writes over the elements, or kDirect, where arithmetic takes longer than halves of sectors, to the matrix: 1 to 1.5% less time.
template <class T, Step kStep, Rounds kRounds, Form kForm, bool kTies, bool kDirect>
__device__ __forceinline__ void rows_pass(const CopyArgs& d, const BlockCode& code, const Shifts& by, const Slab<T>& s,
                                          const Fp4Level level, StagedScales& scales) {
  constexpr bool kStochastic = kRounds != Rounds::nearest;
  [[maybe_unused]] const uint32_t constant =
      __shfl_sync(0xFFFFFFFFu, d.draw_constant, 0);  // in a register, where the compiler does not copy it for every use
  const int block = s.lane & 3;
  [[maybe_unused]] StepWords words;
  if constexpr (kStochastic) words = step_words(d.draws);
  uint32_t tiles[2] = {};  // maxima of 16 x 16 elements, in eight lanes each
  if (d.tile) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      Block16<T> t[2][1];
      load_columns<T, 16, 0>(s, 16 * h, nullptr, by, t);
      if (level.lift != 0) t[0][0].lift(level.lift), t[1][0].lift(level.lift);
      tiles[h] = max_over(max(t[0][0].amax(), t[1][0].amax()), 1 | 2 | 4);
    }
    __syncwarp();
  }
  uint8_t* to = static_cast<uint8_t*>(d.values) + (int64_t{s.row + (s.lane >> 3)} * d.C + s.column + (s.lane & 7) * 8) * 2;
  if constexpr (kForm == Form::packed) to = d.packed + (int64_t{s.row + (s.lane >> 2)} * d.C + s.column + block * 16) / 2;
  if constexpr (kDirect) to = static_cast<uint8_t*>(d.values) + (int64_t{s.row + (s.lane >> 2)} * d.C + s.column + block * 16) * 2;
  const int valid = s.column + (s.lane & 7) * 8 < d.C ? d.R - s.row - (s.lane >> 3) : 0;
  // Every block of the slab is there, in whole pieces of eight bytes.
  [[maybe_unused]] const bool whole = s.row + kSlabRows <= d.R && s.column + kSlabColumns <= d.C &&
                                      (reinterpret_cast<uintptr_t>(d.packed) | static_cast<uint32_t>(d.C) / 2) % 8 == 0;
  [[maybe_unused]] const int pieces =
      !whole && s.column + block * 16 < d.C ? d.R - s.row - (s.lane >> 2) : 0;  // rows in pieces of four bytes
  uint8_t* scale = &scales.scales[s.local_row + (s.lane >> 2)][s.local_column / 16 + block];
  constexpr bool kFast = kHasFast<T, kStochastic>;
  [[maybe_unused]] const bool rare = level.lift != 0 || d.tile;  // one question in the loop
  constexpr int kChunks = sizeof(T);
  const uint4* chunks[kChunks];
#pragma unroll
  for (int k = 0; k < kChunks; ++k) chunks[k] = s.chunk(s.lane >> 2, kChunks * block + k);
  // Rows that are left; none of the block's second half, where that is not there.
  [[maybe_unused]] int left, narrow;
  if constexpr (kDirect) {
    left = s.column + block * 16 < d.C ? d.R - s.row - (s.lane >> 2) : 0;
    narrow = s.column + block * 16 + 8 < d.C ? 0 : std::numeric_limits<int>::max();
  }
  [[maybe_unused]] uint32_t group;  // of the draws, from row to row
  if constexpr (kRounds == Rounds::spread) {
    group = d.draws.first + static_cast<uint32_t>(s.row + (s.lane >> 2)) * d.draws.row + static_cast<uint32_t>(s.column / 8 + 2 * block);
  }
#pragma unroll 1
  for (int i = 0; i < 4; ++i) {
    [[maybe_unused]] const int r = 8 * i + (s.lane >> 2);
    Block16<T> t;
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      const uint4 a = *chunks[k];
      chunks[k] += Slab<T>::kPitch / 2;  // eight rows
      const uint32_t words[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (sizeof(T) == 2) t.w[4 * k + j] = words[j];
        if constexpr (sizeof(T) == 4) t.v[4 * k + j] = __uint_as_float(words[j]);
      }
    }
    [[maybe_unused]] uint32_t draws[2][4] = {};
    if constexpr (kStochastic) {
      if constexpr (kRounds == Rounds::drawn) {
        group = d.draws.first + static_cast<uint32_t>(s.row + r) * d.draws.row + static_cast<uint32_t>(s.column / 8 + 2 * block);
      }
      draw8<2>(d.draws, words, group, 1, draws);
      if constexpr (kRounds == Rounds::spread) group += 8 * d.draws.row;
    }
    if ((!kFast || rare) && level.lift != 0) t.lift(level.lift);
    uint32_t amax = t.amax();
    if ((!kFast || rare) && d.tile) amax = __shfl_sync(0xFFFFFFFFu, i < 2 ? tiles[0] : tiles[1], block * 8);
    Fp4Block b = fp4_block<T, kStep, kRounds, kTies>(code, level, amax);
    constexpr int kWords = kForm == Form::bf16 ? 8 : 2;
    uint32_t out[kWords];
    bool fast = kHasFast<T, kStochastic> && !b.special;
    if constexpr (kWatched<T, kStep, kStochastic>) fast = __all_sync(0xFFFFFFFFu, fast16<kForm>(t, b, by, out)) && !b.special;
    if (fast) {
      if constexpr (kHasFast<T, kStochastic>) fast16<kStep, kForm>(t, b, by, out);
    } else {
      if (b.special) settle<T, kStep>(t, code, level, amax, b);
      quantise16<T, kStep, kRounds, kForm>(
          t, b, by,
          [&](int e, float y) {
            const uint32_t word = draws[e >> 3][(e & 7) >> 1];
            return (e & 1) == 0 ? stochastic_e2m1<kRounds, 0>(y, word, by.by2, constant)
                                : stochastic_e2m1<kRounds, 1>(y, word, by.by2, constant);
          },
          out);
    }
    *scale = static_cast<uint8_t>(b.byte);
    scale += 8 * sizeof(scales.scales[0]);
    if constexpr (kDirect) {
      if (left > 0) reinterpret_cast<uint4*>(to)[0] = {out[0], out[1], out[2], out[3]};
      if (left > narrow) reinterpret_cast<uint4*>(to)[1] = {out[4], out[5], out[6], out[7]};
      to += uint64_t{static_cast<uint32_t>(d.C)} * 16, left -= 8;
    } else if constexpr (kForm == Form::bf16) {
      if (sizeof(T) == 4) __syncwarp();  // the row is read
      *s.output(r, 2 * block) = {out[0], out[1], out[2], out[3]};
      *s.output(r, 2 * block + 1) = {out[4], out[5], out[6], out[7]};
      __syncwarp();
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const uint4 v = *s.output(8 * i + 4 * k + (s.lane >> 3), s.lane & 7);
        if (8 * i + 4 * k < valid) *reinterpret_cast<uint4*>(to) = v;
        to += uint64_t{static_cast<uint32_t>(d.C)} * 8;
      }
    } else {
      if (whole) *reinterpret_cast<uint2*>(to) = {out[0], out[1]};
      if (8 * i < pieces) reinterpret_cast<uint32_t*>(to)[0] = out[0];
      if (8 * i < pieces && s.column + block * 16 + 8 < d.C) reinterpret_cast<uint32_t*>(to)[1] = out[1];
      to += uint64_t{static_cast<uint32_t>(d.C)} * 4;
    }
  }
}

// A lane's words of the tensor's maximum from an earlier pass, all loads at once.
struct TensorWords {
  uint32_t w[5];
  __device__ __forceinline__ void load(const CopyArgs& d, int lane) {
#pragma unroll
    for (int i = 0; i < 5; ++i) {
      if (d.tensor_amax != nullptr && 32 * i + lane < d.tensor_parts) w[i] = d.tensor_amax[32 * i + lane];
    }
  }
  __device__ __forceinline__ uint32_t maximum() const {
    return __reduce_max_sync(0xFFFFFFFFu, max(max(max(w[0], w[1]), max(w[2], w[3])), w[4]));
  }
};

// Whether columns are rotated before the thread block waits for the pass: where arithmetic takes longest.
template <class T>
constexpr bool rotates_first(bool stochastic, Copies copies, int width) {
  return sizeof(T) == 2 && stochastic && copies == Copies::both && width == 32;
}
// Thread blocks that may start while the pass before them runs, some more than there is room for: they bring their elements before they
// wait for it, and ask for the tensor's maximum after it. Packed copies and most of bf16, whose passes keep most of the shared memory, have
// none; those that rotate first start as soon as a thread block of the pass ends.
template <class T>
constexpr unsigned first_blocks(bool packed, bool stochastic, Copies copies, int width) {
  if (rotates_first<T>(stochastic, copies, width)) return 6 * 132;
  if (packed || (sizeof(T) == 2 && !(stochastic && width == 16))) return 0;
  return (width != 0 ? 2 : 4) * 132;
}
constexpr bool all_packed(Copies copies, Form row, Form columns) {
  return (copies == Copies::transposed || row == Form::packed) && (copies == Copies::row || columns == Form::packed);
}
// Both copies of bf16 take a thread block so long that the last of them leave the multiprocessors half empty for some microseconds. So
// the last 64 tiles are given to two thread blocks, one for each copy: 1 to 2% less time at 64 MiB.
inline constexpr unsigned kSplitColumns = 8;  // columns of tiles
template <class T>
constexpr bool splits(Copies copies) {
  return sizeof(T) == 2 && copies == Copies::both;
}
template <class T>
constexpr Rounds rounds_of(bool stochastic, Copies copies, Form row, Form columns) {
  if (!stochastic) return Rounds::nearest;
  return (sizeof(T) == 2 && copies == Copies::row) || all_packed(copies, row, columns) ? Rounds::drawn : Rounds::spread;
}
template <class T>
constexpr int slab_blocks_on_sm(Copies copies, int width, bool stochastic, bool packed) {
  if (kHasFast<T, false> && !stochastic && packed && width == 0) return 4;
  return (sizeof(T) == 4 && copies != Copies::row) || (width == 32 && !stochastic) ? 2 : 3;
}
template <class T, Step kStep, bool kStochastic, Form kRowForm, Form kColumnForm, Copies kCopies, int kWidth>
__global__ void __launch_bounds__(slab_warps<T>(kStochastic, kCopies, kWidth) * 32,
                                  slab_blocks_on_sm<T>(kCopies, kWidth, kStochastic, all_packed(kCopies, kRowForm, kColumnForm)) *
                                      (8 / slab_warps<T>(kStochastic, kCopies, kWidth)))
    slab_kernel(const __grid_constant__ SlabArgs args) {
  // Asynchronous copies are faster to aligned rows, by up to 8% of all.
  extern __shared__ __align__(128) uint4 slab_memory[];
  constexpr int kSlabWarps = slab_warps<T>(kStochastic, kCopies, kWidth), kHalves = 8 / kSlabWarps,
                kColumns = kTile / kHalves;  // of a thread block
  __shared__ RowFlips flips[kWidth != 0 ? kSlabWarps : 1];
  const TileArgs& a = args.tile;
  constexpr bool kRow = kCopies != Copies::transposed, kTransposed = kCopies != Copies::row;
  constexpr Rounds kRounds = rounds_of<T>(kStochastic, kCopies, kRowForm, kColumnForm);
  constexpr bool kSecond = kTransposed && (kStochastic || kColumnForm == Form::bf16);
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const int band = static_cast<int>(a.backwards ? gridDim.z - 1 - blockIdx.z : blockIdx.z);
  int tile_r = band * kBand + static_cast<int>(blockIdx.x) / kHalves;
  const int half = static_cast<int>(blockIdx.x) % kHalves;
  int tile_c = static_cast<int>(a.backwards ? gridDim.y - 1 - blockIdx.y : blockIdx.y);
  // The copies of the last tiles are made by thread blocks of their own (SlabArgs::split): those of rows in a band beyond the matrix.
  [[maybe_unused]] unsigned only = 0;  // 1 rows, 2 columns
  if constexpr (splits<T>(kCopies)) {
    unsigned across = blockIdx.y, down = blockIdx.z;
    const unsigned whole = gridDim.y - args.split;
    if (down == args.bands) {
      if (across >= args.split) return;
      across += whole, --down, only = 1;
    } else {
      only = down == args.bands - 1 && across >= whole ? 2 : 0;
    }
    tile_r = static_cast<int>(a.backwards ? args.bands - 1 - down : down) * kBand + static_cast<int>(blockIdx.x) / kHalves;
    tile_c = static_cast<int>(a.backwards ? gridDim.y - 1 - across : across);
  }
  const bool with_rows = kRow && only != 2, with_columns = kTransposed && only != 1;
  if (tile_r >= a.tiles_r) return;
  auto* memory = reinterpret_cast<uint8_t*>(slab_memory);
  auto* staged = reinterpret_cast<StagedScales*>(memory + kSlabWarps * (kSlabOf<T> + (kSecond ? kSlabBytes : 0)));
  auto* packed = reinterpret_cast<uint8_t*>(staged + 2);
  Slab<T> s;
  s.x = memory + warp * kSlabOf<T>, s.second = memory + kSlabWarps * kSlabOf<T> + warp * kSlabBytes, s.lane = lane;
  s.memory = memory, s.second_at = kSlabWarps * kSlabOf<T> + static_cast<uint32_t>(warp) * kSlabBytes;
  s.local_row = (kHalves == 2 ? warp : warp >> 1) * kSlabRows, s.local_column = kHalves == 2 ? 0 : (warp & 1) * kSlabColumns;
  const int left = tile_c * kTile + half * kColumns;
  s.row = tile_r * kTile + s.local_row, s.column = left + s.local_column;

  start_dependents();
  // One warp computes the second level of a copy for all, from words that thread blocks after the first ask for before the elements.
  const bool of_level = warp < 2, second = kRow && kTransposed ? warp == 1 : kTransposed;
  const CopyArgs& levelled = second ? a.transposed : a.row;
  constexpr unsigned kFirst = first_blocks<T>(all_packed(kCopies, kRowForm, kColumnForm), kStochastic, kCopies, kWidth);
  const bool late = kFirst == 0 || blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z) >= kFirst;
  TensorWords words{};
  if (of_level && late) {
    if (a.dependent) wait_for_primary();
    words.load(levelled, lane);
  }
  {
    constexpr int kLanes = Slab<T>::kPitch / 16, kStepRows = 32 / kLanes;  // lanes a row; rows a step
    const int first = lane / kLanes, row = s.row + first, column = s.column + lane % kLanes * (16 / static_cast<int>(sizeof(T)));
    const auto* source = static_cast<const uint8_t*>(a.x) + (row * a.ld + column) * static_cast<int64_t>(sizeof(T));
    const auto step = static_cast<uint32_t>(a.ld * kStepRows * static_cast<int64_t>(sizeof(T)));
    const int valid = column < a.cols ? a.rows - row : 0;
#pragma unroll
    for (uint32_t i = 0; i < kSlabRows / kStepRows; ++i) {  // rows of a lane's chunks are all even or all odd
      copy_async(s.chunk(first, lane % kLanes) + i * (kStepRows * Slab<T>::kPitch / 16), source + uint64_t{step} * i,
                 kStepRows * static_cast<int>(i) < valid);
    }
  }
  // Draws need neither elements nor maxima: they are made while those come.
  if constexpr (kTransposed && kStochastic) {
    if (with_columns) slab_draws<T, kRounds>(a.transposed, s);
  }
  constexpr bool kReady = rotates_first<T>(kStochastic, kCopies, kWidth);
  [[maybe_unused]] Block16<T> ready[2][2];
  if constexpr (kReady) {
    if (with_columns) {
      flips[warp].fill(a.transposed, kWidth, lane);
      wait_for_copies();
      __syncwarp();
      load_columns<T, 32, 32>(s, 0, flips[warp].words, args.shifts, ready);
    }
  }
  if (a.dependent) wait_for_primary();
  __shared__ Fp4Level levels[2];
  if (of_level) {
    constexpr Fp4Chain kChain = kStep == Step::divide ? Fp4Chain::alto : Fp4Chain::torchao;
    const CopyArgs& d = levelled;
    if (!late) words.load(d, lane);
    const ScalePair outer = fp4_outer(kChain, d.wide ? ScaleFormat::ue5m3 : ScaleFormat::e4m3, d.two_level, words.maximum());
    if (d.outer != nullptr && tile_r == 0 && tile_c == 0 && lane == 0) *d.outer = outer.scale;
    Fp4Level level = fp4_level<kStep, kRounds>(outer, second ? args.transposed : args.row);
    if constexpr (kHasFast<T, kStochastic>)
      level.ties = ties_of<kStep>(level.outer, (second ? kColumnForm : kRowForm) == Form::packed, lane);
    if (lane == 0) levels[second] = level;
  }
  __syncthreads();
  wait_for_copies();
  __syncwarp();
  // By two passes: asking for ties in each block takes 2% of both packed copies of a tensor that has none. Not of rotated columns, which
  // take 20% more registers by two.
  constexpr bool kHasTies = kHasFast<T, kStochastic>;
  const auto by_ties = [](const Fp4Level& level, auto&& pass) {
    if (kHasTies && (kWidth != 0 || level.ties != 0)) {
      pass.template operator()<kHasTies>();
    } else if constexpr (!kHasTies || kWidth == 0) {
      pass.template operator()<false>();
    }
  };
  if constexpr (kTransposed) {
    if (with_columns) {
      if constexpr (kWidth != 0 && !kReady)
        flips[warp].fill(a.transposed, kWidth, lane, kRounds == Rounds::spread && sizeof(T) == 2 ? kFlipBits : 0u);
      by_ties(levels[1], [&]<bool kTies>() {
        columns_pass<T, kStep, kRounds, kColumnForm, kWidth, kTies, kHalves == 2, kReady>(
            a.transposed, args.transposed, args.shifts, kWidth != 0 ? flips[warp].words : nullptr, s, levels[1], staged[1], packed, ready);
      });
      __syncwarp();
    }
  }
  if constexpr (kRow) {
    constexpr bool kDirect = kStochastic && sizeof(T) == 2 && kRowForm == Form::bf16 && kTransposed;
    if (with_rows) {
      by_ties(levels[0], [&]<bool kTies>() {
        rows_pass<T, kStep, kRounds, kRowForm, kTies, kDirect>(a.row, args.row, args.shifts, s, levels[0], staged[0]);
      });
    }
  }
  __syncthreads();
  if constexpr (kRow) {
    if (with_rows) flush_scales<16, kColumns / 16>(a.row, staged[0], tile_r * kTile, left, thread);
  }
  if constexpr (kTransposed) {
    if (!with_columns) return;
    flush_scales<16, kTile / 16, kColumns>(a.transposed, staged[1], left, tile_r * kTile, kRow && kHalves == 1 ? thread - kTile : thread);
    if constexpr (kColumnForm == Form::packed) {
      flush_elements<4, kSlabWarps * 32, kColumns>(a.transposed.packed, a.transposed, packed, left, tile_r * kTile, thread);
    }
  }
}

template <class T, Step kStep, bool kStochastic, Form kRowForm, Form kColumnForm, Copies kCopies, int kWidth>
void launch_slab(const SlabArgs& a, TileGrid tiles, cudaStream_t stream) {
  auto* kernel = slab_kernel<T, kStep, kStochastic, kRowForm, kColumnForm, kCopies, kWidth>;
  constexpr int kBytes = slab_bytes<T>(kStochastic, kColumnForm, kCopies, kWidth);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  constexpr int kWarps = slab_warps<T>(kStochastic, kCopies, kWidth);
  dim3 grid = band_grid(tiles);
  grid.x *= 8 / kWarps;
  SlabArgs args = a;
  args.bands = grid.z;
  if (splits<T>(kCopies) && grid.x == kBand * (8 / kWarps) && grid.y > kSplitColumns && grid.x * grid.y * grid.z >= 8 * 132) {
    args.split = kSplitColumns, ++grid.z;
  }
  DependentLaunch launch(grid, kWarps * 32, stream, a.tile.dependent);
  launch.config.dynamicSmemBytes = kBytes;
  cudaLaunchKernelEx(&launch.config, kernel, args);
}

}  // namespace halftone::device
