#pragma once
#include "halftone/quantize/cuda/block32.cuh"
#include "halftone/quantize/cuda/dependent.cuh"
#include "halftone/quantize/cuda/statistics.h"
#include "halftone/quantize/cuda/tile_pass.cuh"

namespace halftone::device {

// The largest magnitude of the tensor from the words of an earlier pass, kAtOnce loads of a lane together; every lane gets it.
template <int kAtOnce = 5>
__device__ __forceinline__ uint32_t reduce_parts(const uint32_t* parts, int count, int lane) {
  uint32_t a = 0;
  if (parts == nullptr) return a;
#pragma unroll kAtOnce
  for (int i = 0; i < kStatisticsParts; i += 32) {
    if (i + lane < count) a = max(a, parts[i + lane]);
  }
  return __reduce_max_sync(0xFFFFFFFFu, a);
}

// Copies in blocks of 32 by way of shared memory. A warp brings 32 rows of 128 bytes there, 64 elements of bf16 or 32 of fp32; then a
// lane takes whole blocks: those of its row, and the 32 rows of its columns, two or one. So maxima, scales and the rotation need no
// exchange between lanes, and the elements of a block stay in one thread's registers. Outputs are collected in shared memory and
// stored as whole sectors.
template <class T, bool kStochastic, Form kForm, Copies kCopies, bool kRotated>
struct BlocksShared {
  static constexpr bool kRow = kCopies != Copies::transposed, kTransposed = kCopies != Copies::row;
  // Outputs of a row take the place of its elements; where those would be half of a sector, the first half waits for the second.
  static constexpr bool kKeepsRows = kRow && sizeof(T) == 4 && kForm == Form::packed;
  // The elements of the second half then come while the first is encoded, where that takes longer than memory does.
  static constexpr bool kAhead = kKeepsRows && kTransposed && (kStochastic || kRotated);
  static constexpr int kKept = kKeepsRows ? 8 * 32 * 16 : 16, kDraws = kStochastic && kTransposed ? 8 * 16 * 128 : 16;
  static constexpr int kOutputs = kTransposed ? kTile * 16 * output_bytes(kForm) : 16;
  // Nearest codes of rotated columns of bf16 are made one column after the other, in 64 registers.
  static constexpr bool kByColumn = kTransposed && kRotated && sizeof(T) == 2 && !kStochastic;
  static constexpr bool kFewRegisters = kByColumn || (kStochastic ? !kTransposed && sizeof(T) == 2 && kForm == Form::packed
                                                                  : !kRotated && (sizeof(T) == 2 || (kKeepsRows && kTransposed)));
  // Each warp's own, unless wide rows need the room: all warps write the same.
  static constexpr int kFlips = kRotated && !(sizeof(T) == 4 && kForm == Form::folded) ? 8 : 1;
  // Thread blocks a multiprocessor, and wide rows where its 228 KB, 1 KB less a thread block, hold as many.
  static constexpr int kBlocks = kFewRegisters ? 4 : 3;
  static constexpr int kOthers =
      kKept + kDraws + kOutputs + static_cast<int>(kFlips * sizeof(RowFlips) + 2 * sizeof(StagedScales)) + 1024 + 128;
  static constexpr bool kWideFits = (8 * 32 * kWidePitch + kOthers) * kBlocks <= 228 * 1024;
  static constexpr int kPitch = kWideFits ? kWidePitch : kByColumn ? kTightPitch : kNarrowPitch;
  alignas(128) uint8_t x[8][32 * kPitch];
  alignas(16) uint8_t kept[kKeepsRows ? 8 : 1][kKept / (kKeepsRows ? 8 : 1)];
  alignas(16) uint8_t draws[kDraws > 16 ? 8 : 1][kDraws / (kDraws > 16 ? 8 : 1)];
  alignas(16) uint8_t transposed[kOutputs];
  RowFlips flips[kFlips];
  StagedScales row_scales, transposed_scales;
};

// Bytes of vector v of a transposed copy from byte `at`, 16 by 16: pieces of neighbouring vectors in different banks.
template <int kBytes>
__device__ __forceinline__ int transposed_at(int v, int at) {
  return (v * 16 * kBytes + at) ^ (v >> 1 & 7) << 4;
}

template <int kBytes, int kVectors, int kElements, int kThreads, class At>
__device__ __forceinline__ void flush_pieces(uint8_t* to, const CopyArgs& d, int r0, int c0, int thread, At&& at) {
  constexpr int pieces = kElements * kBytes / 128, each = 128 / kBytes, step = kThreads / pieces;  // of a vector; elements of one
  const int c = c0 + thread % pieces * each;
  if (c >= d.C) return;
  int vector = thread / pieces;
  uint8_t* out = to + (int64_t{r0 + vector} * d.C + c) * kBytes / 8;
  const int64_t stride = int64_t{step} * d.C * kBytes / 8;
  const bool whole = c + each <= d.C && reinterpret_cast<uintptr_t>(out) % 16 == 0 && stride % 16 == 0;
  if (whole && r0 + kVectors <= d.R) {
#pragma unroll
    for (int i = 0; i < kVectors / step; ++i)
      *reinterpret_cast<uint4*>(out + stride * i) = *reinterpret_cast<const uint4*>(at(vector + i * step, thread % pieces * 16));
    return;
  }
#pragma unroll 1
  for (; vector < kVectors && r0 + vector < d.R; vector += step, out += stride) {
    const uint4 w = *reinterpret_cast<const uint4*>(at(vector, thread % pieces * 16));
    if (kBytes == 16 || whole) {
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

template <Form kForm>
__device__ __forceinline__ uint8_t* output_of(const CopyArgs& d) {
  return kForm == Form::packed ? d.packed : kForm == Form::codes ? d.codes : static_cast<uint8_t*>(d.values);
}

template <int kLanes>
__device__ __forceinline__ uint32_t tile_max(uint32_t a) {
  if constexpr (kLanes == 32) return __reduce_max_sync(0xFFFFFFFFu, a);
  return max_over(a, 1 | 2 | 4 | 8);
}
// kLanes: that have the vectors of a tile between them, kVectors each.
template <int kLanes, int kVectors>
__device__ __forceinline__ void references_of(const CopyArgs& d, int r, bool writes, uint32_t tensor_amax, uint32_t (&byte)[kVectors]) {
  if (d.form == ValueForm::fold_e5m2) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) byte[j] = mx_byte(d.mx, tensor_amax);
    if (writes && r == 0) *d.fold_scale = byte[0] == 255 ? quiet_nan() : fold_scale(Float::e5m2, static_cast<int>(byte[0]) - 127);
    return;
  }
  uint32_t whole = 0;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    byte[j] = r + j < d.R ? d.group_amax[r + j] : 0u;
    whole = max(whole, byte[j]);
  }
  if (d.tile) whole = tile_max<kLanes>(whole);
#pragma unroll
  for (int j = 0; j < kVectors; ++j) byte[j] = mx_byte(d.mx, d.tile ? whole : byte[j]);
  if (!writes) return;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    if (r + j < d.R) d.fold_scale[r + j] = byte[j] == 255 ? quiet_nan() : fold_scale(Float::e4m3, static_cast<int>(byte[j]) - 127);
  }
}

