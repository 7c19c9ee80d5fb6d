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
  write_outer(a, row, column);
  const bool poison = __syncthreads_or(factor != factor) != 0;

  const uint32_t shift = blockDim.x / (kTileThreads >> Rule::kShift);  // unknown to the compiler, see multiply_add
  const uint32_t signs = blockDim.x * (0x80008000u / kTileThreads);    // so is this: an instruction takes one constant
  constexpr uint32_t kPlace = PositionCode<Float::e4m3>::kPlace;
  const auto code = [&](float x, float by, uint32_t below) {
    return multiply_add(__float_as_uint(__fmul_ru(fabsf(x) * by, Rule::kToPosition)), shift, 0u - below);
  };
  uint32_t columns[2][8];
  const auto encode = [&]<bool kPoison>() {
    float by_column[8];
    read4(&shared.factors[1][column_in], by_column), read4(&shared.factors[1][column_in + 4], by_column + 4);
    encode_rows(
        a, draws, row, column,
        [&](int i, TwoRows& t) {
          const float2 by = *reinterpret_cast<const float2*>(&shared.factors[0][row_in + i]);
          const float by_row[2] = {by.x, by.y};
#pragma unroll
          for (int r = 0; r < 2; ++r) read_words(own + (i + r) * kRowBytes, t.words[r]);
          t.encode_bytes([&](int r, int k, uint32_t& of_row, uint32_t& of_column) {
            const uint32_t word = t.words[r][k >> 1], place = (word & signs) ^ kPlace;
            const float v = element_of<!kPoison>(word, k % 2);
            of_row = code(v, by_row[r], place_in_pair(t.row_draws[r][k >> 1], place, k % 2));
            of_column = code(v, by_column[k], place_in_pair(t.column_draws[r][k >> 1], place, k % 2));
          });
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            if (kPoison && by_row[r] != by_row[r]) t.row_codes[r][0] = t.row_codes[r][1] = kPoisonedBytes;
          }
        },
        [&](int half, uint32_t(&codes)[8]) {  // they wait in the place of elements that are done with
#pragma unroll
          for (int k = 0; k < (kPoison ? 8 : 0); ++k) codes[k] = by_column[k] != by_column[k] ? kPoisonedBytes : codes[k];
#pragma unroll
          for (int k = 0; k < 2; ++k) store4(own + (half * 2 + k) * kRowBytes, codes + 4 * k);
        });
  };
  if (poison) {
    encode.template operator()<true>();
  } else {
    encode.template operator()<false>();
  }
#pragma unroll
  for (int n = 0; n < 4; ++n) load_shared(own + n * kRowBytes, columns[n >> 1] + n % 2 * 4);
  __syncwarp();
  stage_columns(shared, columns, warp, lane);
  __syncthreads();
  flush_columns(shared, a.transposed, tile_r, tile_c, thread);
}

}  // namespace

bool launch_fp8_pair(const TileArgs& a, TileGrid tiles, cudaStream_t stream) {
  return launch_pair(fp8_pair_kernel, band_grid(tiles), kTileThreads, sizeof(PairShared), stream, a);
}

}  // namespace halftone::device
