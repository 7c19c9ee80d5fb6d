#pragma once
#include <algorithm>

#include "halftone/quantize/cuda/dependent.cuh"
#include "halftone/quantize/cuda/fp4_slab.h"
#include "halftone/quantize/cuda/rotate_column.cuh"
#include "halftone/quantize/cuda/tile_pass.cuh"

namespace halftone::device {

// NVFP4 and AMDFP4 copies of bf16 matrices. A warp has 32 x 64 elements to itself, brought to shared memory by asynchronous
// copies. A lane quantises whole blocks of 16: two columns of 16 (or, rotated, 32) rows for the transposed copy, 16 elements of a
// row for the other, so that maxima, rotations and scales need no exchange between lanes, and one lane computes one scale.
// Outputs of bf16 go through shared memory, too, and are stored as lines. No thread waits for another warp but for scales and
// packed columns, which the thread block stores together.
inline constexpr int kSlabRows = 32, kSlabColumns = 64, kSlabBytes = kSlabRows * kSlabColumns * 2, kSlabWarps = kTileThreads / 32;

// Shared memory: slabs of elements, slabs of draws that become outputs of the transposed copy, scales, packed columns.
constexpr int slab_bytes(bool stochastic, Form columns, Copies copies) {
  const bool transposed = copies != Copies::row, second = transposed && (stochastic || columns == Form::bf16);
  const int packed = transposed && columns == Form::packed ? kTile * 16 * 4 : 0;
  return kSlabWarps * kSlabBytes * (second ? 2 : 1) + 2 * static_cast<int>(sizeof(StagedScales)) + packed;
}

__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ void copy16_async(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Bytes of a and b by selectors whose fourth bits repeat the sign of the byte.
__device__ __forceinline__ uint32_t select_signed(uint32_t a, uint32_t b, uint32_t selectors) {
  uint32_t r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selectors));
  return r;
}

// One correction gives the nearest quotient wherever a has bf16's eight bits, and for b = 6: all 2^30 and 2^24 pairs of
// significands were tried.
__device__ __forceinline__ float quotient8(float a, float b, float reciprocal) { return corrected(a * reciprocal, a, b, reciprocal); }
// RN(1 / b) for 2^-126 < b < 2^126.
__device__ __forceinline__ float reciprocal_of(float b) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
  return __fmaf_rn(r, -__fmaf_rn(b, r, -1.0f), r);
}

// The second level as blocks use it. lift: elements and scale times 2^96, so that no remainder of a division is subnormal.
struct Fp4Level {
  float outer, reciprocal, of_amax;
  bool lift;
};
template <Step kStep>
__device__ __forceinline__ Fp4Level fp4_level(ScalePair outer) {
  Fp4Level l{outer.scale, 1, 0, false};
  if constexpr (kStep == Step::divide) {
    l.lift = outer.scale < 0x1p-60f;
    if (l.lift) l.outer *= kLift;
    l.reciprocal = __frcp_rn(l.outer);
  } else {
    l.of_amax = outer.inv * __uint_as_float(0x3E2AAAABu);
  }
  return l;
}

struct Fp4Block {
  uint32_t byte, value;     // value: the block scale as a pair of bf16
  float factor, reciprocal;  // of the elements; factor NaN: poisoned
};
// fp4_byte and fp4_element_factor of rules.cuh for the largest magnitude of a block of bf16, lifted like the elements.
template <Step kStep>
__device__ __forceinline__ Fp4Block fp4_block(const BlockCode& c, const Fp4Level& level, uint32_t amax) {
  const float a = __uint_as_float(amax);
  float v;
  if constexpr (kStep == Step::divide) {
    v = quotient8(quotient8(a, level.outer, level.reciprocal), 6.0f, __uint_as_float(0x3E2AAAABu));
    v = fminf(fmaxf(v, c.least), c.most);
  } else {
    v = fminf(a * level.of_amax, c.most);
  }
  // Subnormal codes are the last place of a sum, the others three bits of the mantissa.
  const float sum = v + c.unit;
  const uint32_t bits = __float_as_uint(v), rounded = (bits + 0x7FFFFu + ((bits >> 20) & 1u)) & 0xFFF00000u;
  const bool small = v < c.normal, poison = poisoned(amax) || level.outer != level.outer;
  Fp4Block b;
  b.byte = small ? __float_as_uint(sum) & 15u : (rounded >> 20) - c.bias;
  float value = small ? sum - c.unit : __uint_as_float(rounded);
  if (poison) b.byte = c.nan, value = quiet_nan();
  b.value = __byte_perm(__float_as_uint(value), 0, 0x3232);
  b.factor = value * level.outer, b.reciprocal = 0;
  if constexpr (kStep == Step::divide) {
    b.reciprocal = reciprocal_of(b.factor);
  } else if (b.factor == b.factor) {
    constexpr float kMax = std::numeric_limits<float>::max();
    b.factor = b.factor == 0 ? kMax : fminf(__frcp_rn(b.factor), kMax);
  }
  return b;
}