// The warp's next 32 x 32 elements of fp32 while it encodes these. (A function of its own: as one with the first load below, it changes the
// machine code of all other kernels.)
template <int kPitch>
__device__ __forceinline__ void load_ahead(const TileArgs& a, int row0, int column0, uint8_t* x, int lane) {
  const int column = column0 + (lane & 7) * 4, first = lane >> 3;
  const auto* source = reinterpret_cast<const uint8_t*>(static_cast<const float*>(a.x) + int64_t{row0 + first} * a.ld + column);
  const auto stride = static_cast<uint32_t>(a.ld * 16);
  uint8_t* to = x + first * kPitch + (lane & 7) * 16;
  if (row0 + 32 <= a.rows && column0 + 32 <= a.cols) {
    const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
#pragma unroll
    for (int i = 0; i < 8; ++i) copy_async(address + i * 4 * kPitch, source + uint64_t{stride} * static_cast<uint32_t>(i));
    return;
  }
  const int valid = column < a.cols ? a.rows - row0 - first : 0;
#pragma unroll 1
  for (int i = 0; i < 8; ++i)
    *reinterpret_cast<uint4*>(to + i * 4 * kPitch) =
        i * 4 < valid ? load_once(source + uint64_t{stride} * static_cast<uint32_t>(i)) : uint4{};
}

