#include "halftone/quantize/cuda/pair.cuh"

namespace halftone::device {
namespace {

using Rule = Stochastic<Float::e4m3>;

struct PairShared : PairWarps {
  alignas(16) float factors[2][kTile];                     // of the tile's rows and columns
  alignas(16) uint16_t rows[2][kTile], columns[4][kTile];  // maxima by warps along a row and along a column
};

// An element of a pair of finite ones as fp32, by the multipliers: a shift would go to the integer units, which are what time goes by.
__device__ __forceinline__ float element(uint32_t pair, int half) {
  const __nv_bfloat162 both = half == 0 ? both_halves<0>(pair) : both_halves<1>(pair);
  return __uint_as_float(as_word(__hfma2(both, __floats2bfloat162_rn(0.0f, 1.0f), __float2bfloat162_rn(0.0f))));
}

// Where eight codes of one line after the other go, to addresses that differ in their lower words alone: the multipliers add to these.
struct Lines {
  uint32_t low, high, apart, one;
  __device__ __forceinline__ Lines(const uint8_t* first, int bytes, uint32_t hidden_one)
      : low(static_cast<uint32_t>(reinterpret_cast<uint64_t>(first))),
        high(static_cast<uint32_t>(reinterpret_cast<uint64_t>(first) >> 32)),
        apart(static_cast<uint32_t>(bytes)),
        one(hidden_one) {}
  __device__ __forceinline__ void store(uint2 codes) {
    asm volatile("st.global.v2.u32 [%0], {%1,%2};" ::"l"(uint64_t{high} << 32 | low), "r"(codes.x), "r"(codes.y) : "memory");
    low = multiply_add(apart, one, low);
  }
};

// e4m3 codes of both copies of bf16 elements with an fp32 scale for 128 of a row or a column, or for 128 x 128, and stochastic rounding: a
// thread has 8 x 8 elements, and makes both codes of one together. The scale follows from the largest magnitude, so that no element is
// above 448 + 2^-15, which no draw leads to the next number: nothing has to be clipped. kSame: both copies draw from the same groups, whose
// first products are then the same.
template <bool kSame>
__global__ void __launch_bounds__(kTileThreads, 4) fp8_pair_kernel(const __grid_constant__ TileArgs a) {
  extern __shared__ __align__(128) uint8_t memory[];
  PairShared& shared = *reinterpret_cast<PairShared*>(memory);
  constexpr int kRowBytes = PairWarps::kRowBytes;
  const uint32_t thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  const auto [tile_r, tile_c] = TileAt(false);
  if (tile_r >= a.tiles_r) return;
  const uint32_t row_in = (thread >> 6) * 32 + (thread & 24), column_in = (thread & 32) * 2 + (thread & 7) * 8;
  const int row = tile_r * kTile + static_cast<int>(row_in), column = tile_c * kTile + static_cast<int>(column_in);

  const Draws &of_row = a.row.draws, &of_column = a.transposed.draws;
  StepWords row_step = host_step_words(of_row), column_step = host_step_words(of_column);
  const uint32_t row_group = PairDraws::first_group(of_row, row, column);
  const uint32_t column_group = kSame ? row_group : PairDraws::first_group(of_column, row, column);
  const uint32_t row_apart = of_row.row, column_apart = kSame ? row_apart : of_column.row;
  uint32_t row_draws[2][4], column_draws[2][4];
  const auto draw = [&](uint32_t i) {
    draw8<2, true>(of_row, row_step, row_group + i * row_apart, row_apart, row_draws);
    draw8<2, true>(of_column, column_step, column_group + i * column_apart, column_apart, column_draws);
  };
  const bool held = of_row.step != nullptr || of_column.step != nullptr;  // whether a step lies in device memory
  wait_for_primary();
  start_dependents();
  uint8_t* own = shared.warps[warp] + lane * 16;
  copy_own(a, row, column, (tile_r + 1) * kTile <= a.rows && (tile_c + 1) * kTile <= a.cols, own);
  const uint32_t one = blockDim.x / kTileThreads;  // unknown to the compiler, see multiply_add
  // Whether tile (r, c) lies within the copy, and the lower word of an address does for its lines.
  const auto within = [&](const void* first, uint32_t bytes, int rows, int columns, int r, int c) {
    const uint64_t from = reinterpret_cast<uint64_t>(first) + uint64_t{bytes} * static_cast<uint32_t>(r * kTile);
    return (r + 1) * kTile <= rows && (c + 1) * kTile <= columns && static_cast<uint32_t>(from) + uint64_t{bytes} * kTile >> 32 == 0;
  };
  // A loop, since of branches the compiler makes some 40 instructions under predicates.
#pragma unroll 1
  for (int n = held ? 2 : 0; n > 0; --n) {
    const StepWords w = step_words(n == 2 ? of_row : of_column);
    if (n == 2) {
      row_step = w;
    } else {
      column_step = w;
    }
  }
  wait_for_copies();
  {
    Amax8<bf16> of_rows, of_columns;
    maxima_of(own, of_rows, of_columns);
    const Owned<bf16, 0, 4> rows(of_rows, static_cast<int>(lane));
    const Owned<bf16, 1, 4> columns(of_columns, static_cast<int>(lane));
    *reinterpret_cast<uint32_t*>(&shared.rows[warp & 1][row_in + rows.first(static_cast<int>(lane))]) =
        __vmaxu2(rows.word, __shfl_xor_sync(0xFFFFFFFFu, rows.word, 4));
    *reinterpret_cast<uint32_t*>(&shared.columns[warp >> 1][column_in + columns.first(static_cast<int>(lane))]) = columns.word;
  }
  __syncthreads();
  // A thread computes the scale of a row or of a column.
  const int in = static_cast<int>(thread % kTile);
  const auto factor_of = [&](const CopyArgs& d, uint32_t amax, int tile, int block) {
    const int r = tile * kTile + in;
    const ScalePair s = fp8_scale(Float::e4m3, d.pow2, amax);
    if (d.scales == nullptr) return s.inv;
    if (d.scale_tiles != nullptr) {
      if (block < d.tiles_c && tile * kTile < d.R)
        store_kept(static_cast<uint32_t*>(d.scale_tiles) + (int64_t{tile} * d.tiles_c + block) * kTile + in, __float_as_uint(s.scale));
    } else if (r < d.R && block * kTile < d.C && (!d.tile || in == 0)) {
      static_cast<float*>(d.scales)[int64_t{d.tile ? tile : r} * d.blocks + block] = s.scale;
    }
    return s.inv;
  };
  uint32_t amax = thread < kTile
                      ? max(shared.rows[0][in], shared.rows[1][in])
                      : max(max(shared.columns[0][in], shared.columns[1][in]), max(shared.columns[2][in], shared.columns[3][in]));
  amax <<= 16;
  if (a.row.tile) {
    uint32_t w[4];
    read_words(&shared.rows[0][0] + lane * 8, w);
    w[0] = __vmaxu2(__vimax3_u16x2(w[0], w[1], w[2]), w[3]);
    amax = __reduce_max_sync(0xFFFFFFFFu, max(w[0] << 16, w[0] & 0xFFFF0000u));
  }
  const float factor = thread < kTile ? factor_of(a.row, amax, tile_r, tile_c) : factor_of(a.transposed, amax, tile_c, tile_r);
  shared.factors[thread / kTile][in] = factor;
  write_outer(a, row, column);
  const bool plain = within(a.row.codes, static_cast<uint32_t>(a.row.C), a.row.R, a.row.C, tile_r, tile_c) &&
                     within(a.transposed.codes, static_cast<uint32_t>(a.transposed.C), a.transposed.R, a.transposed.C, tile_c, tile_r);
  // Whether there is anything to ask of the tile's vectors.
  const bool careful = __syncthreads_or(factor != factor || !plain) != 0;

  const uint32_t shift = blockDim.x / (kTileThreads >> Rule::kShift);  // unknown to the compiler, see multiply_add
  const uint32_t signs = blockDim.x * (0x80008000u / kTileThreads);    // so is this: an instruction takes one constant
  constexpr uint32_t kPlace = PositionCode<Float::e4m3>::kPlace;
  const auto code = [&](float x, float by, uint32_t draws, uint32_t place, int half) {
    const uint32_t position = __float_as_uint(__fmul_ru(fabsf(x) * by, Rule::kToPosition));
    return multiply_add(position, shift, 0u - place_in_pair(draws, place, half));
  };
  uint8_t* row_codes = a.row.codes + (int64_t{row} * a.row.C + column);
  uint8_t* column_codes = a.transposed.codes + (int64_t{column} * a.transposed.C + row);
  const auto encode = [&]<bool kCareful>() {
    const int valid_rows = kCareful && column < a.row.C ? min(max(a.row.R - row, 0), 8) : 0;
    Lines to_row(row_codes, a.row.C, one), to_column(column_codes, a.transposed.C, one);
    float by_column[8];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t first_rows[8], codes[8];  // two rows of a column in half a word; four
#pragma unroll
      for (int i = half * 4; i < half * 4 + 4; i += 2) {
        draw(static_cast<uint32_t>(i));
        uint32_t by_words[8];  // anew, since registers are short
        load_shared(reinterpret_cast<const uint8_t*>(&shared.factors[1][column_in]), by_words);
        load_shared(reinterpret_cast<const uint8_t*>(&shared.factors[1][column_in + 4]), by_words + 4);
#pragma unroll
        for (int k = 0; k < 8; ++k) by_column[k] = __uint_as_float(by_words[k]);
        const float2 by = *reinterpret_cast<const float2*>(&shared.factors[0][row_in + static_cast<uint32_t>(i)]);
        const float by_row[2] = {by.x, by.y};
        uint32_t words[2][4], even[8], pairs[8];
#pragma unroll
        for (int r = 0; r < 2; ++r) read_words(own + (i + r) * kRowBytes, words[r]);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          uint32_t s[8];
#pragma unroll
          for (int k = 0; k < 8; ++k) {
            const uint32_t word = words[r][k >> 1], place = (word & signs) ^ kPlace;
            const float x = kCareful ? element_of<false>(word, k % 2) : element(word, k % 2);
            s[k] = code(x, by_row[r], row_draws[r][k >> 1], place, k % 2);
            const uint32_t c = code(x, by_column[k], column_draws[r][k >> 1], place, k % 2);
            if (r == 0) {
              even[k] = c;
            } else {
              pairs[k] = __byte_perm(even[k], c, 0x0073);
            }
          }
          uint2 codes_of_row = {gather_bytes(s[0], s[1], s[2], s[3], 3), gather_bytes(s[4], s[5], s[6], s[7], 3)};
          if constexpr (kCareful) {
            if (by_row[r] != by_row[r]) codes_of_row = {kPoisonedBytes, kPoisonedBytes};
            store_if(i + r < valid_rows, row_codes + uint64_t{static_cast<uint32_t>(a.row.C)} * static_cast<uint32_t>(i + r), codes_of_row);
          } else {
            to_row.store(codes_of_row);
          }
        }
        if (i % 4 == 0) {
#pragma unroll
          for (int k = 0; k < 8; ++k) first_rows[k] = pairs[k];
          continue;
        }
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          codes[k] = __byte_perm(first_rows[k], pairs[k], 0x5410);
          if (kCareful && by_column[k] != by_column[k]) codes[k] = kPoisonedBytes;
        }
      }
      if (half == 0) {  // they wait in the place of elements that are done with
#pragma unroll
        for (int k = 0; k < 2; ++k) store4(own + k * kRowBytes, codes + 4 * k);
        continue;
      }
      // A warp stores whole sectors of eight columns.
      uint32_t first[8];
      load_shared(own, first), load_shared(own + kRowBytes, first + 4);
      const CopyArgs& d = a.transposed;
      const int valid_columns = kCareful && row < d.C ? min(max(d.R - column, 0), 8) : 0;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const uint2 eight{first[k], codes[k]};
        if constexpr (kCareful) {
          store_if(k < valid_columns, column_codes + uint64_t{static_cast<uint32_t>(d.C)} * static_cast<uint32_t>(k), eight);
        } else {
          to_column.store(eight);
        }
      }
    }
  };
  if (careful) {
    encode.template operator()<true>();
  } else {
    encode.template operator()<false>();
  }
}

}  // namespace

bool launch_fp8_pair(const TileArgs& a, TileGrid tiles, cudaStream_t stream) {
  const Draws &r = a.row.draws, &c = a.transposed.draws;
  const auto kernel = r.first == c.first && r.row == c.row ? fp8_pair_kernel<true> : fp8_pair_kernel<false>;
  return launch_pair(kernel, band_grid(tiles), kTileThreads, sizeof(PairShared), stream, a);
}

}  // namespace halftone::device