template <int kWords>
__device__ __forceinline__ uint32_t amax_pairs(const uint32_t (&t)[kWords]) {
  uint32_t m = max_magnitudes(t[0], t[1]);
#pragma unroll
  for (int i = 2; i < kWords; ++i) m = max_magnitudes(m, t[i]);
  return m & 0x7FFF7FFFu;
}
__device__ __forceinline__ uint32_t amax_of_pair(uint32_t m) { return max(m << 16, m & 0xFFFF0000u); }

// Sixteen elements, two a word, to pairs of magnitudes: codes 0 to 7 in the low bytes of 16-bit halves. draw(i): place_draw.
template <Step kStep, bool kStochastic, class Draw>
__device__ __forceinline__ void encode16(const uint32_t (&t)[8], const Fp4Block& b, Draw&& draw, uint32_t (&pairs)[8]) {
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    uint32_t s[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float x = fabsf(__uint_as_float(j == 0 ? t[k] << 16 : t[k] & 0xFFFF0000u));
      const float y = kStep == Step::divide ? quotient8(x, b.factor, b.reciprocal) : x * b.factor;
      if constexpr (kStochastic) {
        using Rule = Stochastic<Float::e2m1>;
        s[j] = Rule::code(fminf(y, Rule::kMax), draw(2 * k + j));
      } else {
        s[j] = round_e2m1(y);
      }
    }
    pairs[k] = select_signed(s[0], s[1], kStochastic ? 0xF7B3 : 0xC480);
  }
}
__device__ __forceinline__ uint32_t fp4_values(uint32_t pair, uint32_t signs, uint32_t scale) {
  return multiply_bf16(multiply_bf16(pair * 64 + (signs & 0x80008000u), 0x7E807E80u), scale);
}
// Four pairs as eight packed codes.
__device__ __forceinline__ uint32_t pack8(const uint32_t* pairs, const uint32_t* t) {
  const uint32_t a = pairs[0] + pairs[1] * 256, b = pairs[2] + pairs[3] * 256;  // bytes 0 2 1 3 and 4 6 5 7
  const uint32_t codes = __byte_perm(a, b, 0x5410) + __byte_perm(a, b, 0x7632) * 16;
  const uint32_t low = __byte_perm(t[0], t[1], 0x7531), high = __byte_perm(t[2], t[3], 0x7531);
  const uint32_t even = __byte_perm(low, high, 0x6420), odd = __byte_perm(low, high, 0x7531);
  return codes | ((even >> 4) & 0x08080808u) | (odd & 0x80808080u);
}
template <Step kStep, bool kStochastic, Form kForm, class Draw, int kWords>
__device__ __forceinline__ void quantise16(const uint32_t (&t)[8], const Fp4Block& b, Draw&& draw, uint32_t (&out)[kWords]) {
  uint32_t pairs[8];
  encode16<kStep, kStochastic>(t, b, draw, pairs);
  if constexpr (kForm == Form::bf16) {
#pragma unroll
    for (int k = 0; k < 8; ++k) out[k] = fp4_values(pairs[k], t[k], b.value);
  } else {
    out[0] = pack8(pairs, t), out[1] = pack8(pairs + 4, t + 4);
  }
  const bool poison = b.factor != b.factor;
  if (__any_sync(0xFFFFFFFFu, poison)) {
#pragma unroll
    for (int k = 0; k < kWords; ++k) out[k] = !poison ? out[k] : kForm == Form::bf16 ? 0x7FC07FC0u : 0u;
  }
}

