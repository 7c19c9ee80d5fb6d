#include "halftone/quantize/cuda/pair.cuh"

namespace halftone::device {
namespace {

// As PairWarps, of fp32: a warp's 32 rows of 64 elements as they lie in memory, but that the 16-byte halves of a lane's eight change places
// in the second half of a row, so that eight lanes that read theirs meet different banks.
struct PairShared {
  static constexpr int kRowBytes = 64 * 4;
  alignas(128) uint8_t warps[8][32 * kRowBytes];
  alignas(16) float row_factors[8][2][32], column_factors[8][64];  // of a warp's blocks
  StagedScales row_scales, transposed_scales;
};

// Scale of an MX block and the factor that takes its elements to their positions (Stochastic): 0 where the block is poisoned, negative
// where it goes with elements times kLowered, because their own is no fp32.
template <Float kFormat>
struct PositionFactor : PositionCode<kFormat> {
  using Rule = Stochastic<kFormat>;
  uint32_t byte;
  float factor;
  Care care;
  __device__ __forceinline__ PositionFactor(const MxRule& rule, uint32_t amax) {
    byte = mx_byte(rule, amax);
    const bool poison = byte == 255, lift = byte > kLargestFactor;
    const float inverse = __uint_as_float((254u - (lift ? byte - kLoweredBits : byte)) << 23) * Rule::kToPosition;
    factor = poison ? 0.0f : lift ? -inverse : inverse;
    care = poison ? Care::range : lift ? Care::lift : amax > (byte << 23) + PositionFactor::kMost ? Care::range : Care::none;
  }
};

// Scales and factors of the MX blocks that a lane owns of a copy, from the maxima of its warp's lanes. factors: of the lane's eight
// vectors, the first of which is `vector` of the tile, from `element` on. care: the most that blocks have asked.
template <Float kFormat, int kAxis>
__device__ __forceinline__ void make_factors(const CopyArgs& d, const Amax8<float>& amax, float* factors, StagedScales& staged, int vector,
                                             int element, int lane, uint32_t& care) {
  using Blocks = Owned<float, kAxis, 4>;
  const Blocks blocks(amax, lane);
  const int first = Blocks::first(lane);
  const PositionFactor<kFormat> b[2] = {PositionFactor<kFormat>(d.mx, blocks.amax[0]), PositionFactor<kFormat>(d.mx, blocks.amax[1])};
  *reinterpret_cast<float2*>(factors + first) = {b[0].factor, b[1].factor};
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    staged.scales[vector + first + j][element >> 5] = static_cast<uint8_t>(b[j].byte);
    care = max(care, static_cast<uint32_t>(b[j].care));
  }
}

// A warp's elements from (row, column) on, whole rows by half a warp; zeros beyond the matrix. whole: the tile lies within it.
__device__ __forceinline__ void copy_warp(const TileArgs& a, int row, int column, bool whole, uint8_t* warp, int lane) {
  constexpr int kRowBytes = PairShared::kRowBytes;
  row += lane >> 4, column += (lane & 15) * 4;
  uint8_t* to = warp + (lane >> 4) * kRowBytes + (((lane & 15) * 16) ^ ((lane & 8) * 2));
  const auto* source = static_cast<const uint8_t*>(a.x) + (int64_t{row} * a.ld + column) * 4;
  const auto stride = static_cast<uint32_t>(a.ld * 8);
  if (whole) {
    const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
#pragma unroll
    for (uint32_t i = 0; i < 16; ++i) copy_async(address + i * 2 * kRowBytes, source + uint64_t{stride} * i);
    return;
  }
  const int valid = column < a.cols ? a.rows - row : 0;
#pragma unroll 1
  for (int i = 0; i < 16; ++i) {
    const bool has = i * 2 < valid;
    copy_async(to + i * 2 * kRowBytes, has ? source + uint64_t{stride} * static_cast<uint32_t>(i) : static_cast<const uint8_t*>(a.x), has);
  }
}

// NaN where one is.
__device__ __forceinline__ float max_magnitude(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(fabsf(a)), "f"(fabsf(b)));
  return r;
}

