#include "halftone/quantize/cuda/own_block.cuh"

namespace halftone::device {
namespace {

// A thread block has four warps below each other, and takes a few pieces of 128 x 64 elements beside each other, by one loop: elements of
// the next one come to where a lane has read those of this one.
constexpr int kWarps = 4, kThreads = kWarps * 32, kColumns = 64, kMostPieces = 4, kOnSm = 6;
using Rule = Stochastic<Float::e2m1>;

// A warp's. Lane 8 g + q has rows 8 g + i and columns 8 q + k of a piece's. What lanes exchange lies so that five addresses of a lane reach
// all of it, and lanes that write or read together meet different banks.
struct WarpShared {
  static constexpr int kRowBytes = PairWarps::kRowBytes;
  alignas(16) uint8_t x[8 * kRowBytes];  // row i of its lanes' 8 x 8 elements, 16 bytes a lane
  // Codes: of row 8 g + i 32 bytes at 128 i + 32 g; of column 8 q + k 16 at 128 k + 16 q, of two pieces in turns. Where those of rows will
  // be, largest magnitudes before: of rows 2 j and 2 j + 1 of a lane a word at 128 j + 4 lane, of columns 2 j and 2 j + 1 at 512 + 128 j +
  // 16 q + 4 g.
  uint8_t rows[8 * 128], columns[2][8 * 128];
  // Lane 8 j + n computes the scales of rows 2 j and 2 j + 1 of group g = n / 2, of half n % 2 of the columns, and of columns 2 j and 2 j +
  // 1 of group q = n.
  float row_factors[32][4];       // the first two of four
  float column_factors[2][8][4];  // of even columns, of odd ones
  uint8_t row_scales[2][32][kMostPieces];
  uint8_t apart[32];  // four warps in different banks
};
struct PackedShared {
  WarpShared warps[kWarps];
  uint8_t column_scales[2][2][32][kWarps];  // of two pieces in turns: of even columns, of odd ones
};

// The factor that takes a block's elements to their positions (Stochastic); 0: it is poisoned; negative: with elements times kLowered,
// because their own is no fp32.
__device__ __forceinline__ float careful_factor(uint32_t byte, bool poison) {
  const bool lift = byte > kLargestFactor;
  const float inverse = __uint_as_float((254u - (lift ? byte - kLoweredBits : byte)) << 23) * Rule::kToPosition;
  return poison ? 0.0f : lift ? -inverse : inverse;
}
// Those of two blocks up to kLargestFactor.
__device__ __forceinline__ float2 two_factors(uint32_t bytes) {
  const uint32_t inverse = 0x00FE00FEu - bytes;
  return {__uint_as_float(inverse << 23) * Rule::kToPosition, __uint_as_float((inverse & 0xFFFF0000u) << 7) * Rule::kToPosition};
}

// element_of, whose constants the compiler makes anew from floats each time. The lower one, too, by a sum of pairs: its sign is lost where
// it is 0.
template <bool kFinite>
__device__ __forceinline__ float element(uint32_t pair, int half) {
  if constexpr (!kFinite) return half == 0 ? __uint_as_float(pair << 16) : widened<1>(pair);
  const __nv_bfloat162 p = half == 0 ? both_halves<0>(pair) : both_halves<1>(pair);
  return __uint_as_float(as_word(__hfma2(p, as_pair(0x3F800000u), as_pair(0u))));
}
// What goes around a draw: 7 and above it the element's sign in byte 3 (of pairs' lower elements: 1), half a step less what makes the
// difference round up instead of down in byte 0.
constexpr uint32_t kAround = 0x07000700u | (Rule::kHalf - 1);
// What the host knows and the compiler is not to know: it would make shifts of products (multiply_add).
struct Known {
  uint32_t minus = 0u - (1u << Rule::kShift), sixteen = 16, around = kAround;
  PairScale row, column;
  uint32_t row_bytes, column_bytes;
};
// In byte 3: 7 less the code of x, and its sign in bit 7. minus: -2^Rule::kShift in a register.
template <bool kLift>
__device__ __forceinline__ uint32_t code_down(float x, float factor, uint32_t minus, uint32_t around) {
  float a = fabsf(x);
  if constexpr (kLift) a = factor < 0 ? a * kLowered : a, factor = fabsf(factor);
  return multiply_add(__float_as_uint(__fmul_ru(a, factor)), minus, around);
}
// Eight codes from such bytes of even and of odd elements. Code 8, beyond the largest, left -1: ones below a sign that is not. So the upper
// half of each byte, exclusive or with the lower one and with 7, is the code with its sign, of 8 that of 7. sixteen: 16 in a register.
__device__ __forceinline__ uint32_t pack8_down(uint32_t even, uint32_t odd, uint32_t sixteen) {
  const uint32_t low = even ^ even >> 4, high = odd ^ odd * sixteen;
  return ((low & 0x0F0F0F0Fu) | (high & 0xF0F0F0F0u)) ^ 0x77777777u;
}

// Of four pairs.
template <int kAt>
__device__ __forceinline__ uint32_t max_of_four(uint32_t from) {
  uint32_t w[4];
  load16<kAt>(from, w);
  return __vmaxu2(__vimax3_u16x2(w[0], w[1], w[2]), w[3]);
}
template <int kAt>
__device__ __forceinline__ float load_float(uint32_t from) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1+%2];" : "=f"(v) : "r"(from), "n"(kAt) : "memory");
  return v;
}
template <int kAt>
__device__ __forceinline__ void store_byte(uint32_t to, uint32_t v) {
  asm volatile("st.shared.u8 [%0+%1], %2;" ::"r"(to), "n"(kAt), "r"(v) : "memory");
}
template <int kAt>
__device__ __forceinline__ void store_word(uint32_t to, uint32_t v) {
  asm volatile("st.shared.u32 [%0+%1], %2;" ::"r"(to), "n"(kAt), "r"(v) : "memory");
}
template <int kAt>
__device__ __forceinline__ void store_two(uint32_t to, float2 v) {
  asm volatile("st.shared.v2.f32 [%0+%1], {%2,%3};" ::"r"(to), "n"(kAt), "f"(v.x), "f"(v.y) : "memory");
}

