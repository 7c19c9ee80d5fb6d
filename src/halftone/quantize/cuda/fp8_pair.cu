#include "halftone/quantize/cuda/pair.cuh"

namespace halftone::device {
namespace {

using Rule = Stochastic<Float::e4m3>;

struct PairShared : PairWarps {
  alignas(16) float factors[2][kTile];         // of the tile's rows and columns
  uint32_t rows[2][kTile], columns[4][kTile];  // maxima by warps along a row and along a column
};

// e4m3 codes of both copies of bf16 elements with an fp32 scale for 128 of a row or a column, or for 128 x 128, and stochastic rounding: a
// thread has 8 x 8 elements, and makes both codes of one together. The scale follows from the largest magnitude, so that no element is
// above 448 + 2^-15, which no draw leads to the next number: nothing has to be clipped.
__global__ void __launch_bounds__(kTileThreads, 3) fp8_pair_kernel(const __grid_constant__ TileArgs a) {
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
  {
    Amax8<bf16> of_rows, of_columns;
    own_maxima(own, of_rows, of_columns);
    const Owned<bf16, 0, 4> rows(of_rows, lane);
    const Owned<bf16, 1, 4> columns(of_columns, lane);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      shared.rows[warp & 1][row_in + Owned<bf16, 0, 4>::first(lane) + j] = max(rows.amax[j], __shfl_xor_sync(0xFFFFFFFFu, rows.amax[j], 4));
      shared.columns[warp >> 1][column_in + Owned<bf16, 1, 4>::first(lane) + j] = columns.amax[j];
    }
  }
  __syncthreads();
  // A thread computes the scale of a row or of a column.
  const auto factor_of = [&](const CopyArgs& d, uint32_t amax, int tile, int block) {
    const int in = thread % kTile, r = tile * kTile + in;
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
  uint32_t amax = thread < kTile ? max(shared.rows[0][thread], shared.rows[1][thread])
                                 : max(max(shared.columns[0][thread - kTile], shared.columns[1][thread - kTile]),
                                       max(shared.columns[2][thread - kTile], shared.columns[3][thread - kTile]));
  if (a.row.tile) {
    amax = 0;
    for (int i = lane; i < kTile; i += 32) amax = max(amax, max(shared.rows[0][i], shared.rows[1][i]));
    amax = __reduce_max_sync(0xFFFFFFFFu, amax);
  }
  const float factor = thread < kTile ? factor_of(a.row, amax, tile_r, tile_c) : factor_of(a.transposed, amax, tile_c, tile_r);
  shared.factors[thread / kTile][thread % kTile] = factor;
  if (row == 0 && column == 0) {
    if (a.row.outer != nullptr) *a.row.outer = 1;
    if (a.transposed.outer != nullptr) *a.transposed.outer = 1;
  }
  const bool poison = __syncthreads_or(factor != factor) != 0;

  const int valid_rows = column < a.row.C ? min(max(a.row.R - row, 0), 8) : 0;
  uint8_t* row_codes = a.row.codes + (int64_t{row} * a.row.C + column);
  const uint32_t shift = blockDim.x / (kTileThreads >> Rule::kShift);  // unknown to the compiler, see multiply_add
  const uint32_t signs = blockDim.x * (0x80008000u / kTileThreads);    // so is this: an instruction takes one constant
  constexpr uint32_t kPlace = Rule::kHalf | 0xFF00FF00u;               // around the draws of a pair; signs, flipped, come out in the codes
  const auto code = [&](float x, float by, uint32_t below) {
    return multiply_add(__float_as_uint(__fmul_ru(fabsf(x) * by, Rule::kToPosition)), shift, 0u - below);
  };
  uint32_t columns[2][8];
  const auto encode = [&]<bool kPoison>() {
    float by_column[8];
    read4(&shared.factors[1][column_in], by_column), read4(&shared.factors[1][column_in + 4], by_column + 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float by_row[4];
      read4(&shared.factors[0][row_in + half * 4], by_row);
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
          const float v = element_of<!kPoison>(words[k >> 1], k % 2);
          const uint32_t place = (words[k >> 1] & signs) ^ kPlace;
          const auto below = [&](uint32_t word) { return __byte_perm(word, place, k % 2 == 0 ? 0x5104 : 0x7324); };
          s[k] = code(v, by_row[j], below(row_draws[j % 2][k >> 1]));
          const uint32_t c = code(v, by_column[k], below(column_draws[j % 2][k >> 1]));
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
        if (kPoison && by_row[j] != by_row[j]) codes.x = codes.y = 0x7F7F7F7Fu;
        store_if(i < valid_rows, row_codes + uint64_t{static_cast<uint32_t>(a.row.C)} * static_cast<uint32_t>(i), codes);
      }
      // Codes of the first four rows wait in the place of elements that are done with.
      if (half == 0) {
#pragma unroll
        for (int k = 0; k < 2; ++k) store4(own + k * kRowBytes, columns[0] + 4 * k);
      }
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) load_shared(own + k * kRowBytes, columns[0] + 4 * k);
    if constexpr (kPoison) {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        if (by_column[k] != by_column[k]) columns[0][k] = columns[1][k] = 0x7F7F7F7Fu;
      }
    }
  };
  if (poison) {
    encode.template operator()<true>();
  } else {
    encode.template operator()<false>();
  }
  __syncwarp();
  stage_columns(shared, columns, warp, lane);
  __syncthreads();
  flush_columns(shared, a.transposed, tile_r, tile_c, thread);
}

}  // namespace

bool launch_fp8_pair(const TileArgs& a, TileGrid tiles, cudaStream_t stream) {
  DependentLaunch overlapped(band_grid(tiles), kTileThreads, stream, true);
  overlapped.config.dynamicSmemBytes = sizeof(PairShared);
  cudaLaunchKernelEx(&overlapped.config, fp8_pair_kernel, a);
  return true;
}

}  // namespace halftone::device