template <int kWords>
__device__ __forceinline__ void lift_pairs(uint32_t (&t)[kWords]) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) t[i] = multiply_bf16(t[i], 0x6F806F80u);  // 2^96
}
static_assert(std::bit_cast<uint32_t>(kLift) == 0x6F800000u);

// A rotated column in pairs of rows.
template <int kRows, int kHalf>
__device__ __forceinline__ void rotated_pairs(const uint32_t (&w)[kRows], const uint4* flips, uint32_t* t) {
  float v[kRows];
  rotate_column<kRows, kHalf>(w, flips, v);
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) t[i] = bf16_words(v[2 * i] * hadamard_norm(kRows), v[2 * i + 1] * hadamard_norm(kRows));
}

// What a warp knows of its slab.
struct Slab {
  uint8_t *x, *second;  // rows of 128 bytes; chunks of 16 bytes of odd rows change places by pairs
  int lane, row, column;    // of the matrix
  int local_row, local_column;
  __device__ __forceinline__ uint32_t word(int r) const {  // columns 2 * lane and 2 * lane + 1
    return *reinterpret_cast<const uint32_t*>(x + r * 128 + ((((lane >> 2) ^ (r & 1)) << 4) | (lane & 3) << 2));
  }
  __device__ __forceinline__ uint4* chunk(int r, int c) const { return reinterpret_cast<uint4*>(x + r * 128 + ((c ^ (r & 1)) << 4)); }
};

// Draws of all elements of the slab, rows of 128 bytes.
__device__ __forceinline__ void slab_draws(const CopyArgs& d, const Slab& s) {
  const StepWords words = step_words(d.draws);
  const uint32_t group = d.draws.first + static_cast<uint32_t>(s.row + (s.lane >> 3)) * d.draws.row +
                         static_cast<uint32_t>(s.column) / 8 + static_cast<uint32_t>(s.lane & 7);
#pragma unroll 1
  for (int i = 0; i < 2; ++i) {
    uint32_t v[4][4];
    draw8<4>(d.draws, words, group + static_cast<uint32_t>(16 * i) * d.draws.row, 4 * d.draws.row, v);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      *reinterpret_cast<uint4*>(s.second + (16 * i + 4 * n + (s.lane >> 3)) * 128 + (s.lane & 7) * 16) = {v[n][0], v[n][1], v[n][2], v[n][3]};
    }
  }
}

// Where a column's 16 or 32 bytes of a half of the slab's rows are staged.
__device__ __forceinline__ uint4* staged_values(uint8_t* second, int half, int column, int chunk) {
  const int slot = ((column & 3) * 2 + chunk) ^ ((column >> 2) & 3) ^ half * 4;
  return reinterpret_cast<uint4*>(second + half * (kSlabBytes / 2) + (column >> 2) * 128 + slot * 16);
}