// e4m3 or e5m2 codes of both copies of fp32 elements in MX blocks with stochastic rounding, as mxfp8_pair_kernel makes them of bf16. The
// elements stay in shared memory, where they are read twice, so that the registers suffice for three thread blocks.
template <Float kFormat>
__global__ void __launch_bounds__(kTileThreads, 3) mxfp8_pair_f32_kernel(const __grid_constant__ TileArgs a) {
  using Factor = PositionFactor<kFormat>;
  extern __shared__ __align__(128) uint8_t memory[];
  PairShared& shared = *reinterpret_cast<PairShared*>(memory);
  constexpr int kRowBytes = PairShared::kRowBytes;
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const auto [tile_r, tile_c] = TileAt(false);
  if (tile_r >= a.tiles_r) return;
  const int warp_r = (warp >> 1) * 32, warp_c = (warp & 1) * 64;
  const int row_in = warp_r + (lane >> 3) * 8, column_in = warp_c + (lane & 7) * 8;
  const int row = tile_r * kTile + row_in, column = tile_c * kTile + column_in;

  wait_for_primary();
  start_dependents();
  copy_warp(a, tile_r * kTile + warp_r, tile_c * kTile + warp_c, (tile_r + 1) * kTile <= a.rows && (tile_c + 1) * kTile <= a.cols,
            shared.warps[warp], lane);
  // Where the first and the second four of a row of the lane's elements lie.
  uint8_t* first4 = shared.warps[warp] + (lane >> 3) * 8 * kRowBytes + (lane & 7) * 32 + (lane & 4) * 4;
  uint8_t* second4 = shared.warps[warp] + (lane >> 3) * 8 * kRowBytes + (lane & 7) * 32 + 16 - (lane & 4) * 4;
  const auto read_row = [&](int i, float* x) {
    read4(reinterpret_cast<const float*>(first4 + i * kRowBytes), x), read4(reinterpret_cast<const float*>(second4 + i * kRowBytes), x + 4);
  };
  const PairDraws draws(a, row, column);
  wait_for_copies();
  __syncwarp();

  uint32_t care = 0;
  float* row_factors = shared.row_factors[warp][lane >> 2 & 1] + (lane >> 3) * 8;
  float* column_factors = shared.column_factors[warp] + (lane & 7) * 8;
  {
    Amax8<float> of_rows, of_columns;
    float columns[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float x[8];
      read_row(i, x);
      of_rows.w[i] = __float_as_uint(max_magnitude(max_magnitude(max_magnitude(x[0], x[1]), max_magnitude(x[2], x[3])),
                                                   max_magnitude(max_magnitude(x[4], x[5]), max_magnitude(x[6], x[7]))));
#pragma unroll
      for (int k = 0; k < 8; ++k) columns[k] = i == 0 ? x[k] : max_magnitude(columns[k], x[k]);
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) of_columns.w[k] = __float_as_uint(columns[k]);
    make_factors<kFormat, 0>(a.row, of_rows, row_factors, shared.row_scales, row_in, column_in, lane, care);
    make_factors<kFormat, 1>(a.transposed, of_columns, column_factors, shared.transposed_scales, column_in, row_in, lane, care);
  }
  write_outer(a, row, column);
  const uint32_t most_care = __reduce_max_sync(0xFFFFFFFFu, care);
  __syncwarp();

  const uint32_t shift = blockDim.x / (kTileThreads >> Factor::Rule::kShift);  // unknown to the compiler, see multiply_add
  const uint32_t sign = blockDim.x * (0x80000000u / kTileThreads);             // so is this: an instruction takes one constant
  uint32_t columns[2][8];
  const auto encode = [&]<Care kCare>() {
    float by_column[8];
    read4(column_factors, by_column), read4(column_factors + 4, by_column + 4);
    encode_rows(
        a, draws, row, column,
        [&](int i, TwoRows& t) {
          const float2 by = *reinterpret_cast<const float2*>(row_factors + i);
          const float by_row[2] = {by.x, by.y};
          float x[8];
          t.encode_bytes([&](int r, int k, uint32_t& of_row, uint32_t& of_column) {
            if (k == 0) read_row(i + r, x);
            const uint32_t place = (__float_as_uint(x[k]) & sign) ^ Factor::kPlace;
            const auto below = [&](uint32_t word) { return __byte_perm(word, place, k % 2 == 0 ? 0x7104 : 0x7324); };
            of_row = Factor::template code<kCare>(x[k], by_row[r], shift, below(t.row_draws[r][k >> 1]));
            of_column = Factor::template code<kCare>(x[k], by_column[k], shift, below(t.column_draws[r][k >> 1]));
          });
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            if (kCare != Care::none && by_row[r] == 0) t.row_codes[r][0] = t.row_codes[r][1] = kPoisonedBytes;
          }
        },
        [&](int half, uint32_t(&codes)[8]) {  // they wait in the place of elements that are done with
#pragma unroll
          for (int k = 0; k < (kCare == Care::none ? 0 : 8); ++k) codes[k] = by_column[k] == 0 ? kPoisonedBytes : codes[k];
          store4(first4 + half * kRowBytes, codes), store4(second4 + half * kRowBytes, codes + 4);
        });
  };
  if (most_care == static_cast<uint32_t>(Care::none)) {
    encode.template operator()<Care::none>();
  } else if (most_care == static_cast<uint32_t>(Care::range)) {
    encode.template operator()<Care::range>();
  } else {
    encode.template operator()<Care::lift>();
  }
#pragma unroll
  for (int n = 0; n < 4; ++n) load_shared((n % 2 == 0 ? first4 : second4) + n / 2 * kRowBytes, columns[n >> 1] + n % 2 * 4);
  store_mx_columns(shared, a, columns, tile_r, tile_c, thread);
}

}  // namespace

bool launch_mxfp8_pair_f32(const TileArgs& a, Coder coder, TileGrid tiles, cudaStream_t stream) {
  if (a.row.tile || a.transposed.tile) return false;
  const auto kernel = coder == Coder::e4m3 ? mxfp8_pair_f32_kernel<Float::e4m3> : mxfp8_pair_f32_kernel<Float::e5m2>;
  return launch_pair(kernel, band_grid(tiles), kTileThreads, sizeof(PairShared), stream, a);
}

}  // namespace halftone::device
