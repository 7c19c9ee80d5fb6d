#pragma once
#include "halftone/quantize/cuda/dependent.cuh"
#include "halftone/quantize/cuda/gathered_rows.cuh"
#include "halftone/quantize/cuda/rotate_column.cuh"
#include "halftone/quantize/cuda/scale_choice.cuh"
#include "halftone/quantize/cuda/statistics.h"
#include "halftone/quantize/cuda/store_codes.cuh"
#include "halftone/quantize/operand_shape.h"

namespace halftone::device {

// Quantises copies with one scale per 16 or 32 elements along their direction, columns optionally rotated. A warp loads 32 rows of 64
// columns to smem; then each lane processes whole blocks: the blocks of two columns and of one row. Maxima, scales and rotations thus need
// no lane exchange. A single output form is staged in smem and stored as full sectors; multiple forms (Form::any) are stored from
// registers.
inline constexpr int kBlockWarps = 4, kBlockColumns = 64;  // thread block tile: 128 x 64 elements

constexpr Fp4Chain chain_of(Step step) { return step == Step::divide ? Fp4Chain::alto : Fp4Chain::torchao; }

// Element factor and value scale of a block.
struct BlockResult {
  float factor, scale;
};
template <Step kStep, int kBlock>
__device__ __forceinline__ BlockResult block_rule(const CopyArgs& d, uint32_t byte, ScalePair outer) {
  if constexpr (kBlock == 32) {
    const float inverse = mx_inverse_of(byte);
    return {d.fixed_clip ? 0.75f * inverse : inverse, e8m0_value(byte)};
  }
  const float value = fp4_scale_value(d.wide, byte);
  return {fp4_element_factor(chain_of(kStep), value, outer), value};
}

constexpr int output_bytes(Form form) { return form == Form::bf16 ? 16 : form == Form::packed ? 4 : 8; }  // per eight elements

// Per-warp smem. Staged output columns overwrite the elements.
template <class T, bool kStochastic, Form kForm, Copies kCopies>
struct BlockWarp {
  static constexpr bool kDraws = kStochastic && kCopies != Copies::row, kRows = kForm != Form::any && kCopies != Copies::transposed;
  static constexpr int kPitch = kBlockColumns * static_cast<int>(sizeof(T)) + 16;  // rows and columns free of bank conflicts
  alignas(16) uint8_t x[32 * kPitch];
  alignas(16) uint8_t draws[kDraws ? 32 * 128 : 16];  // column draws: 32 words per row, one per two columns
  alignas(16) uint8_t rows[kRows ? 32 * kBlockColumns * output_bytes(kForm) / 8 : 16];
};
template <class T, bool kStochastic, Form kForm, Copies kCopies>
struct BlockShared {
  BlockWarp<T, kStochastic, kForm, kCopies> warps[kBlockWarps];
  RowFlips flips[kBlockWarps];
};
// Swizzled offset of byte `at` in a warp's staging buffer, so that lanes writing pieces of neighbouring vectors hit different banks.
__device__ __forceinline__ uint32_t staged_at(uint32_t at) { return at ^ (at >> 7 & 7) << 4; }

// Staging slots of a lane for consecutive groups of eight elements of one vector; same interface as Outputs.
template <Form kForm>
struct Staged {
  uint8_t* memory;
  uint32_t own;  // staged_at of the vector's first byte
  __device__ __forceinline__ static constexpr bool has(uint32_t outputs) { return (outputs & output_of(kForm)) != 0; }
  __device__ __forceinline__ uint8_t* at(int i) const { return memory + (own ^ static_cast<uint32_t>(i * output_bytes(kForm))); }
  __device__ __forceinline__ uint8_t* codes_at(int i) const { return at(i); }
  __device__ __forceinline__ uint8_t* packed_at(int i) const { return at(i); }
  __device__ __forceinline__ uint8_t* values_at(int i) const { return at(i); }
};
// Stores a warp's staged vectors, kElements each, to vectors from r0 and elements from c0 of the copy: 16 bytes per lane and step.
template <Form kForm, int kVectors, int kElements>
__device__ __forceinline__ void flush_staged(const uint8_t* staged, const CopyArgs& d, int r0, int c0, int lane) {
  constexpr int kBytes = output_bytes(kForm), kPieces = kElements * kBytes / 128, kEach = 128 / kBytes, kStep = 32 / kPieces;
  const int c = c0 + lane % kPieces * kEach;
  int vector = lane / kPieces;
  if (c >= d.C) return;
  auto* to = kForm == Form::codes ? d.codes : kForm == Form::packed ? d.packed : static_cast<uint8_t*>(d.values);
  uint8_t* out = to + (int64_t{r0 + vector} * d.C + c) * kBytes / 8;
  const int64_t stride = int64_t{kStep} * d.C * kBytes / 8;
  const bool whole = c + kEach <= d.C && reinterpret_cast<uintptr_t>(out) % 16 == 0 && stride % 16 == 0;
  const auto piece = [&](int v) {
    return *reinterpret_cast<const uint4*>(staged + staged_at(static_cast<uint32_t>(v * (kElements * kBytes / 8) + lane % kPieces * 16)));
  };
  if (whole && r0 + kVectors <= d.R) {
#pragma unroll
    for (int i = 0; i < kVectors / kStep; ++i) *reinterpret_cast<uint4*>(out + stride * i) = piece(vector + i * kStep);
    return;
  }
#pragma unroll 1
  for (; vector < kVectors && r0 + vector < d.R; vector += kStep, out += stride) {
    const uint4 w = piece(vector);
    if (whole) {
      *reinterpret_cast<uint4*>(out) = w;
    } else {  // words of four codes, or of eight packed codes
      const uint32_t words[4] = {w.x, w.y, w.z, w.w};
      for (int i = 0; i < 4 && c + i * (kEach / 4) < d.C; ++i) reinterpret_cast<uint32_t*>(out)[i] = words[i];
    }
  }
}

// Reference scale bytes for folding, for a lane's kVectors vectors from r, and the fold scales of the GEMM, which the thread blocks of the
// first tile (`first`) write. kLanes: lanes that share the vectors of a tile.
template <int kLanes, bool kGroups, int kVectors>
__device__ __forceinline__ void references_of(const CopyArgs& d, int r, int row, bool first, uint32_t tensor_amax,
                                              uint32_t (&byte)[kVectors]) {
  const bool writes = first && (!kGroups || d.fold_scale != nullptr);
  if (d.form == ValueForm::fold_e5m2) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) byte[j] = mx_byte(d.mx, tensor_amax);
    if (writes && r == 0) *d.fold_scale = byte[0] == 255 ? quiet_nan() : fold_scale(Float::e5m2, static_cast<int>(byte[0]) - 127);
    return;
  }
  const int set = kGroups ? first_of_set(d, row) : 0;
  uint32_t whole = 0;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    byte[j] = r + j < d.R ? d.group_amax[set + r + j] : 0u;
    whole = max(whole, byte[j]);
  }
  if (d.tile) whole = max_over(whole, kLanes - 1);
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    byte[j] = mx_byte(d.mx, d.tile ? whole : byte[j]);
    if (writes && r + j < d.R)
      d.fold_scale[r + j] = byte[j] == 255 ? quiet_nan() : fold_scale(Float::e4m3, static_cast<int>(byte[j]) - 127);
  }
}