template <Step kStep, bool kStochastic, Form kForm, int kWidth>
__device__ __forceinline__ void columns_pass(const CopyArgs& d, const BlockCode& code, const uint4* flips, const Slab& s, const Fp4Level& level,
                                             StagedScales& scales, uint8_t* packed) {
  constexpr int kRows = kWidth == 32 ? 32 : 16;
  if constexpr (kStochastic) slab_draws(d, s);
  __syncwarp();
  const uint32_t constant = __shfl_sync(0xFFFFFFFFu, d.draw_constant, 0);
#pragma unroll 1
  for (int first = 0; first < kSlabRows; first += kRows) {
    uint32_t t[2][kRows / 2];
    {
      uint32_t w[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) w[i] = s.word(first + i);
      if constexpr (kWidth != 0) {
        rotated_pairs<kRows, 0>(w, flips, t[0]);
        rotated_pairs<kRows, 1>(w, flips, t[1]);
      } else {
#pragma unroll
        for (int i = 0; i < kRows / 2; ++i) {
          t[0][i] = __byte_perm(w[2 * i], w[2 * i + 1], 0x5410), t[1][i] = __byte_perm(w[2 * i], w[2 * i + 1], 0x7632);
        }
      }
    }
    if (level.lift) lift_pairs(t[0]), lift_pairs(t[1]);
#pragma unroll
    for (int part = 0; part < kRows / 16; ++part) {
      const int half = kRows == 32 ? part : first / 16;
      uint32_t amax[2];
      [[maybe_unused]] uint32_t draws[16] = {};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        uint32_t of_block[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) of_block[k] = t[j][part * 8 + k];
        amax[j] = amax_of_pair(amax_pairs(of_block));
      }
      if (d.tile) amax[0] = amax[1] = max_over(max(amax[0], amax[1]), 1 | 2 | 4);
      if constexpr (kStochastic) {
#pragma unroll
        for (int i = 0; i < 16; ++i) draws[i] = *reinterpret_cast<const uint32_t*>(s.second + (half * 16 + i) * 128 + s.lane * 4);
      }
      constexpr int kWords = kForm == Form::bf16 ? 8 : 2;
      uint32_t out[2][kWords];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        uint32_t of_block[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) of_block[k] = t[j][part * 8 + k];
        const Fp4Block b = fp4_block<kStep>(code, level, amax[j]);
        scales.scales[s.local_column + 2 * s.lane + j][s.local_row / 16 + half] = static_cast<uint8_t>(b.byte);
        quantise16<kStep, kStochastic, kForm>(of_block, b, [&](int i) {
          return j == 0 ? place_draw<0>(draws[i], constant, false) : place_draw<1>(draws[i], constant, false);
        }, out[j]);
      }
      if constexpr (kForm == Form::bf16) {
        if (kStochastic) __syncwarp();  // the draws are read
#pragma unroll
        for (int j = 0; j < 2; ++j) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            *staged_values(s.second, half, 2 * s.lane + j, c) = {out[j][4 * c], out[j][4 * c + 1], out[j][4 * c + 2], out[j][4 * c + 3]};
          }
        }
      } else {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int vector = s.local_column + 2 * s.lane + j;
          *reinterpret_cast<uint2*>(packed + (vector * 16 + staged_chunk<4>(vector, s.local_row / 8 + 2 * half)) * 4) = {out[j][0], out[j][1]};
        }
      }
    }
  }
  if constexpr (kForm == Form::bf16) {
    __syncwarp();
    const int chunk = s.lane & 3, r = s.row + chunk * 8;
    int column = s.lane >> 2;
    auto* to = static_cast<uint8_t*>(d.values) + (int64_t{s.column + column} * d.C + r) * 2;
    const uint32_t step = static_cast<uint32_t>(d.C) * 16;
    const int valid = r < d.C ? d.R - s.column : 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const uint4 v = *staged_values(s.second, chunk >> 1, 8 * k + column, chunk & 1);
      if (8 * k + column < valid) *reinterpret_cast<uint4*>(to + uint64_t{step} * static_cast<uint32_t>(k)) = v;
    }
  }
}

// Writes over the elements.
template <Step kStep, bool kStochastic, Form kForm>
__device__ __forceinline__ void rows_pass(const CopyArgs& d, const BlockCode& code, const Slab& s, const Fp4Level& level, StagedScales& scales) {
  const uint32_t constant = __shfl_sync(0xFFFFFFFFu, d.draw_constant, 0);
  const int block = s.lane & 3;
  [[maybe_unused]] StepWords words;
  if constexpr (kStochastic) words = step_words(d.draws);
  uint32_t tiles[2] = {};  // maxima of 16 x 16 elements, in eight lanes each
  if (d.tile) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t w[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) w[i] = s.word(16 * h + i);
      if (level.lift) lift_pairs(w);
      tiles[h] = max_over(amax_of_pair(amax_pairs(w)), 1 | 2 | 4);
    }
    __syncwarp();
  }