// Packed MXFP4 of both copies of bf16 elements with stochastic rounding: a thread has 8 x 8 elements, and makes both codes of one together,
// of two rows at a time. kWhole: warps have nothing beyond the matrix, vectors of both copies are whole lines of four bytes of scales and
// 16 of codes. pieces: of 64 columns, in all; at_once: of a thread block.
template <bool kWhole, bool kDeviceStep>
__global__ void __launch_bounds__(kThreads, kOnSm)
    mxfp4_packed_pair_kernel(const __grid_constant__ TileArgs a, const __grid_constant__ Known k, int pieces, int at_once) {
  extern __shared__ __align__(128) uint8_t memory[];
  constexpr int kRowBytes = WarpShared::kRowBytes;
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const auto [tile_r, tile_c] = TileAt(false);
  if (tile_r >= a.tiles_r) return;
  const int count = min(at_once, pieces - tile_c * at_once), left = tile_c * at_once * kColumns;
  const int row0 = tile_r * kTile + warp * 32, row = row0 + (lane >> 3) * 8;
  int column = left + (lane & 7) * 8;

  wait_for_primary();
  start_dependents();
  PackedShared& shared = *reinterpret_cast<PackedShared*>(memory);
  WarpShared& own = shared.warps[warp];
  const uint32_t x = address_of(own.x + lane * 16, lane);
  const uint32_t stride = __shfl_sync(0xFFFFFFFFu, static_cast<uint32_t>(a.ld * 2), lane);
  const uint8_t* source = static_cast<const uint8_t*>(a.x) + (int64_t{row} * a.ld + column) * 2;
  // Row i, of the piece of which the lane's columns begin at `first`.
  const auto load = [&](int i, int first) {
    const uint8_t* from = source + uint64_t{stride} * static_cast<uint32_t>(i);
    if constexpr (kWhole) {
      copy_async(x + static_cast<uint32_t>(i * kRowBytes), from);
    } else {
      const bool valid = first < a.cols && row + i < a.rows;
      copy_async(own.x + lane * 16 + i * kRowBytes, valid ? from : static_cast<const uint8_t*>(a.x), valid);
    }
  };
#pragma unroll
  for (int i = 0; i < 8; ++i) load(i, column);
  SharedDraws<kDeviceStep> draws(a, row, column);
  write_outer(a, row, column);

  const uint32_t of_lane = address_of(own.rows + lane * 4, lane),
                 of_columns_lane = address_of(own.columns[0] + (lane & 7) * 16 + (lane >> 3) * 4, lane);
  const uint32_t by_rows = address_of(own.row_factors[lane >> 2], lane), by_columns = address_of(own.column_factors[0][lane & 7], lane);
  constexpr int kRows = offsetof(WarpShared, rows), kColumnsAt = offsetof(WarpShared, columns),
                kRowFactors = offsetof(WarpShared, row_factors), kColumnFactors = offsetof(WarpShared, column_factors) - kColumnsAt,
                kRowScales = offsetof(WarpShared, row_scales) - kRows;
  const auto to_column_scales =  // from of_columns_lane on
      static_cast<uint32_t>(offsetof(PackedShared, column_scales)) - kColumnsAt - static_cast<uint32_t>(warp) * (sizeof(WarpShared) - 1);
  const uint32_t around = __shfl_sync(0xFFFFFFFFu, k.around, lane);
  uint8_t* row_to = byte_at(a.row.packed, row0 + (lane >> 1 & 3) * 8 + (lane >> 3), a.row.C / 2, left / 2 + (lane & 1) * 16);

#pragma unroll 1
  for (int piece = 0; piece < count; ++piece) {
    const bool second = (piece & 1) != 0;
    wait_for_copies();
    bool careful;
    {
      Amax8<bf16> of_rows, of_columns;
      maxima_of_rows([&](int i, uint32_t* w) { load16<0>(x + static_cast<uint32_t>(i * kRowBytes), w); }, of_rows, of_columns);
      __syncwarp();
      const auto exchange = [&]<int kJ>() {
        store_word<kJ * 128>(of_lane, of_rows.w[kJ]), store_word<kRows + 512 - kColumnsAt + kJ * 128>(of_columns_lane, of_columns.w[kJ]);
      };
      exchange.template operator()<0>(), exchange.template operator()<1>(), exchange.template operator()<2>(),
          exchange.template operator()<3>();
      __syncwarp();
      const uint32_t row_amax = max_of_four<kRows>(x), column_amax = max_of_four<kRows + 512>(x);
      const uint32_t row_byte = k.row(row_amax), column_byte = k.column(column_amax);
      const uint32_t lift = above(row_byte, kLargestFactor) | above(column_byte, kLargestFactor);
      careful = __any_sync(0xFFFFFFFFu, lift != 0);
      const uint32_t row_scales = of_lane + static_cast<uint32_t>(piece);
      const uint32_t column_scales = of_columns_lane + static_cast<uint32_t>(to_column_scales) + (second ? 256u : 0u);
      store_byte<kRowScales>(row_scales, row_byte), store_byte<kRowScales + 128>(row_scales, row_byte >> 16);
      store_byte<0>(column_scales, column_byte), store_byte<128>(column_scales, column_byte >> 16);
      const float2 of_row = two_factors(row_byte), of_column = two_factors(column_byte);
      store_two<kRowFactors>(x, of_row);
      store_word<kColumnFactors>(of_columns_lane, __float_as_uint(of_column.x));
      store_word<kColumnFactors + 128>(of_columns_lane, __float_as_uint(of_column.y));
      if (lift != 0) {
#pragma unroll 1
        for (uint32_t j = 0; j < 2; ++j) {
          const uint32_t shift = j * 16;
          const bool r = poisoned(row_amax << (16 - shift) & 0x7FFF0000u), c = poisoned(column_amax << (16 - shift) & 0x7FFF0000u);
          store_word<kRowFactors>(x + j * 4, __float_as_uint(careful_factor(row_byte >> shift & 0xFFFFu, r)));
          store_word<kColumnFactors>(of_columns_lane + j * 128, __float_as_uint(careful_factor(column_byte >> shift & 0xFFFFu, c)));
          if (r) store_byte<kRowScales>(row_scales + j * 128, 255);
          if (c) store_byte<0>(column_scales + j * 128, 255);
        }
      }
    }
    __syncwarp();

    const bool more = piece + 1 < count;
    const uint32_t to_columns = of_columns_lane + (second ? static_cast<uint32_t>(sizeof(own.columns[0])) : 0u);
    source += kColumns * 2;
    // kCareful: blocks that are poisoned or lifted.
    const auto encode = [&]<bool kCareful>() {
      uint32_t even[8], odd[8];  // bytes of such rows, by columns
      float by_column[8];        // of even columns, of odd ones
      const auto two_rows = [&]<int kN>() {
        constexpr int n = kN, i = n / 2 * 4 + n % 2;
        uint32_t row_draws[2][4], column_draws[2][4], words[2][4], evens[2][4], odds[2][4];
        draws.template two_rows<2>(static_cast<uint32_t>(i), row_draws, column_draws);
        load16<i * kRowBytes>(x, words[0]), load16<(i + 2) * kRowBytes>(x, words[1]);
        // All of the next piece at once: row by row, between the codes, took 2 to 3% longer.
        if (n == 3 && more) {
#pragma unroll
          for (int next = 0; next < 8; ++next) load(next, column + kColumns);
        }
        const float by_row[2] = {load_float<i / 2 * 128 + i % 2 * 4>(by_rows), load_float<(i / 2 + 1) * 128 + i % 2 * 4>(by_rows)};
        // Anew each time: registers are scarce.
        load16<0>(by_columns, reinterpret_cast<uint32_t*>(by_column)), load16<128>(by_columns, reinterpret_cast<uint32_t*>(by_column + 4));
#pragma unroll
        for (int c8 = 0; c8 < 8; ++c8) {
          uint32_t c[2];
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const uint32_t w = words[j][c8 >> 1];
            const float v = element<!kCareful>(w, c8 % 2);
            const uint32_t signs = (w & 0x80008000u) | around;
            const auto place = [&](uint32_t draw) { return __byte_perm(draw, signs, c8 % 2 == 0 ? 0x5104 : 0x7324); };
            (c8 % 2 == 0 ? evens : odds)[j][c8 >> 1] = code_down<kCareful>(v, by_row[j], k.minus, place(row_draws[j][c8 >> 1]));
            c[j] = code_down<kCareful>(v, by_column[c8 / 2 + c8 % 2 * 4], k.minus, place(column_draws[j][c8 >> 1]));
          }
          uint32_t& bytes = (n % 2 == 0 ? even : odd)[c8];
          bytes = n < 2 ? __byte_perm(c[0], c[1], 0x0073) : __byte_perm(__byte_perm(bytes, c[0], 0x0710), c[1], 0x7210);
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const auto bytes = [](const uint32_t(&s)[4]) { return gather_bytes(s[0], s[1], s[2], s[3], 3); };
          uint32_t v = pack8_down(bytes(evens[j]), bytes(odds[j]), k.sixteen);
          if (kCareful && by_row[j] == 0) v = 0;
          store_word<i * 128>(of_lane + static_cast<uint32_t>(j * 256), v);
        }
      };
      two_rows.template operator()<0>(), two_rows.template operator()<1>(), two_rows.template operator()<2>(),
          two_rows.template operator()<3>();
#pragma unroll
      for (uint32_t c = 0; c < 8; ++c) {
        uint32_t v = pack8_down(even[c], odd[c], k.sixteen);
        if (kCareful && by_column[c / 2 + c % 2 * 4] == 0) v = 0;
        store_word<0>(to_columns + c * 128, v);
      }
    };
    if (!careful) {
      encode.template operator()<false>();
    } else {
      encode.template operator()<true>();
    }
    __syncthreads();
    const CopyArgs &r = a.row, &c = a.transposed;
    const int column0 = left + piece * kColumns, top = tile_r * kTile;
    const auto columns_of = [&](int part) { return shared.warps[part].columns[second ? 1 : 0]; };
    if constexpr (kWhole) {
      uint32_t w[8];
      load16<kRows>(x, w), load16<kRows + 512>(x, w + 4);
      store4(row_to, w), store4(row_to + uint64_t{k.row_bytes} * 4, w + 4);
      row_to += kColumns / 2;
      // 16 rows of columns 8 (v % 8) + v / 8, and four columns further.
      const int part = thread & 3, v = thread >> 2;
      const uint8_t* from = columns_of(part) + v * 16;
      uint8_t* to = byte_at(c.packed, column0 + (v & 7) * 8 + (v >> 3), c.C / 2, top / 2 + part * 16);
      const uint4 first = *reinterpret_cast<const uint4*>(from), other = *reinterpret_cast<const uint4*>(from + 512);
      *reinterpret_cast<uint4*>(to) = first, *reinterpret_cast<uint4*>(to + uint64_t{k.column_bytes} * 4) = other;
    } else {
      flush_pieces<4, 32, kColumns, 32>(r.packed, r, row0, column0, lane,
                                        [&](int v, int at) { return own.rows + (v & 7) * 128 + (v >> 3) * 32 + at; });
      flush_pieces<4, kColumns, kTile, kThreads>(c.packed, c, column0, top, thread,
                                                 [&](int v, int at) { return columns_of(at >> 4) + (v & 7) * 128 + (v >> 3) * 16; });
    }
    if (thread < kColumns) {
      const int j = thread >> 5, q = lane >> 2;
      store_scales<uint32_t, kWhole>(c, shared.column_scales[second ? 1 : 0][j][lane], column0 + q * 8 + (lane & 3) * 2 + j, top);
    }
    column += kColumns, draws.group += kColumns / 8;
  }
  // Of both halves of row 8 (lane % 4) + lane / 4 % 4 * 2 + lane / 16.
  const int at = row0 + (lane & 3) * 8 + (lane >> 2 & 3) * 2 + (lane >> 4);
  const uint2 both = *reinterpret_cast<const uint2*>(own.row_scales[0][0] + lane * 8);
  const uint32_t scales[2] = {__byte_perm(both.x, both.y, 0x5140), __byte_perm(both.x, both.y, 0x7362)};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const auto* from = reinterpret_cast<const uint8_t*>(scales + i);
    if (count >= 2 * i + 2) {
      store_scales<uint32_t, kWhole>(a.row, from, at, left + i * 2 * kColumns);
    } else if (count == 2 * i + 1) {
      store_scales<uint16_t, kWhole>(a.row, from, at, left + i * 2 * kColumns);
    }
  }
}

}  // namespace

