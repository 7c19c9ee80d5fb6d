#pragma once
#include "halftone/formats/eden.h"
#include "halftone/quantize/cuda/block_kernel.cuh"

namespace halftone::device {

// MS-EDEN (numerics.md 4.1) of 128 x 128 elements per thread block. Both copies are made from one tile in smem; a lane holds 32 elements
// along the contraction, four lanes a vector of 128, so that rotations of 64 and 128 exchange lanes 8 and 16 apart.
inline constexpr int kEdenWarps = 8;

template <class T, Form kForm>
struct EdenShared {
  // Rows and columns are free of bank conflicts: vectors of 16 bytes of eight rows, pairs of columns of four quarters of the rows.
  static constexpr int kPitch = kTile * static_cast<int>(sizeof(T)) + 16, kQuarter = 16 * static_cast<int>(sizeof(T));
  static constexpr int kStaged = kForm == Form::any ? 16 : 16 * kTile * output_bytes(kForm) / 8;
  alignas(16) uint8_t x[kTile * kPitch + 3 * kQuarter];
  alignas(16) uint8_t staged[kEdenWarps][kStaged];
  uint4 flips[2][kTile / 4];  // of the row and the transposed copy
  static __device__ __forceinline__ int at(int row, int column) {
    return row * kPitch + (row >> 5) * kQuarter + column * static_cast<int>(sizeof(T));
  }
};

// Values shared by a lane's units of a copy.
struct EdenLevel {
  ScalePair outer;
  float norm;
  const uint4* flips;  // of the lane's 32 elements: their signs, in smem
};
// Writes the signs of 128 elements along the contraction to `flips`.
__device__ __forceinline__ void fill_flips(const CopyArgs& d, uint4* flips) {
  if (threadIdx.x >= kTile) return;
  const RotationSigns signs = rotation_signs(d);
  const uint32_t at = threadIdx.x & static_cast<uint32_t>(d.hadamard - 1), word = at / 32;
  const uint32_t bits = word == 0 ? signs.word[0] : word == 1 ? signs.word[1] : word == 2 ? signs.word[2] : signs.word[3];
  reinterpret_cast<uint32_t*>(flips)[threadIdx.x] = bits >> at % 32 << 31;
}
__device__ __forceinline__ EdenLevel eden_level(const CopyArgs& d, uint32_t tensor_amax, const uint4* flips, int quarter, bool first) {
  const EdenLevel level{eden_outer(d.hadamard, tensor_amax), hadamard_norm(d.hadamard), flips + quarter * 8};
  if (first && d.outer != nullptr) *d.outer = level.outer.scale;
  return level;
}

// A butterfly step with the lane `distance` away.
__device__ __forceinline__ void exchange(float (&v)[32], int lane, int distance) {
  const float sign = (lane & distance) != 0 ? -1.0f : 1.0f;
#pragma unroll
  for (int i = 0; i < 32; ++i) v[i] = __fmaf_rn(v[i], sign, __shfl_xor_sync(0xFFFFFFFFu, v[i], distance));
}
// Elements with their signs applied, rotated.
__device__ __forceinline__ void rotate(float (&v)[32], float norm, int width, int lane) {
  butterflies<32, 16>(v);
  if (width >= 32) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float a = v[i], b = v[i + 16];
      v[i] = a + b, v[i + 16] = a - b;
    }
  }
  if (width >= 64) exchange(v, lane, 8);
  if (width >= 128) exchange(v, lane, 16);
#pragma unroll
  for (int i = 0; i < 32; ++i) v[i] *= norm;
}