// Values shared by all blocks of a copy.
template <Step kStep, int kBlock>
struct CopyLevel {
  ScalePair outer{1, 1};
  float reciprocal = 1;
  __device__ __forceinline__ CopyLevel(const CopyArgs& d, uint32_t tensor_amax, bool first) {
    if constexpr (kBlock == 16) {
      outer = fp4_outer(chain_of(kStep), d.range, d.two_level, tensor_amax);
      reciprocal = divisor(outer.scale).reciprocal;
    }
    if (first && d.outer != nullptr) *d.outer = outer.scale;
  }
};

// Scale byte of a block with maximum amax in registers: vectors 0 to kBlock / 8 - 1 of `t`.
template <Coder kCoder, Step kStep, int kBlock, class T>
__device__ __forceinline__ uint32_t block_byte(const CopyArgs& d, const ElementVector<T>* t, uint32_t amax,
                                               const CopyLevel<kStep, kBlock>& level) {
  if constexpr (kBlock == 32) return mx_byte(d.mx, amax);
  if (kCoder == Coder::integer || d.choice == ScaleChoice::amax) {
    return fp4_byte < kCoder == Coder::integer ? 7 : 6 > (chain_of(kStep), d.wide, amax, level.outer, level.reciprocal);
  }
  const ChoiceRule rule = choice_rule(chain_of(kStep), d.wide, amax, level.outer, level.reciprocal);
  ChoiceErrors errors;
#pragma unroll
  for (int i = 0; i < kBlock / 8; ++i) add_errors(d.choice, rule, t[i], errors);
  return chosen_byte(d.choice, rule, errors);
}
// Replaces the maxima of a warp's tiles by their scale bytes. pair(r): elements of the lane in row r.
template <Coder kCoder, Step kStep, int kBlock, class Pair>
__device__ __forceinline__ void tile_bytes(const CopyArgs& d, const CopyLevel<kStep, kBlock>& level, uint32_t (&tiles)[32 / kBlock],
                                           Pair&& pair) {
#pragma unroll
  for (int b = 0; b < 32 / kBlock; ++b) {
    if (kBlock == 32 || kCoder == Coder::integer || d.choice == ScaleChoice::amax) {
      tiles[b] = block_byte<kCoder, kStep, kBlock, float>(d, nullptr, tiles[b], level);
      continue;
    }
    const ChoiceRule rule = choice_rule(chain_of(kStep), d.wide, tiles[b], level.outer, level.reciprocal);
    ChoiceErrors errors;
#pragma unroll
    for (int r = b * kBlock; r < (b + 1) * kBlock; r += 4) {
      add_errors(d.choice, rule, vector_of(pair(r), pair(r + 1), pair(r + 2), pair(r + 3)), errors);
    }
    errors.six = errors_over(d.choice, errors.six, kBlock / 2 - 1), errors.four = errors_over(d.choice, errors.four, kBlock / 2 - 1);
    tiles[b] = chosen_byte(d.choice, rule, errors);
  }
}