// Rule: BlockRule, or what a measurement puts in its place.
template <class T, Coder kCoder, bool kStochastic, Form kForm, Copies kCopies, bool kRotated,
          class Rule = std::conditional_t<kCoder == Coder::e2m1, BlockRule<T, kCoder, kStochastic, kForm>, CodeRule<kCoder>>>
__global__ void __launch_bounds__(kTileThreads, (BlocksShared<T, kStochastic, kForm, kCopies, kRotated>::kBlocks))
    blocks_kernel(const __grid_constant__ TileArgs a) {
  using Shared = BlocksShared<T, kStochastic, kForm, kCopies, kRotated>;
  constexpr int kPitch = Shared::kPitch;
  extern __shared__ __align__(128) uint8_t memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  constexpr bool kRow = kCopies != Copies::transposed, kTransposed = kCopies != Copies::row;
  constexpr bool kInWords = kCoder != Coder::e2m1;  // pairs of bf16 stay in the words in which they lie
  constexpr int kBytes = output_bytes(kForm), kColumns = 128 / static_cast<int>(sizeof(T)), kOwn = kColumns / 32, kPasses = 64 / kColumns;
  constexpr int kShift = Stochastic<float_of(kCoder)>::kShift;
  constexpr bool kFar = sizeof(T) == 2 && !kStochastic && kForm == Form::packed;
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const auto [tile_r, tile_c] = TileAt(a.backwards);
  if (tile_r >= a.tiles_r) return;
  constexpr bool kScales = kForm == Form::packed || kForm == Form::codes || kForm == Form::folded;
  const bool wide = kCopies == Copies::row && kScales && a.wide;
  const int top = tile_r * kTile + (wide ? tile_c % 4 * kWideRows : 0), left = (wide ? tile_c / 4 * 4 : tile_c) * kTile;
  const int row_in = wide ? 0 : (warp >> 1) * 32, row0 = top + row_in;  // the warp's first row in the thread block and in the matrix
  uint8_t* x = shared.x[warp];
  uint32_t row_tensor = 0, transposed_tensor = 0;
  if (!a.dependent) wait_for_primary();
  start_dependents();
  if constexpr (kRotated) shared.flips[Shared::kFlips > 1 ? warp : 0].fill(a.transposed, 32, lane, kFlipBits);

  // Draws of the transposed copy: a lane makes four groups of the warp's elements, from row `first` of its 32 on, and reads what it needs
  // of all of them from shared memory.
  constexpr int kGroups = kColumns / 8, kRowsAtOnce = 128 / kGroups, kStep = 32 / kGroups;
  const StepWords step = kStochastic && kTransposed ? step_words(a.transposed.draws) : StepWords{};
  [[maybe_unused]] const auto draws_of = [&](int group) { return shared.draws[kStochastic ? warp : 0] + group * 16; };
  // fp32: word w, of two columns, has 128 bytes for its 32 rows; four rows lie together, where lanes meet different banks.
  [[maybe_unused]] const auto four_draws_of = [&](int w, int rows) {
    return shared.draws[kStochastic ? warp : 0] + ((w * 128 + ((w >> 2 ^ w) & 3) * 32) ^ (rows >> 1) * 32) + (rows & 1) * 16;
  };
  [[maybe_unused]] const auto make_draws = [&](int column0, int first) {
    uint32_t v[4][4];
    const Draws& d = a.transposed.draws;
    if constexpr (sizeof(T) == 4) {
      draw8<4>(d, step, d.first + static_cast<uint32_t>(row0 + (lane >> 2) * 4) * d.row + static_cast<uint32_t>(column0 / 8 + (lane & 3)),
               d.row, v);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        *reinterpret_cast<uint4*>(four_draws_of((lane & 3) * 4 + i, lane >> 2)) = {v[0][i], v[1][i], v[2][i], v[3][i]};
      return;
    }
    draw8<4>(d, step,
             d.first + static_cast<uint32_t>(row0 + first + lane / kGroups) * d.row + static_cast<uint32_t>(column0 / 8 + lane % kGroups),
             kStep * d.row, v);
#pragma unroll
    for (int i = 0; i < 4; ++i) *reinterpret_cast<uint4*>(draws_of(lane + i * 32)) = {v[i][0], v[i][1], v[i][2], v[i][3]};
  };

  [[maybe_unused]] uint32_t row_reference[1] = {};
#pragma unroll 1
  for (int part = 0; part < kPasses; ++part) {
    const int column_in = (wide ? warp : warp & 1) * 64 + part * kColumns, column0 = left + column_in;
    if (!Shared::kAhead || part == 0) {
      const int column = column0 + (lane & 7) * (16 / static_cast<int>(sizeof(T))), first = lane >> 3;
      const auto* source = reinterpret_cast<const uint8_t*>(static_cast<const T*>(a.x) + int64_t{row0 + first} * a.ld + column);
      const auto stride = static_cast<uint32_t>(a.ld * sizeof(T) * 4);
      uint8_t* to = x + row_at<kPitch>(first, (lane & 7) * 16);
      // Of rows first + 4i; of odd i from `odd` on where these lie otherwise.
      uint8_t* odd = x + row_at<kPitch>(first + 4, (lane & 7) * 16) - 4 * kPitch;
      const auto of = [&](int i, auto from_even, auto from_odd) { return kPitch == kTightPitch && (i & 1) != 0 ? from_odd : from_even; };
      if (part > 0) __syncwarp();
      if (row0 + 32 <= a.rows && column0 + kColumns <= a.cols) {
        const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to)),
                   other = static_cast<uint32_t>(__cvta_generic_to_shared(odd));
#pragma unroll
        for (int i = 0; i < 8; ++i)
          copy_async(of(i, address, other) + i * 4 * kPitch, source + uint64_t{stride} * static_cast<uint32_t>(i));
      } else {
        const int valid = column < a.cols ? a.rows - row0 - first : 0;
#pragma unroll 1
        for (int i = 0; i < 8; ++i) {
          *reinterpret_cast<uint4*>(of(i, to, odd) + i * 4 * kPitch) =
              i * 4 < valid ? load_once(source + uint64_t{stride} * static_cast<uint32_t>(i)) : uint4{};
        }
      }
    }
    // They follow from positions alone: the first come while the elements do.
    if constexpr (kStochastic && kTransposed) make_draws(column0, 0);
    if (part == 0) {
      if (a.dependent) wait_for_primary();
      if constexpr (kForm == Form::folded) {
        constexpr int kAtOnce = kStochastic ? 1 : 5;  // draws need the registers
        if constexpr (kRow) row_tensor = reduce_parts<kAtOnce>(a.row.tensor_amax, a.row.tensor_parts, lane);
        if constexpr (kTransposed) transposed_tensor = reduce_parts<kAtOnce>(a.transposed.tensor_amax, a.transposed.tensor_parts, lane);
      }
    }
    // What they read comes while the elements do, unless draws that are made later need the registers.
    constexpr bool kEarly = kForm == Form::folded && (!kStochastic || sizeof(T) == 4);
    [[maybe_unused]] uint32_t column_reference[kOwn] = {};
    if constexpr (kEarly && kTransposed) {
      references_of<32 / kOwn, kOwn>(a.transposed, tile_c * kTile + column_in + kOwn * lane, tile_r == 0 && row_in == 0, transposed_tensor,
                                     column_reference);
    }
    // Both parts have the same rows; memory waits for what is done twice only where arithmetic takes longer.
    if (kEarly && kRow && (part == 0 || !(kStochastic || kRotated)))
      references_of<32, 1>(a.row, row0 + lane, column0 == 0, row_tensor, row_reference);
    wait_for_copies();
    __syncwarp();

    if constexpr (Shared::kByColumn) {
      const CopyArgs& d = a.transposed;
      const int vector = column_in + 2 * lane;
      if (d.outer != nullptr && tile_c * kTile + vector == 0 && row0 == 0) *d.outer = 1;
      const auto quantize = [&]<int kHalf>() {
        Block<T> t;
        rotate_column<kFar, kPitch, kHalf>(x, lane * 4, shared.flips[warp].words, t);
        Rule rule;
        rule.template take<kFar>(t);
        rule.make(d, column_reference[kHalf], t);
        shared.transposed_scales.scales[vector + kHalf][warp >> 1] = static_cast<uint8_t>(rule.byte);
        uint32_t out[kBytes];
#pragma unroll
        for (int group = 0; group < 4; ++group)
          rule.template encode8<kFar>(
              t, group, 0, [](int) { return 0u; }, out + group * (kBytes / 4));
#pragma unroll
        for (int i = 0; i < kBytes / 4; ++i)
          store4(shared.transposed + transposed_at<kBytes>(vector + kHalf, row_in / 8 * kBytes + i * 16), out + 4 * i);
      };
      quantize.template operator()<0>();
      quantize.template operator()<1>();
    } else if constexpr (kTransposed) {
      const CopyArgs& d = a.transposed;
      const int vector = column_in + kOwn * lane, column = tile_c * kTile + vector;
      if (d.outer != nullptr && column == 0 && row0 == 0) *d.outer = 1;
      Block<T> t[kOwn];
      load_columns<kPitch>(x + lane * 4, t);
      if constexpr (kRotated) rotate_columns(t, shared.flips[Shared::kFlips > 1 ? warp : 0].words);
      if constexpr (!kRotated && !kInWords) pair_rows<kFar>(t);
      uint32_t reference[kOwn] = {};
      if constexpr (kEarly) {
#pragma unroll
        for (int j = 0; j < kOwn; ++j) reference[j] = column_reference[j];
      } else if constexpr (kForm == Form::folded) {
        references_of<32 / kOwn, kOwn>(d, column, tile_r == 0 && row_in == 0, transposed_tensor, reference);
      }
      Rule rule[kOwn];
#pragma unroll
      for (int j = 0; j < (kInWords ? 0 : kOwn); ++j) rule[j].template take<kFar>(t[j]);
      if constexpr (kInWords) amax_of_columns(t, rule[0].amax, rule[1].amax);
      if (d.tile) {
        const uint32_t whole = tile_max<32 / kOwn>(max(rule[0].amax, rule[kOwn - 1].amax));
        rule[0].amax = rule[kOwn - 1].amax = whole;
      }
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        rule[j].make(d, reference[j], t[j]);
        shared.transposed_scales.scales[vector + j][warp >> 1] = static_cast<uint8_t>(rule[j].byte);
      }
      const uint32_t place = kStochastic ? __shfl_sync(0xFFFFFFFFu, d.draw_constant, 0) : 0u;
      const uint32_t shift = blockDim.x / (kTileThreads >> kShift);  // unknown to the compiler, see multiply_add
      uint32_t out[kOwn][kBytes];