#pragma unroll 1
  for (int i = 0; i < 4; ++i) {
    const int r = 8 * i + (s.lane >> 2);
    const uint4 a = *s.chunk(r, 2 * block), c = *s.chunk(r, 2 * block + 1);
    uint32_t t[8] = {a.x, a.y, a.z, a.w, c.x, c.y, c.z, c.w};
    [[maybe_unused]] uint32_t draws[2][4] = {};
    if constexpr (kStochastic) {
      draw8<2>(d.draws, words,
               d.draws.first + static_cast<uint32_t>(s.row + r) * d.draws.row + static_cast<uint32_t>(s.column / 8 + 2 * block), 1, draws);
    }
    if (level.lift) lift_pairs(t);
    uint32_t amax = amax_of_pair(amax_pairs(t));
    if (d.tile) amax = __shfl_sync(0xFFFFFFFFu, i < 2 ? tiles[0] : tiles[1], block * 8);
    const Fp4Block b = fp4_block<kStep>(code, level, amax);
    scales.scales[s.local_row + r][s.local_column / 16 + block] = static_cast<uint8_t>(b.byte);
    constexpr int kWords = kForm == Form::bf16 ? 8 : 2;
    uint32_t out[kWords];
    quantise16<kStep, kStochastic, kForm>(t, b, [&](int e) {
      const uint32_t word = draws[e >> 3][(e & 7) >> 1];
      return (e & 1) == 0 ? place_draw<0>(word, constant, false) : place_draw<1>(word, constant, false);
    }, out);
    if constexpr (kForm == Form::bf16) {
      *s.chunk(r, 2 * block) = {out[0], out[1], out[2], out[3]};
      *s.chunk(r, 2 * block + 1) = {out[4], out[5], out[6], out[7]};
      __syncwarp();
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int row = 8 * i + 4 * k + (s.lane >> 3), column = s.column + (s.lane & 7) * 8;
        const uint4 v = *s.chunk(row, s.lane & 7);
        if (s.row + row < d.R && column < d.C) {
          *reinterpret_cast<uint4*>(static_cast<uint8_t*>(d.values) + (int64_t{s.row + row} * d.C + column) * 2) = v;
        }
      }
    } else {
      const int column = s.column + block * 16;
      if (s.row + r < d.R && column < d.C) {
        auto* to = d.packed + (int64_t{s.row + r} * d.C + column) / 2;
        if (column + 16 <= d.C && reinterpret_cast<uintptr_t>(to) % 8 == 0) {
          *reinterpret_cast<uint2*>(to) = {out[0], out[1]};
        } else {
          reinterpret_cast<uint32_t*>(to)[0] = out[0];
          if (column + 8 < d.C) reinterpret_cast<uint32_t*>(to)[1] = out[1];
        }
      }
    }
  }
}

// Both maxima of the tensor from the words of an earlier pass, all loads at once.
__device__ __forceinline__ uint32_t tensor_maximum(const CopyArgs& d, int lane) {
  uint32_t a = 0;
  if (d.tensor_amax == nullptr) return a;
#pragma unroll
  for (int i = 0; i < 5; ++i) {
    const int at = 32 * i + lane;
    if (at < d.tensor_parts) a = max(a, d.tensor_amax[at]);
  }
  return __reduce_max_sync(0xFFFFFFFFu, a);
}