// Encodes one block in registers: vectors 0 to kBlock / 8 - 1 of `t` with scale `byte`, to vectors from `first` of `out`. draw(i, e):
// the placed draw of element e of vector i. valid(i): whether vector i lies inside the copy.
template <Coder kCoder, Step kStep, int kBlock, bool kStochastic, Form kForm, class T, class Out, class Draw, class Valid>
__device__ __forceinline__ void write_block(const CopyArgs& d, const ElementVector<T>* t, uint32_t byte,
                                            const CopyLevel<kStep, kBlock>& level, uint32_t reference, const Out& out, int first,
                                            Draw&& draw, Valid&& valid) {
  const BlockResult b = block_rule<kStep, kBlock>(d, byte, level.outer);
  const Factor by{b.factor, kStep == Step::divide ? divisor(b.factor).reciprocal : 0.0f};
  ValueWords words{__float_as_uint(1.0f), 0, 0};
  if (out.has(kBf16 | kFolded)) words = value_words<kCoder, kForm>(d, b.scale, byte, reference);
#pragma unroll
  for (int i = 0; i < kBlock / 8; ++i) {
    const Codes8 q = encode8<kCoder, kStep, kStochastic>(t[i], by, d.low, d.high, [&](int e) { return draw(i, e); });
    if (valid(i)) store_codes<kCoder, place_of(kStep, kStochastic)>(out, first + i, d.lost, q, b.factor != b.factor, words);
  }
}