// Encodes kCount rotated elements to pairs of codes, shifted so that they are bf16 numbers 2^-126 times their values, with signs. Returns
// the sums, neighbours first.
template <int kCount>
__device__ __forceinline__ EdenSums encode_elements(const float* v, float factor, uint32_t* pairs) {
  if constexpr (kCount > 2) {
    const EdenSums first = encode_elements<kCount / 2>(v, factor, pairs);
    return first + encode_elements<kCount / 2>(v + kCount / 2, factor, pairs + kCount / 4);
  } else {
    const float a = fabsf(v[0]) * factor, b = fabsf(v[1]) * factor;
    const uint32_t tiny = __byte_perm(round_e2m1(a), round_e2m1(b), 0x5410) << 6, values = multiply_bf16(tiny, 0x7E807E80u);
    *pairs = tiny | (__byte_perm(__float_as_uint(v[0]), __float_as_uint(v[1]), 0x7632) & 0x80008000u);
    return EdenSums{a * a, a * __uint_as_float(values << 16)} + EdenSums{b * b, b * __uint_as_float(values & 0xFFFF0000u)};
  }
}
__device__ __forceinline__ EdenSums sum_with_lane(EdenSums s, int distance) {
  return s + EdenSums{__shfl_xor_sync(0xFFFFFFFFu, s.squares, distance), __shfl_xor_sync(0xFFFFFFFFu, s.products, distance)};
}

// Quantises a lane's 32 elements. draws: of its two blocks, in the low halves. valid: blocks inside the copy. Returns the scale bytes.
template <Form kForm, class Out>
__device__ __forceinline__ uint32_t write_unit(const CopyArgs& d, float (&v)[32], const EdenLevel& level, int lane,
                                               const uint32_t (&draws)[2], const Out& out, int valid) {
  const int width = d.hadamard;
  rotate(v, level.norm, width, lane);
  uint32_t amax[2], pairs[16];
  float scale[2];
  EdenSums sums[2];
#pragma unroll
  for (int b = 0; b < 2; ++b) {
    float largest[2] = {};
#pragma unroll
    for (int i = 0; i < 16; ++i) largest[i & 1] = max_magnitudes(largest[i & 1], v[16 * b + i]);
    amax[b] = __float_as_uint(max_magnitudes(largest[0], largest[1])) & 0x7FFFFFFFu;
    const float target = fminf(fmaxf(__uint_as_float(amax[b]) * level.outer.inv, 0x1p-9f), 448.0f);
    scale[b] = fp4_scale_value(false, fp4_scale_code(false, target));
    sums[b] = eden_weighted(encode_elements<16>(v + 16 * b, __frcp_rn(scale[b] * level.outer.scale), pairs + 8 * b), scale[b]);
  }
  if (width > 16) {
    sums[0] = sums[0] + sums[1], amax[0] = max(amax[0], amax[1]);
    if (width > 32) sums[0] = sum_with_lane(sums[0], 8), amax[0] = max_over(amax[0], 8);
    if (width > 64) sums[0] = sum_with_lane(sums[0], 16), amax[0] = max_over(amax[0], 16);
    sums[1] = sums[0], amax[1] = amax[0];
  }
  uint32_t bytes = 0;
#pragma unroll
  for (int b = 0; b < 2; ++b) {
    const bool bad = poisoned(amax[b]) || level.outer.scale != level.outer.scale;
    const float correction = sums[b].products == 0 ? 1.0f : __fdiv_rn(sums[b].squares, sums[b].products);
    using Rule = Stochastic<Float::e4m3>;
    uint32_t byte = Rule::code(fminf(scale[b] * correction, Rule::kMax), place_draw<0>(draws[b], Rule::kPlace)) >> 24;
    byte = bad ? 0x7Fu : byte;
    ValueWords words{__float_as_uint(1.0f), 0, 0};
    if (out.has(kBf16)) words = value_words<Coder::e2m1, kForm>(d, fp4_scale_value(false, byte), byte, 0);
#pragma unroll
    for (int i = 2 * b; i < 2 * b + 2; ++i) {
      Codes8 q{};
#pragma unroll
      for (int k = 0; k < 4; ++k) q.w[k] = pairs[4 * i + k] >> 6, q.signs[k] = pairs[4 * i + k];
      if (b < valid) store_codes<Coder::e2m1, Place8::pairs>(out, i, d.lost, q, bad, words);
    }
    bytes |= byte << 8 * b;
  }
  return bytes;
}

