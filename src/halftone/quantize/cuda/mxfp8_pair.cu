#include "halftone/quantize/cuda/pair.cuh"

namespace halftone::device {
namespace {

struct PairShared : PairWarps {
  // Of a warp's blocks: the bytes of scales, those of rows in both halves, and the factors of Positions, without a lift.
  alignas(16) uint32_t row_bytes[8][2][32];
  alignas(16) uint16_t column_bytes[8][64];
  alignas(16) float row_factors[8][2][32], column_factors[8][64];
  StagedScales row_scales, transposed_scales;
};

// Codes by way of positions, whatever the elements are.
template <Float kFormat>
struct Positions : PositionCode<kFormat> {
  using Rule = Stochastic<kFormat>;
  using PositionCode<kFormat>::kPlace;
  static constexpr uint32_t kUnit = (std::bit_cast<uint32_t>(Rule::kToPosition) >> 23) + 127;  // byte of a scale + its factor's exponent
  static __device__ __forceinline__ Care care(uint32_t byte, uint32_t amax) {
    return byte == 255 ? Care::range : byte >= kUnit ? Care::lift : amax > (byte << 23) + Positions::kMost ? Care::range : Care::none;
  }
  // Takes the elements of a block to their positions. Negative where the block is poisoned.
  static __device__ __forceinline__ float factor(uint32_t byte) { return __uint_as_float((kUnit - byte) << 23); }
  // The same where some factors are no normal fp32: 0 for poisoned blocks, negative where it goes with elements times kLowered.
  static __device__ __forceinline__ float lifted_factor(uint32_t byte) {
    return byte == 255 ? 0.0f : byte < kUnit ? factor(byte) : __uint_as_float((254u - byte + kLoweredBits) << 23) * -Rule::kToPosition;
  }
  template <Care kCare>
  static __device__ __forceinline__ bool poisoned(float factor) {
    return kCare == Care::lift ? factor == 0 : kCare == Care::range && factor < 0;
  }
  // signs: those of a pair, in a register.
  template <Care kCare>
  static __device__ __forceinline__ void encode(TwoRows& t, const float (&by_row)[2], const float (&by_column)[8], uint32_t shift,
                                                uint32_t signs) {
    t.encode_bytes([&](int r, int k, uint32_t& of_row, uint32_t& of_column) {
      const uint32_t word = t.words[r][k >> 1], place = (word & signs) ^ kPlace;
      const float v = element_of<kCare == Care::none>(word, k % 2);
      of_row = Positions::template code<kCare>(v, by_row[r], shift, place_in_pair(t.row_draws[r][k >> 1], place, k % 2));
      of_column = Positions::template code<kCare>(v, by_column[k], shift, place_in_pair(t.column_draws[r][k >> 1], place, k % 2));
    });
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (poisoned<kCare>(by_row[r])) t.row_codes[r][0] = t.row_codes[r][1] = kPoisonedBytes;
    }
  }
};

// Codes of normal numbers of the format, in the words in which the elements lie: f has 7 - mantissa_bits bits, so that the highest eight of
// the draw say whether an element goes up. Be u = 2^(mantissa_bits + 1), s the sign's bit of an element and m its magnitude's: u m + 2^15 s
// is one multiply-add of the word, for both elements and both copies. Less 128 u times what the byte of the scale has above the bias, plus
// 255, less the draw's byte, it is a number of 16 bits, the upper byte of which is the code with its sign. Sums before that may be larger
// or negative: a word is a sum modulo 2^32 of what its halves are, with 2^16 times the upper one.
template <Float kFormat>
struct PackedPairs {
  static constexpr uint32_t kUp = 1u << Stochastic<kFormat>::kShift, kBias = static_cast<uint32_t>(spec(kFormat).bias), kBoth = 0x00010001u;
  static __device__ __forceinline__ uint32_t magnitudes(uint32_t pair) { return pair & 0x7FFF7FFFu; }
  // bytes: of the scales of both elements.
  static __device__ __forceinline__ uint32_t offset(uint32_t bytes) { return (255u + kUp * 128 * kBias) * kBoth - bytes * (kUp * 128); }
  static __device__ __forceinline__ uint32_t code(uint32_t image, uint32_t offset, uint32_t draws) {
    return image + offset - __byte_perm(draws, 0u, 0x4341);
  }
  // Whether some element is none with the largest of their scales, of which the bytes are at least kBias: smaller, zero, or no normal bf16.
  static __device__ __forceinline__ bool some_small(const TwoRows& t, uint32_t bytes) {
    uint32_t least = 0x7FFF7FFFu;
#pragma unroll
    for (int k = 0; k < 4; ++k) least = __vimin3_u16x2(least, magnitudes(t.words[0][k]), magnitudes(t.words[1][k]));
    return ((least - bytes * 128 + (kBias - 1) * 128 * kBoth) & 0x80008000u) != 0;
  }
  static __device__ __forceinline__ void encode(TwoRows& t, const uint32_t (&row_bytes)[2], const uint32_t (&column_offsets)[4]) {
    uint32_t c[2][4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t row_offset = offset(row_bytes[r]);
      uint32_t s[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const uint32_t word = t.words[r][k], image = magnitudes(word) * (kUp - 1) + word;
        s[k] = code(image, row_offset, t.row_draws[r][k]), c[r][k] = code(image, column_offsets[k], t.column_draws[r][k]);
      }
#pragma unroll
      for (int k = 0; k < 2; ++k) t.row_codes[r][k] = __byte_perm(s[2 * k], s[2 * k + 1], 0x7531);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) t.column_codes[k] = __byte_perm(c[0][k], c[1][k], 0x7351);
  }
};

// e4m3 or e5m2 codes of both copies of bf16 elements in MX blocks with stochastic rounding: a thread has 8 x 8 elements, and makes both
// codes of one together, two rows at a time: packed, or by positions where a lane of the warp has a small element. They wait in shared
// memory, so that the registers suffice for three thread blocks.
template <Float kFormat>
__global__ void __launch_bounds__(kTileThreads, 3) mxfp8_pair_kernel(const __grid_constant__ TileArgs a) {
  extern __shared__ __align__(128) uint8_t memory[];
  PairShared& shared = *reinterpret_cast<PairShared*>(memory);
  constexpr int kRowBytes = PairWarps::kRowBytes;
  using Position = Positions<kFormat>;
  using Pairs = PackedPairs<kFormat>;
  const int thread = static_cast<int>(threadIdx.x % kTileThreads), lane = thread & 31, warp = thread >> 5;
  const auto [tile_r, tile_c] = TileAt(false);
  if (tile_r >= a.tiles_r) return;
  const int row_in = (warp >> 1) * 32 + (lane >> 3) * 8, column_in = (warp & 1) * 64 + (lane & 7) * 8;
  const int row = tile_r * kTile + row_in, column = tile_c * kTile + column_in;

  wait_for_primary();
  start_dependents();
  uint8_t* own = shared.warps[warp] + lane * 16;
  copy_own(a, row, column, (tile_r + 1) * kTile <= a.rows && (tile_c + 1) * kTile <= a.cols, own);
  const PairDraws draws(a, row, column);
  wait_for_copies();

  uint32_t own_bytes[4], own_amax[4];  // of the blocks that the lane makes scales of
  const int of_rows_at = (lane >> 3) * 8, of_columns_at = (lane & 7) * 8;
  uint32_t* row_bytes = shared.row_bytes[warp][lane >> 2 & 1] + of_rows_at;
  uint16_t* column_bytes = shared.column_bytes[warp] + of_columns_at;
  float *row_factors = shared.row_factors[warp][lane >> 2 & 1] + of_rows_at, *column_factors = shared.column_factors[warp] + of_columns_at;
  {
    Amax8<bf16> of_rows, of_columns;
    maxima_of(own, of_rows, of_columns);
    const auto make = [&]<int kAxis>(const CopyArgs& d, const Amax8<bf16>& amax, float* factors, StagedScales& staged, int vector,
                                     int element) {
      using Blocks = Owned<bf16, kAxis, 4>;
      const Blocks blocks(amax, lane);
      const int first = Blocks::first(lane);
      uint32_t* bytes = own_bytes + 2 * kAxis;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        own_amax[2 * kAxis + j] = blocks.amax[j], bytes[j] = mx_byte(d.mx, blocks.amax[j]);
        staged.scales[vector + first + j][element >> 5] = static_cast<uint8_t>(bytes[j]);
      }
      *reinterpret_cast<float2*>(factors + first) = {Position::factor(bytes[0]), Position::factor(bytes[1])};
      if constexpr (kAxis == 0) {
        *reinterpret_cast<uint2*>(row_bytes + first) = {bytes[0] * Pairs::kBoth, bytes[1] * Pairs::kBoth};
      } else {
        *reinterpret_cast<uint32_t*>(column_bytes + first) = bytes[0] | bytes[1] << 16;
      }
    };
    make.template operator()<0>(a.row, of_rows, row_factors, shared.row_scales, row_in, column_in);
    make.template operator()<1>(a.transposed, of_columns, column_factors, shared.transposed_scales, column_in, row_in);
  }
  write_outer(a, row, column);
  const auto some_need = [&](Care least) {
    bool any = false;
#pragma unroll
    for (int i = 0; i < 4; ++i) any |= Position::care(own_bytes[i], own_amax[i]) >= least;
    return __any_sync(0xFFFFFFFFu, any);
  };
  const bool careful = some_need(Care::range);
  __syncwarp();