// Column kHalf of a lane's two columns as vectors of eight rows; rotated by `width` unless 0.
template <int kHalf>
__device__ __forceinline__ void take_column(const uint32_t (&rows)[32], ElementVector<bf16> (&t)[4]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) t[i >> 2].w[i & 3] = __byte_perm(rows[2 * i], rows[2 * i + 1], kHalf == 0 ? 0x5410 : 0x7632);
}
template <int kHalf>
__device__ __forceinline__ void take_column(const float2 (&rows)[32], ElementVector<float> (&t)[4]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) t[i >> 3].v[i & 7] = kHalf == 0 ? rows[i].x : rows[i].y;
}
__device__ __forceinline__ void put_pair(ElementVector<bf16>& t, int i, float low, float high) { t.w[i >> 1] = bf16_words(low, high); }
__device__ __forceinline__ void put_pair(ElementVector<float>& t, int i, float low, float high) { t.v[i] = low, t.v[i + 1] = high; }
template <int kWidth, int kHalf, class Pair, class T>
__device__ __forceinline__ void rotate_column(const Pair (&rows)[32], const uint4* flips, ElementVector<T> (&t)[4]) {
#pragma unroll
  for (int first = 0; first < 32; first += kWidth) {
    float v[kWidth];
    flip_column<kWidth, kHalf>(rows + first, flips, v);
    butterflies(v);
#pragma unroll
    for (int i = 0; i < kWidth; i += 2)
      put_pair(t[(first + i) >> 3], i & 7, v[i] * hadamard_norm(kWidth), v[i + 1] * hadamard_norm(kWidth));
  }
}
__device__ __forceinline__ void load_shared8(const uint8_t* at, ElementVector<bf16>& x) {
  const uint4 a = *reinterpret_cast<const uint4*>(at);
  x = {{a.x, a.y, a.z, a.w}};
}
__device__ __forceinline__ void load_shared8(const uint8_t* at, ElementVector<float>& x) {
  const auto* v = reinterpret_cast<const float4*>(at);
  x = {{v[0].x, v[0].y, v[0].z, v[0].w, v[1].x, v[1].y, v[1].z, v[1].w}};
}
// Gathers rows (RowSource): 16 bytes per lane from every kRowsAtOnce-th of a warp's 32 rows from row0, to `to` and every kRowsAtOnce
// pitches after it. weigh_rows multiplies what the lane has loaded by the row weights.
template <int kRowsAtOnce, class T>
__device__ __forceinline__ void bring_rows(const TileArgs& a, const T* x, int row0, int column, int lane, uint8_t* to, int pitch) {
  const SourceRows rows(a.from, row0, lane);
#pragma unroll
  for (int i = 0; i < 32; i += kRowsAtOnce) {
    const int row = rows.row(i + lane / (32 / kRowsAtOnce));
    const bool there = row >= 0 && column < a.cols;
    copy_async(to + i * pitch, there ? x + row * a.ld + column : x, there);
  }
}
template <class T, int kRowsAtOnce>
__device__ __forceinline__ void weigh_rows(const RowSource& from, int row0, int lane, uint8_t* to, int pitch) {
  const SourceRows rows(from, row0, lane);
#pragma unroll 1
  for (int i = 0; i < 32; i += kRowsAtOnce) {
    const float by = rows.weight(i + lane / (32 / kRowsAtOnce));
    uint4& v = *reinterpret_cast<uint4*>(to + i * pitch);
    uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (uint32_t& word : w) {
      if constexpr (sizeof(T) == 4) word = __float_as_uint(by * __uint_as_float(word));
      if constexpr (sizeof(T) == 2) word = bf16_words(by * __uint_as_float(word << 16), by * __uint_as_float(word & 0xFFFF0000u));
    }
    v = {w[0], w[1], w[2], w[3]};
  }
}
template <class T, Coder kCoder, Step kStep, int kBlock, bool kStochastic, Form kForm, Copies kCopies>
__global__ void __launch_bounds__(kBlockWarps * 32, sizeof(T) == 4                       ? 2
                                                    : kStochastic && kForm == Form::bf16 ? 4
                                                                                         : 5)
    block_kernel(const __grid_constant__ TileArgs a) {
  using Shared = BlockShared<T, kStochastic, kForm, kCopies>;
  using Warp = BlockWarp<T, kStochastic, kForm, kCopies>;
  using Pair = RowPair<T>;
  constexpr int kPitch = Warp::kPitch, kBlocks = 32 / kBlock, kVectors = kBlock / 8;
  constexpr bool kRow = kCopies != Copies::transposed, kTransposed = kCopies != Copies::row, kGroups = kForm != Form::folded;
  extern __shared__ __align__(128) uint8_t memory[];
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const auto [turn, tile_c] = TileAt(a.backwards);
  if (turn >= a.tiles_r) return;
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  Warp& own = shared.warps[warp];
  if (!a.dependent) wait_for_primary();
  start_dependents();
  const int row0 = tile_in_turn(a.from, a.first_tile + turn) * kTile + warp * 32, column0 = tile_c * kBlockColumns;
  constexpr int kLanes = kBlockColumns * static_cast<int>(sizeof(T)) / 16, kRowsAtOnce = 32 / kLanes;
  const int first = lane / kLanes;
  if (a.from.source != nullptr) {
    bring_rows<kRowsAtOnce>(a, static_cast<const T*>(a.x), row0, column0 + lane % kLanes * (16 / static_cast<int>(sizeof(T))), lane,
                            own.x + first * kPitch + lane % kLanes * 16, kPitch);
  } else {
    const int column = column0 + lane % kLanes * (16 / static_cast<int>(sizeof(T)));
    const auto* source = reinterpret_cast<const uint8_t*>(static_cast<const T*>(a.x) + int64_t{row0 + first} * a.ld + column);
    const auto stride = static_cast<uint32_t>(a.ld * static_cast<int64_t>(sizeof(T)) * kRowsAtOnce);
    const int valid = column < a.cols ? a.rows - row0 - first : 0;
    uint8_t* to = own.x + first * kPitch + lane % kLanes * 16;
#pragma unroll
    for (int i = 0; i < 32 / kRowsAtOnce; ++i) {
      const bool there = i * kRowsAtOnce < valid;
      copy_async(to + i * kRowsAtOnce * kPitch,
                 there ? source + uint64_t{stride} * static_cast<uint32_t>(i) : static_cast<const uint8_t*>(a.x), there);
    }
  }
  // Draws depend on positions only and overlap the loads. A lane computes the draws of eight columns in every fourth row.
  if constexpr (kTransposed && kStochastic) {
    const Draws& d = a.transposed.draws;
    const StepWords step = step_words(d);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t v[4][4];
      draw8<4>(d, step,
               d.first + static_cast<uint32_t>(row0 + half * 16 + (lane >> 3)) * d.row + static_cast<uint32_t>(column0 / 8 + (lane & 7)),
               4 * d.row, v);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        *reinterpret_cast<uint4*>(own.draws + half * 2048 + i * 512 + lane * 16) = {v[i][0], v[i][1], v[i][2], v[i][3]};
    }
  }
  const int width = kTransposed && (kCoder == Coder::e2m1 || kCoder == Coder::integer) ? a.transposed.hadamard : 0;
  if (width != 0) shared.flips[warp].fill(a.transposed, width, lane);
  if (a.dependent) wait_for_primary();
  wait_for_copies();
  if (a.from.weight != nullptr) weigh_rows<T, kRowsAtOnce>(a.from, row0, lane, own.x + first * kPitch + lane % kLanes * 16, kPitch);
  if constexpr (sizeof(T) == 4) {  // the elements this lane loaded
    for (int i = 0; a.as_bf16 && i < 32; i += 2) {
      float4& v = *reinterpret_cast<float4*>(own.x + (i + lane / 16) * kPitch + lane % 16 * 16);
      round_pair(v.x, v.y), round_pair(v.z, v.w);
    }
  }
  __syncwarp();

  // Tile scales: amax of 16 x 16 elements over eight lanes, or of 32 x 32 over sixteen.
  uint32_t tiles[kBlocks] = {};
  if ((kRow && a.row.tile) || (kTransposed && a.transposed.tile)) {
#pragma unroll
    for (int r = 0; r < 32; ++r)
      tiles[r / kBlock] = max(tiles[r / kBlock], amax_of_pair(*reinterpret_cast<const Pair*>(own.x + r * kPitch + lane * sizeof(Pair))));
#pragma unroll
    for (uint32_t& m : tiles) m = max_over(m, kBlock / 2 - 1);
  }
  if constexpr (kRow) {
    const CopyArgs& d = a.row;
    const int row = row0 + lane;
    const uint32_t tensor = read_tensor_amax<kGroups>(d, row0, lane);
    const CopyLevel<kStep, kBlock> level(d, tensor, row == 0 && column0 == 0);
    uint32_t reference[1] = {};
    if (kCoder == Coder::e2m1 && is_fold(d.form)) references_of<32, kGroups>(d, row, row0, column0 == 0, tensor, reference);
    const StepWords step = kStochastic ? step_words(d.draws) : StepWords{};
    const uint32_t place =
        __shfl_sync(0xFFFFFFFFu, d.draw_constant, 0);  // keep it in a register; otherwise the compiler reloads it at every use
    const uint32_t group = d.draws.first + static_cast<uint32_t>(row) * d.draws.row + static_cast<uint32_t>(column0 / 8);
    const auto out = [&] {
      if constexpr (kForm == Form::any) return Outputs<kForm>(d, int64_t{row} * d.C + column0, 8);
      if constexpr (kForm != Form::any)
        return Staged<kForm>{own.rows, staged_at(static_cast<uint32_t>(lane * kBlockColumns * output_bytes(kForm) / 8))};
    }();
    uint32_t scales = 0, bytes[kBlocks];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) bytes[b] = tiles[b];
    if (d.tile) {
      tile_bytes<kCoder, kStep, kBlock>(d, level, bytes,
                                        [&](int r) { return *reinterpret_cast<const Pair*>(own.x + r * kPitch + lane * sizeof(Pair)); });
    }