__device__ __forceinline__ uint32_t pair_of(const ElementVector<bf16>& x, int k) { return x.w[k]; }
__device__ __forceinline__ float2 pair_of(const ElementVector<float>& x, int k) { return {x.v[2 * k], x.v[2 * k + 1]}; }
__device__ __forceinline__ void weigh_pair(uint32_t& w, float by) {
  w = bf16_words(by * __uint_as_float(w << 16), by * __uint_as_float(w & 0xFFFF0000u));
}
__device__ __forceinline__ void weigh_pair(float2& w, float by) { w.x *= by, w.y *= by; }

template <class T, Form kForm, Copies kCopies>
__global__ void __launch_bounds__(kEdenWarps * 32, 2) eden_tile_kernel(const __grid_constant__ TileArgs a) {
  using Shared = EdenShared<T, kForm>;
  using Pair = RowPair<T>;
  constexpr int kEach = 16 / static_cast<int>(sizeof(T)), kLanes = kTile / kEach, kRowsAtOnce = 32 / kLanes, kLoads = 16 / kRowsAtOnce;
  extern __shared__ __align__(128) uint8_t memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5, quarter = lane >> 3;
  const auto [turn, tile_c] = TileAt(a.backwards);
  if (turn >= a.tiles_r) return;
  if (!a.dependent) wait_for_primary();
  start_dependents();
  const int row0 = tile_in_turn(a.from, a.first_tile + turn) * kTile, column0 = tile_c * kTile;
  const int load_row = warp * 16 + lane / kLanes, load_column = lane % kLanes * kEach;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int r = load_row + i * kRowsAtOnce;
    int64_t row = row0 + r < a.rows && column0 + load_column < a.cols ? row0 + r : -1;
    if (a.from.source != nullptr && row >= 0) row = SourceRow(a.from, row).row;
    const T* x = static_cast<const T*>(a.x);
    copy_async(shared.x + Shared::at(r, load_column), row >= 0 ? x + row * a.ld + column0 + load_column : x, row >= 0);
  }
  if constexpr (kCopies != Copies::transposed) fill_flips(a.row, shared.flips[0]);
  if constexpr (kCopies != Copies::row) fill_flips(a.transposed, shared.flips[1]);
  if (a.dependent) wait_for_primary();
  wait_for_copies();
  if (a.from.weight != nullptr) {
    for (int i = 0; i < kLoads; ++i) {
      const int r = load_row + i * kRowsAtOnce;
      const float by = row0 + r < a.rows ? SourceRow(a.from, row0 + r).weight : 1.0f;
      auto* at = reinterpret_cast<Pair*>(shared.x + Shared::at(r, load_column));
      for (int k = 0; k < kEach / 2; ++k) weigh_pair(at[k], by);
    }
  }
  __syncthreads();

  uint8_t* const staged = shared.staged[warp];
  const auto out_at = [&](const CopyArgs& d, int64_t r, int c, int vector) {
    if constexpr (kForm == Form::any) return Outputs<kForm>(d, r * d.C + c, 8);
    if constexpr (kForm != Form::any)
      return Staged<kForm>{staged, staged_at(static_cast<uint32_t>((vector * kTile + quarter * 32) * output_bytes(kForm) / 8))};
  };
  const auto valid = [&](const CopyArgs& d, int r, int c) { return kForm != Form::any ? 2 : r < d.R ? min(max(d.C - c, 0) / 16, 2) : 0; };
  if constexpr (kCopies != Copies::transposed) {
    const CopyArgs& d = a.row;
    const EdenLevel level = eden_level(d, read_tensor_amax(d, row0, lane), shared.flips[0], quarter, row0 == 0 && column0 == 0);
    const StepWords step = step_words(d.draws);
    const int c = column0 + quarter * 32;
#pragma unroll 1
    for (int octet = 2 * warp; octet < 2 * warp + 2; ++octet) {
      const int local = octet * 8 + (lane & 7), r = row0 + local;
      float v[32];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        ElementVector<T> t;
        load_shared8(shared.x + Shared::at(local, quarter * 32 + i * 8), t);
#pragma unroll
        for (int e = 0; e < 8; e += 4) {
          const uint4 f = level.flips[2 * i + e / 4];
          v[8 * i + e] = flipped<0>(pair_of(t, e / 2), f.x), v[8 * i + e + 1] = flipped<1>(pair_of(t, e / 2), f.y);
          v[8 * i + e + 2] = flipped<0>(pair_of(t, e / 2 + 1), f.z), v[8 * i + e + 3] = flipped<1>(pair_of(t, e / 2 + 1), f.w);
        }
      }
      uint32_t words[2][4];
      draw8<2>(d.draws, step, d.draws.first + static_cast<uint32_t>(r) * d.draws.row + static_cast<uint32_t>(c) / 8, 2, words);
      const uint32_t draws[2] = {words[0][0], words[1][0]};
      const uint32_t bytes = write_unit<kForm>(d, v, level, lane, draws, out_at(d, r, c, lane & 7), valid(d, r, c));
      store_scales<16, 2>(d, r, c, bytes);
      if constexpr (kForm != Form::any) {
        __syncwarp();
        flush_staged<kForm, 8, kTile>(staged, d, row0 + octet * 8, column0, lane);
        __syncwarp();
      }
    }
  }
  if constexpr (kCopies != Copies::row) {
    const CopyArgs& d = a.transposed;
    const EdenLevel level = eden_level(d, read_tensor_amax(d, row0, lane), shared.flips[1], quarter, row0 == 0 && column0 == 0);
    const StepWords step = step_words(d.draws);
    const int pair = lane & 7, column = column0 + warp * 16 + 2 * pair, c = row0 + quarter * 32;
    Pair rows[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) rows[i] = *reinterpret_cast<const Pair*>(shared.x + Shared::at(quarter * 32 + i, warp * 16 + 2 * pair));
    uint32_t words[2][4], both[2];
    draw8<2>(d.draws, step, d.draws.first + static_cast<uint32_t>(c) * d.draws.row + static_cast<uint32_t>(column) / 8, 16 * d.draws.row,
             words);
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const uint32_t low = (pair & 1) == 0 ? words[b][0] : words[b][1], high = (pair & 1) == 0 ? words[b][2] : words[b][3];
      both[b] = (pair & 2) == 0 ? low : high;
    }
    const auto one_column = [&]<int kHalf>() {
      float v[32];
      flip_column<32, kHalf>(rows, level.flips, v);
      const uint32_t draws[2] = {both[0] >> 16 * kHalf, both[1] >> 16 * kHalf};
      const int r = column + kHalf;
      const uint32_t bytes = write_unit<kForm>(d, v, level, lane, draws, out_at(d, r, c, 2 * pair + kHalf), valid(d, r, c));
      store_scales<16, 2>(d, r, c, bytes);
    };
    one_column.template operator()<0>();
    one_column.template operator()<1>();
    if constexpr (kForm != Form::any) {
      __syncwarp();
      flush_staged<kForm, 16, kTile>(staged, d, column0 + warp * 16, row0, lane);
    }
  }
}

template <class T, Form kForm>
void launch_eden(const TileArgs& a, Copies copies, TileGrid tiles, cudaStream_t stream) {
  launch_copies({band_grid(tiles), kEdenWarps * 32, stream, true}, a, copies, [&]<Copies kCopies>() {
    return std::make_pair(eden_tile_kernel<T, kForm, kCopies>, static_cast<int>(sizeof(EdenShared<T, kForm>)));
  });
}

}  // namespace halftone::device