#pragma unroll
      for (int first = 0; first < 32; first += kRowsAtOnce) {
        if (kStochastic && first != 0) {
          __syncwarp();
          make_draws(column0, first);
          __syncwarp();
        }
#pragma unroll
        for (int eight = 0; eight < kRowsAtOnce; eight += 8) {
          uint32_t words[8];
          if constexpr (kStochastic && sizeof(T) == 4) {
#pragma unroll
            for (int i = 0; i < 8; i += 4) {
              const uint4 w = *reinterpret_cast<const uint4*>(four_draws_of(lane >> 1, (eight + i) / 4));
              words[i] = w.x, words[i + 1] = w.y, words[i + 2] = w.z, words[i + 3] = w.w;
            }
          } else if constexpr (kStochastic) {
#pragma unroll
            for (int i = 0; i < 8; ++i)
              words[i] = *reinterpret_cast<const uint32_t*>(draws_of((eight + i) * kGroups + lane / 4) + lane % 4 * 4);
          }
          const int group = (first + eight) / 8;
          if constexpr (kInWords) {
            uint32_t w[8], codes[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) w[i] = t[group >> 1].w[(group & 1) * 8 + i];
            encode_pairs(w, words, rule[0], rule[1], shift, place, codes);
            column_codes(codes, out[0] + group * 2, out[1] + group * 2);
          } else {
#pragma unroll
            for (int j = 0; j < kOwn; ++j) {
              const auto draw = [&](int i) {
                if constexpr (sizeof(T) == 4) return __byte_perm(words[i], place, (lane & 1) == 0 ? 0x5104 : 0x5324);
                return j == 0 ? place_draw<0>(words[i], place) : place_draw<1>(words[i], place);
              };
              rule[j].template encode8<kFar>(t[j], group, shift, draw, out[j] + group * (kBytes / 4));
            }
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
#pragma unroll
        for (int i = 0; i < kBytes / 4; ++i)
          store4(shared.transposed + transposed_at<kBytes>(vector + j, row_in / 8 * kBytes + i * 16), out[j] + 4 * i);
      }
    }
    if constexpr (kRow) {
      if constexpr (kTransposed) __syncwarp();
      const CopyArgs& d = a.row;
      const int row = row0 + lane;
      if (d.outer != nullptr && row == 0 && column0 == 0) *d.outer = 1;
      const uint8_t* own = x + lane * kPitch;
      uint8_t* kept = shared.kept[Shared::kKeepsRows ? warp : 0];
      uint8_t* to = Shared::kKeepsRows && part == 0 ? kept + lane * 16 : x + lane * kPitch;
      uint32_t reference[1] = {row_reference[0]};
      if constexpr (kForm == Form::folded && !kEarly) references_of<32, 1>(d, row, column0 == 0, row_tensor, reference);
      const StepWords row_step = kStochastic ? step_words(d.draws) : StepWords{};
      const uint32_t place = kStochastic ? __shfl_sync(0xFFFFFFFFu, d.draw_constant, 0) : 0u;
      const uint32_t shift = blockDim.x / (kTileThreads >> kShift);
#pragma unroll 1
      for (int b = 0; b < kOwn; ++b) {
        Block<T> t;
        load_row<kPitch>(own, lane, b * 32 * static_cast<int>(sizeof(T)), t);
        if (Shared::kAhead && part + 1 < kPasses) {
          __syncwarp();
          load_ahead<kPitch>(a, row0, column0 + kColumns, x, lane);
        }
        Rule rule;
        rule.template take<false>(t);
        if (d.tile) rule.amax = tile_max<32>(rule.amax);
        rule.make(d, reference[0], t);
        uint8_t* scale =
            wide ? wide_scale(shared.row_scales, row, column0 + b * 32) : &shared.row_scales.scales[row_in + lane][column_in / 32 + b];
        *scale = static_cast<uint8_t>(rule.byte);
        const uint32_t first = d.draws.first + static_cast<uint32_t>(row) * d.draws.row + static_cast<uint32_t>(column0 / 8 + b * 4);
        uint32_t out[kBytes];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t v[2][4];
          if constexpr (kStochastic) draw8<2>(d.draws, row_step, first + half * 2, 1, v);
          if constexpr (kInWords) {
            uint32_t w[8], u[8], codes[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) w[i] = t.w[half * 8 + i], u[i] = v[i >> 2][i & 3];
            encode_pairs(w, u, rule, rule, shift, place, codes);
            row_codes(codes, out + half * 4);
          } else {
#pragma unroll
            for (int k = 0; k < 2; ++k) {
              const auto draw = [&](int i) {
                return (i & 1) == 0 ? place_draw<0>(v[k][i >> 1], place) : place_draw<1>(v[k][i >> 1], place);
              };
              rule.template encode8<false>(t, half * 2 + k, shift, draw, out + (half * 2 + k) * (kBytes / 4));
            }
          }
        }
#pragma unroll
        for (int i = 0; i < kBytes / 4; ++i) store4(to + in_row<kPitch>(lane, b * 4 * kBytes + i * 16), out + 4 * i);
      }
      if (!Shared::kKeepsRows || part == kPasses - 1) {
        constexpr int kWide = Shared::kKeepsRows ? 64 : kColumns;
        __syncwarp();
        flush_pieces<kBytes, 32, kWide, 32>(output_of<kForm>(d), d, row0, column0 + kColumns - kWide, lane, [&](int r, int at) {
          return Shared::kKeepsRows ? (at == 0 ? kept + r * 16 : x + r * kPitch) : x + row_at<kPitch>(r, at);
        });
      }
    }
  }
  if constexpr (kTransposed || kScales) {
    __syncthreads();
    const int thread = static_cast<int>(threadIdx.x);
    if constexpr (kScales && kRow) {
      if (wide) {
        flush_wide_scales<32>(a.row, shared.row_scales, top, left, thread);
      } else {
        flush_scales<32>(a.row, shared.row_scales, top, left, thread);
      }
    }
    if constexpr (kScales && kTransposed)
      flush_scales<32>(a.transposed, shared.transposed_scales, tile_c * kTile, tile_r * kTile, kRow ? thread - kTile : thread);
    if constexpr (kTransposed) {
      flush_pieces<kBytes, kTile, kTile, kTileThreads>(output_of<kForm>(a.transposed), a.transposed, tile_c * kTile, tile_r * kTile, thread,
                                                       [&](int v, int at) { return shared.transposed + transposed_at<kBytes>(v, at); });
    }
  }
}

}  // namespace halftone::device