#pragma unroll 1
    for (int b = 0; b < kBlockColumns / kBlock; ++b) {
      ElementVector<T> t[kVectors];
      uint32_t draws[kVectors][4] = {};
      uint32_t amax = 0;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        load_shared8(own.x + lane * kPitch + (b * kBlock + i * 8) * static_cast<int>(sizeof(T)), t[i]);
        amax = max(amax, amax_of(t[i]));
        if (kStochastic && i % 2 == 0) draw8<2>(d.draws, step, group + static_cast<uint32_t>(b * kVectors + i), 1, draws + i);
      }
      uint32_t byte;
      if (d.tile) {
        const uint32_t upper = __shfl_sync(0xFFFFFFFFu, bytes[0], b * kBlock / 2),
                       lower = __shfl_sync(0xFFFFFFFFu, bytes[kBlocks - 1], b * kBlock / 2);
        byte = lane < 16 ? upper : lower;
      } else {
        byte = block_byte<kCoder, kStep, kBlock>(d, t, amax, level);
      }
      write_block<kCoder, kStep, kBlock, kStochastic, kForm>(
          d, t, byte, level, reference[0], out, b * kVectors,
          [&](int i, int e) {
            return (e & 1) == 0 ? placed<kCoder, 0>(draws[i][e >> 1], place) : placed<kCoder, 1>(draws[i][e >> 1], place);
          },
          [&](int i) { return kForm != Form::any || (row < d.R && column0 + b * kBlock + i * 8 < d.C); });
      scales |= byte << 8 * b;
    }
    if constexpr (kForm != Form::any) {
      __syncwarp();
      flush_staged<kForm, 32, kBlockColumns>(own.rows, d, row0, column0, lane);
    }
    store_scales<kBlock, kBlockColumns / kBlock>(d, row, column0, scales);
  }
  if constexpr (kTransposed) {
    const CopyArgs& d = a.transposed;
    const int column = column0 + 2 * lane;
    const uint32_t tensor = read_tensor_amax<kGroups>(d, row0, lane);
    const CopyLevel<kStep, kBlock> level(d, tensor, column == 0 && row0 == 0);
    uint32_t reference[2] = {};
    if (kCoder == Coder::e2m1 && is_fold(d.form)) references_of<16, kGroups>(d, column, row0, row0 == 0, tensor, reference);
    const uint32_t place = __shfl_sync(0xFFFFFFFFu, d.draw_constant, 0);
    Pair rows[32];
#pragma unroll
    for (int r = 0; r < 32; ++r) rows[r] = *reinterpret_cast<const Pair*>(own.x + r * kPitch + lane * sizeof(Pair));
    if constexpr (kForm != Form::any) __syncwarp();  // outputs overwrite the elements
    if (d.tile) tile_bytes<kCoder, kStep, kBlock>(d, level, tiles, [&](int r) { return rows[r]; });
    const auto one_column = [&]<int kHalf>() {
      ElementVector<T> t[4];
      if (width == 32) {
        rotate_column<32, kHalf>(rows, shared.flips[warp].words, t);
      } else if (width == 16) {
        rotate_column<16, kHalf>(rows, shared.flips[warp].words, t);
      } else {
        take_column<kHalf>(rows, t);
      }
      const auto out = [&] {
        if constexpr (kForm == Form::any) return Outputs<kForm>(d, int64_t{column + kHalf} * d.C + row0, 8);
        if constexpr (kForm != Form::any)
          return Staged<kForm>{own.x, staged_at(static_cast<uint32_t>((2 * lane + kHalf) * 32 * output_bytes(kForm) / 8))};
      }();
      uint32_t scales = 0;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        uint32_t amax = 0;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) amax = max(amax, amax_of(t[b * kVectors + i]));
        const uint32_t byte = d.tile ? tiles[b] : block_byte<kCoder, kStep, kBlock>(d, t + b * kVectors, amax, level);
        const uint8_t* words = own.draws + (kStochastic ? b * kBlock * 128 + lane * 4 : 0);
        write_block<kCoder, kStep, kBlock, kStochastic, kForm>(
            d, t + b * kVectors, byte, level, reference[kHalf], out, b * kVectors,
            [&](int i, int e) { return placed<kCoder, kHalf>(*reinterpret_cast<const uint32_t*>(words + (i * 8 + e) * 128), place); },
            [&](int i) { return kForm != Form::any || (column + kHalf < d.R && row0 + b * kBlock + i * 8 < d.C); });
        scales |= byte << 8 * b;
      }
      store_scales<kBlock, kBlocks>(d, column + kHalf, row0, scales);
    };
    one_column.template operator()<0>();
    one_column.template operator()<1>();
    if constexpr (kForm != Form::any) {
      __syncwarp();
      flush_staged<kForm, kBlockColumns, 32>(own.x, d, column0, row0, lane);
    }
  }
}

template <class T, Coder kCoder, Step kStep, int kBlock, bool kStochastic, Form kForm>
void launch_blocks(const TileArgs& a, Copies copies, TileGrid tiles, cudaStream_t stream) {
  const dim3 grid = band_grid({tiles.rows, tiles.columns * (kTile / kBlockColumns)});
  launch_copies({grid, kBlockWarps * 32, stream, true}, a, copies, [&]<Copies kCopies>() {
    return std::make_pair(block_kernel<T, kCoder, kStep, kBlock, kStochastic, kForm, kCopies>,
                          static_cast<int>(sizeof(BlockShared<T, kStochastic, kForm, kCopies>)));
  });
}

}  // namespace halftone::device