template <Step kStep, bool kStochastic, Form kRowForm, Form kColumnForm, Copies kCopies, int kWidth>
__global__ void __launch_bounds__(kTileThreads, kWidth == 32 ? 2 : 3) slab_kernel(const __grid_constant__ SlabArgs args) {
  extern __shared__ uint4 slab_memory[];
  __shared__ RowFlips flips[kWidth != 0 ? kSlabWarps : 1];
  const TileArgs& a = args.tile;
  constexpr bool kRow = kCopies != Copies::transposed, kTransposed = kCopies != Copies::row;
  constexpr bool kSecond = kTransposed && (kStochastic || kColumnForm == Form::bf16);
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const int band = static_cast<int>(a.backwards ? gridDim.z - 1 - blockIdx.z : blockIdx.z);
  const int tile_r = band * kBand + static_cast<int>(blockIdx.x);
  const int tile_c = static_cast<int>(a.backwards ? gridDim.y - 1 - blockIdx.y : blockIdx.y);
  if (tile_r >= a.tiles_r) return;
  auto* memory = reinterpret_cast<uint8_t*>(slab_memory);
  auto* staged = reinterpret_cast<StagedScales*>(memory + kSlabWarps * kSlabBytes * (kSecond ? 2 : 1));
  auto* packed = reinterpret_cast<uint8_t*>(staged + 2);
  Slab s;
  s.x = memory + warp * kSlabBytes, s.second = memory + (kSlabWarps + warp) * kSlabBytes, s.lane = lane;
  s.local_row = (warp >> 1) * kSlabRows, s.local_column = (warp & 1) * kSlabColumns;
  s.row = tile_r * kTile + s.local_row, s.column = tile_c * kTile + s.local_column;

  start_dependents();
  {
    const int row = s.row + (lane >> 3), column = s.column + (lane & 7) * 8;
    const auto* source = static_cast<const uint8_t*>(a.x) + (row * a.ld + column) * 2;
    const auto step = static_cast<uint32_t>(a.ld * 8);
    const int valid = column < a.cols ? a.rows - row : 0;
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {  // rows of the chunks are even or odd like lane / 8
      copy16_async(s.chunk(lane >> 3, lane & 7) + i * (4 * 128 / 16), source + uint64_t{step} * i, 4 * static_cast<int>(i) < valid);
    }
  }
  if (a.dependent) wait_for_primary();
  const auto outer_of = [&](const CopyArgs& d) {
    constexpr Fp4Chain kChain = kStep == Step::divide ? Fp4Chain::alto : Fp4Chain::torchao;
    const uint32_t amax = tensor_maximum(d, lane);
    const ScalePair outer = fp4_outer(kChain, d.wide ? ScaleFormat::ue5m3 : ScaleFormat::e4m3, d.two_level, amax);
    if (d.outer != nullptr && tile_r == 0 && tile_c == 0 && thread == 0) *d.outer = outer.scale;
    return fp4_level<kStep>(outer);
  };
  Fp4Level of_columns{}, of_rows{};
  if constexpr (kTransposed) of_columns = outer_of(a.transposed);
  if constexpr (kRow) of_rows = outer_of(a.row);
  wait_for_copies();
  __syncwarp();
  if constexpr (kTransposed) {
    if constexpr (kWidth != 0) flips[warp].fill(a.transposed, kWidth, lane);
    columns_pass<kStep, kStochastic, kColumnForm, kWidth>(a.transposed, args.transposed, kWidth != 0 ? flips[warp].words : nullptr, s, of_columns, staged[1], packed);
    __syncwarp();
  }
  if constexpr (kRow) rows_pass<kStep, kStochastic, kRowForm>(a.row, args.row, s, of_rows, staged[0]);
  __syncthreads();
  if constexpr (kRow) flush_scales<16>(a.row, staged[0], tile_r * kTile, tile_c * kTile, thread);
  if constexpr (kTransposed) {
    flush_scales<16>(a.transposed, staged[1], tile_c * kTile, tile_r * kTile, kRow ? thread - kTile : thread);
    if constexpr (kColumnForm == Form::packed) {
      flush_elements<4>(a.transposed.packed, a.transposed, packed, tile_c * kTile, tile_r * kTile, thread);
    }
  }
}

template <Step kStep, bool kStochastic, Form kRowForm, Form kColumnForm, Copies kCopies, int kWidth>
void launch_slab(const SlabArgs& a, TileGrid tiles, cudaStream_t stream) {
  auto* kernel = slab_kernel<kStep, kStochastic, kRowForm, kColumnForm, kCopies, kWidth>;
  constexpr int kBytes = slab_bytes(kStochastic, kColumnForm, kCopies);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  cudaLaunchAttribute overlap;
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(std::min<unsigned>(kBand, tiles.rows), tiles.columns, (tiles.rows + kBand - 1) / kBand);
  config.blockDim = dim3(kTileThreads);
  config.dynamicSmemBytes = kBytes, config.stream = stream;
  config.attrs = &overlap, config.numAttrs = a.tile.dependent && has_dependent_launches() ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, a);
}

}  // namespace halftone::device
