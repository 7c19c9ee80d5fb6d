#include "halftone/quantize/cuda/pair.cuh"

namespace halftone::device {
namespace {

struct PairShared : PairWarps {
  alignas(16) float row_factors[8][2][32], column_factors[8][64];  // of a warp's blocks
  StagedScales row_scales, transposed_scales;
};

using PositionFactor = PositionFactorOf<Float::e4m3>;

// e4m3 codes of both copies of bf16 elements in MX blocks with stochastic rounding: a thread has 8 x 8 elements, and makes both codes of
// one together. They wait in shared memory, so that the registers suffice for three thread blocks.
__global__ void __launch_bounds__(kTileThreads, 3) mxfp8_pair_kernel(const __grid_constant__ TileArgs a) {
  extern __shared__ __align__(128) uint8_t memory[];
  PairShared& shared = *reinterpret_cast<PairShared*>(memory);
  constexpr int kRowBytes = PairWarps::kRowBytes;
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const int tile_r = static_cast<int>(blockIdx.z) * kBand + static_cast<int>(blockIdx.x), tile_c = static_cast<int>(blockIdx.y);
  if (tile_r >= a.tiles_r) return;
  const int row_in = (warp >> 1) * 32 + (lane >> 3) * 8, column_in = (warp & 1) * 64 + (lane & 7) * 8;
  const int row = tile_r * kTile + row_in, column = tile_c * kTile + column_in;

  wait_for_primary();
  start_dependents();
  uint8_t* own = shared.warps[warp] + lane * 16;
  copy_own(a, row, column, (tile_r + 1) * kTile <= a.rows && (tile_c + 1) * kTile <= a.cols, own);
  const PairDraws draws(a, row, column);
  uint32_t row_draws[2][4], column_draws[2][4];
  wait_for_copies();

  uint32_t care = 0;
  float* row_factors = shared.row_factors[warp][lane >> 2 & 1] + (lane >> 3) * 8;
  float* column_factors = shared.column_factors[warp] + (lane & 7) * 8;
  {
    Amax8<bf16> of_rows, of_columns;
    own_maxima(own, of_rows, of_columns);
    make_factors<bf16, Float::e4m3, 0>(a.row, of_rows, row_factors, shared.row_scales, row_in, column_in, lane, care);
    make_factors<bf16, Float::e4m3, 1>(a.transposed, of_columns, column_factors, shared.transposed_scales, column_in, row_in, lane, care);
  }
  if (row == 0 && column == 0) {
    if (a.row.outer != nullptr) *a.row.outer = 1;
    if (a.transposed.outer != nullptr) *a.transposed.outer = 1;
  }
  const uint32_t most_care = __reduce_max_sync(0xFFFFFFFFu, care);
  __syncwarp();

  const int valid_rows = column < a.row.C ? min(max(a.row.R - row, 0), 8) : 0;
  uint8_t* row_codes = a.row.codes + (int64_t{row} * a.row.C + column);
  const uint32_t shift = blockDim.x / (kTileThreads >> PositionFactor::Rule::kShift);  // unknown to the compiler, see multiply_add
  const uint32_t signs = blockDim.x * (0x80008000u / kTileThreads);                    // so is this: an instruction takes one constant
  uint32_t columns[2][8];
  const auto encode = [&]<Care kCare>() {
    float by_column[8];
    read4(column_factors, by_column), read4(column_factors + 4, by_column + 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float by_row[4];
      read4(row_factors + half * 4, by_row);
      uint32_t even[8], first_rows[8];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int i = half * 4 + j;
        if (j % 2 == 0) draws.two_rows(static_cast<uint32_t>(i), row_draws, column_draws);
        const uint4 x = *reinterpret_cast<const uint4*>(own + i * kRowBytes);
        const uint32_t words[4] = {x.x, x.y, x.z, x.w};
        uint32_t s[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          const float v = element_of<kCare == Care::none>(words[k >> 1], k % 2);
          const uint32_t place = (words[k >> 1] & signs) ^ PositionFactor::kPlace;
          const auto below = [&](uint32_t word) { return __byte_perm(word, place, k % 2 == 0 ? 0x5104 : 0x7324); };
          s[k] = PositionFactor::code<kCare>(v, by_row[j], shift, below(row_draws[j % 2][k >> 1]));
          const uint32_t c = PositionFactor::code<kCare>(v, by_column[k], shift, below(column_draws[j % 2][k >> 1]));
          if (j % 2 == 0) {
            even[k] = c;
          } else {
            const uint32_t two = __byte_perm(even[k], c, 0x0073);
            if (j == 1) {
              first_rows[k] = two;
            } else {
              columns[half][k] = __byte_perm(first_rows[k], two, 0x5410);
            }
          }
        }
        uint2 codes{gather_bytes(s[0], s[1], s[2], s[3], 3), gather_bytes(s[4], s[5], s[6], s[7], 3)};
        if (kCare != Care::none && by_row[j] == 0) codes.x = codes.y = 0x7F7F7F7Fu;
        store_if(i < valid_rows, row_codes + uint64_t{static_cast<uint32_t>(a.row.C)} * static_cast<uint32_t>(i), codes);
      }
      // Codes of the first four rows wait in the place of elements that are done with.
      if (half == 0) {
#pragma unroll
        for (int k = 0; k < 2; ++k) store4(own + k * kRowBytes, columns[0] + 4 * k);
      }
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint4 x = load_shared(own + k * kRowBytes);
      columns[0][4 * k] = x.x, columns[0][4 * k + 1] = x.y, columns[0][4 * k + 2] = x.z, columns[0][4 * k + 3] = x.w;
    }
    if constexpr (kCare != Care::none) {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        if (by_column[k] == 0) columns[0][k] = columns[1][k] = 0x7F7F7F7Fu;
      }
    }
  };
  if (most_care == static_cast<uint32_t>(Care::none)) {
    encode.template operator()<Care::none>();
  } else if (most_care == static_cast<uint32_t>(Care::range)) {
    encode.template operator()<Care::range>();
  } else {
    encode.template operator()<Care::lift>();
  }
  __syncwarp();
  stage_columns(shared, columns, warp, lane);
  __syncthreads();
  flush_scales<32>(a.row, shared.row_scales, tile_r * kTile, tile_c * kTile, thread);
  flush_scales<32>(a.transposed, shared.transposed_scales, tile_c * kTile, tile_r * kTile, thread - kTile);
  flush_columns(shared, a.transposed, tile_r, tile_c, thread);
}

}  // namespace

bool launch_mxfp8_pair(const TileArgs& a, TileGrid tiles, cudaStream_t stream) {
  if (a.row.tile || a.transposed.tile) return false;
  DependentLaunch overlapped(band_grid(tiles), kTileThreads, stream, true);
  overlapped.config.dynamicSmemBytes = sizeof(PairShared);
  cudaLaunchKernelEx(&overlapped.config, mxfp8_pair_kernel, a);
  return true;
}

}  // namespace halftone::device