  const uint32_t shift = blockDim.x / (kTileThreads >> Position::Rule::kShift);  // unknown to the compiler, see multiply_add
  const uint32_t signs = blockDim.x * (0x80008000u / kTileThreads);              // so is this: an instruction takes one constant
  const auto encode = [&]<Care kCare>() {
    uint32_t by_pair[4], column_offsets[4], column_most = Pairs::kBias * Pairs::kBoth;
    read_words(column_bytes, by_pair);
#pragma unroll
    for (int k = 0; k < 4; ++k) column_offsets[k] = Pairs::offset(by_pair[k]), column_most = __vmaxu2(column_most, by_pair[k]);
    float by_column[8];
    const auto read_factors = [&] {
      read4(column_factors, by_column), read4(column_factors + 4, by_column + 4);
#pragma unroll
      for (int k = 0; k < (kCare == Care::lift ? 8 : 0); ++k) by_column[k] = Position::lifted_factor(by_pair[k >> 1] >> k % 2 * 16 & 255u);
    };
    if constexpr (kCare != Care::none) read_factors();
    encode_rows(
        a, draws, row, column,
        [&](int i, TwoRows& t) {
#pragma unroll
          for (int r = 0; r < 2; ++r) read_words(own + (i + r) * kRowBytes, t.words[r]);
          const uint32_t bytes[2] = {row_bytes[i], row_bytes[i + 1]};
          if (kCare == Care::none && !__any_sync(0xFFFFFFFFu, Pairs::some_small(t, __vimax3_u16x2(column_most, bytes[0], bytes[1])))) {
            Pairs::encode(t, bytes, column_offsets);
          } else {
            if constexpr (kCare == Care::none) read_factors();
            float by_row[2];
#pragma unroll
            for (int r = 0; r < 2; ++r) by_row[r] = kCare == Care::lift ? Position::lifted_factor(bytes[r] & 255u) : row_factors[i + r];
            Position::template encode<kCare>(t, by_row, by_column, shift, signs);
          }
        },
        [&](int half, uint32_t(&codes)[8]) {  // they wait in the place of elements that are done with
#pragma unroll
          for (int k = 0; k < (kCare == Care::none ? 0 : 8); ++k)
            codes[k] = Position::template poisoned<kCare>(by_column[k]) ? kPoisonedBytes : codes[k];
#pragma unroll
          for (int k = 0; k < 2; ++k) store4(own + (half * 2 + k) * kRowBytes, codes + 4 * k);
        });
  };
  if (!careful) {
    encode.template operator()<Care::none>();
  } else if (!some_need(Care::lift)) {
    encode.template operator()<Care::range>();
  } else {
    encode.template operator()<Care::lift>();
  }
  uint32_t columns[2][8];
#pragma unroll
  for (int n = 0; n < 4; ++n) load_shared(own + n * kRowBytes, columns[n >> 1] + n % 2 * 4);
  store_mx_columns(shared, a, columns, tile_r, tile_c, thread);
}

}  // namespace

bool launch_mxfp8_pair(const TileArgs& a, TileGrid tiles, cudaStream_t stream) {
  if (a.row.tile || a.transposed.tile) return false;
  const auto kernel = a.row.element == Element::e4m3 ? mxfp8_pair_kernel<Float::e4m3> : mxfp8_pair_kernel<Float::e5m2>;
  return launch_pair(kernel, band_grid(tiles), kTileThreads, sizeof(PairShared), stream, a);
}

}  // namespace halftone::device