bool launch_mxfp4_packed_pair(const TileArgs& a, TileGrid tiles, cudaStream_t stream) {
  const Draws &r = a.row.draws, &c = a.transposed.draws;
  if (!packs_blocks(a.row, 0) || !packs_blocks(a.transposed, 0) || r.first != c.first || r.row != c.row) return false;
  const int pieces = static_cast<int>(tiles.columns) * (kTile / kColumns);
  const int at_once = 2;  // kMostPieces: 2% slower at 448 MiB and 4% at 64, where thread blocks are few
  dim3 grid = band_grid(tiles);
  grid.y = static_cast<unsigned>((pieces + at_once - 1) / at_once);
  if (grid.y > 65535) return false;
  constexpr int kBytes = sizeof(PackedShared);
  static_assert((kBytes + 1024) * kOnSm <= 227 * 1024);
  const bool all = a.rows % kTile == 0 && a.cols % kTile == 0 && whole_packed(a.row, a.cols, 4) && whole_packed(a.transposed, a.rows, 4);
  const bool device_step = r.step != nullptr || c.step != nullptr;
  auto* kernel = !all          ? mxfp4_packed_pair_kernel<false, true>
                 : device_step ? mxfp4_packed_pair_kernel<true, true>
                               : mxfp4_packed_pair_kernel<true, false>;
  const Known known{.row = PairScale(a.row.mx),
                    .column = PairScale(a.transposed.mx),
                    .row_bytes = static_cast<uint32_t>(a.row.C) / 2,
                    .column_bytes = static_cast<uint32_t>(a.transposed.C) / 2};
  return launch_pair(kernel, grid, kThreads, kBytes, stream, a, known, pieces, at_once);
}

}  // namespace halftone::device
