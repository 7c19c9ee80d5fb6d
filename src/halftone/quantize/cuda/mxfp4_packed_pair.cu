#include "halftone/quantize/cuda/pair.cuh"

namespace halftone::device {
namespace {

// A thread block has four warps below each other, 128 x 64 elements, as mxfp4_pair_kernel.
constexpr int kWarps = 4, kThreads = kWarps * 32, kColumns = 64, kOnSm = 6;
using Rule = Stochastic<Float::e2m1>;

struct PackedShared {
  struct Warp {
    alignas(128) uint8_t x[8 * PairWarps::kRowBytes];  // row i of its lanes' 8 x 8 elements, 16 bytes a lane
    uint8_t columns[kColumns * 16];                    // its piece of the transposed copy
    float row_factors[2][32], column_factors[kColumns];
  };
  Warp warps[kWarps];
  alignas(16) uint8_t row_scales[kTile][2], column_scales[kColumns][kWarps];
  // Where the 16 bytes of a column begin. Columns change places so that lanes meet different banks, when they write eight columns apart and
  // when they read a column of four warps.
  static __device__ __forceinline__ int column_at(int warp, int column) { return (column ^ ((column >> 3 ^ warp * 2) & 7)) * 16; }
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

// element_of, whose constants the compiler makes anew from floats each time.
template <bool kFinite>
__device__ __forceinline__ float element(uint32_t pair, int half) {
  if (half == 0) return __uint_as_float(pair << 16);
  if constexpr (!kFinite) return widened<1>(pair);
  return __uint_as_float(as_word(__hfma2(as_pair(pair), as_pair(0x3F800000u), as_pair(0u))));
}
// What goes around a draw: 7 and above it the element's sign in byte 3 (of pairs' lower elements: 1), half a step less what makes the
// difference round up instead of down in byte 0.
constexpr uint32_t kAround = 0x07000700u | (Rule::kHalf - 1);
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

// Packed MXFP4 of both copies of bf16 elements with stochastic rounding: a thread has 8 x 8 elements, and makes both codes of one together,
// of two rows at a time. regular: vectors of both copies are whole lines of four bytes of scales and 16 of codes.
template <bool kDeviceStep>
__global__ void __launch_bounds__(kThreads, kOnSm)
    mxfp4_packed_pair_kernel(const __grid_constant__ TileArgs a, PairScale row_scale, PairScale column_scale, uint32_t regular) {
  extern __shared__ __align__(128) uint8_t memory[];
  PackedShared& shared = *reinterpret_cast<PackedShared*>(memory);
  constexpr int kRowBytes = PairWarps::kRowBytes;
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const auto [tile_r, tile_c] = TileAt(false);
  if (tile_r >= a.tiles_r) return;
  const int row0 = tile_r * kTile, column0 = tile_c * kColumns;
  const int row_in = warp * 32 + (lane >> 3) * 8, column_in = (lane & 7) * 8;
  const int row = row0 + row_in, column = column0 + column_in;
  const bool inside = row0 + kTile <= a.rows && column0 + kColumns <= a.cols;

  wait_for_primary();
  start_dependents();
  PackedShared::Warp& own_warp = shared.warps[warp];
  uint8_t* own = own_warp.x + lane * 16;
  if (inside) {
    const auto stride = static_cast<uint32_t>(a.ld * 2);
    const uint8_t* source =
        static_cast<const uint8_t*>(a.x) + (uint64_t{stride} * static_cast<uint32_t>(row) + static_cast<uint32_t>(column) * 2);
    const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(own));
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) copy_async(to + i * kRowBytes, source + uint64_t{stride} * i);
  } else {
    copy_own(a, row, column, false, own);
  }
  const SharedDraws<kDeviceStep> draws(a, row, column);
  wait_for_copies();

  const int half = lane >> 2 & 1;
  float *row_factors = own_warp.row_factors[half] + (lane >> 3) * 8, *column_factors = own_warp.column_factors + column_in;
  bool careful;
  {
    // Of two rows and two columns.
    const int own_row = Owned<bf16, 0, 4>::first(lane), own_column = Owned<bf16, 1, 4>::first(lane);
    Amax8<bf16> of_rows, of_columns;
    maxima_of(own, of_rows, of_columns);
    const uint32_t row_amax = Owned<bf16, 0, 4>(of_rows, lane).word, column_amax = Owned<bf16, 1, 4>(of_columns, lane).word;
    const uint32_t row_byte = row_scale(row_amax), column_byte = column_scale(column_amax);
    const uint32_t lift = above(row_byte, kLargestFactor) | above(column_byte, kLargestFactor);
    careful = __any_sync(0xFFFFFFFFu, lift != 0) || !inside;
    uint8_t* row_scales = shared.row_scales[row_in + own_row] + half;
    uint8_t* column_scales = shared.column_scales[column_in + own_column] + warp;
    row_scales[0] = static_cast<uint8_t>(row_byte), row_scales[2] = static_cast<uint8_t>(row_byte >> 16);
    column_scales[0] = static_cast<uint8_t>(column_byte), column_scales[kWarps] = static_cast<uint8_t>(column_byte >> 16);
    *reinterpret_cast<float2*>(row_factors + own_row) = two_factors(row_byte);
    *reinterpret_cast<float2*>(column_factors + own_column) = two_factors(column_byte);
    if (lift != 0) {
#pragma unroll 1
      for (int j = 0; j < 2; ++j) {
        const int shift = j * 16;
        const bool r = poisoned(row_amax << (16 - shift) & 0x7FFF0000u), c = poisoned(column_amax << (16 - shift) & 0x7FFF0000u);
        row_factors[own_row + j] = careful_factor(row_byte >> shift & 0xFFFFu, r);
        column_factors[own_column + j] = careful_factor(column_byte >> shift & 0xFFFFu, c);
        if (r) row_scales[j * 2] = 255;
        if (c) column_scales[j * kWarps] = 255;
      }
    }
  }
  write_outer(a, row, column);
  __syncwarp();

  const auto row_bytes = static_cast<uint32_t>(a.row.C) / 2;
  uint8_t* row_codes = a.row.packed + uint64_t{row_bytes} * static_cast<uint32_t>(row) + static_cast<uint32_t>(column) / 2;
  const uint32_t minus = 0u - blockDim.x / (kThreads >> Rule::kShift), sixteen = blockDim.x / (kThreads / 16);  // see multiply_add
  const uint32_t around = blockDim.x + (kAround - kThreads);
  // kCareful: blocks that are poisoned or lifted, rows beyond the matrix.
  const auto encode = [&]<bool kCareful>() {
    const int valid_rows = !kCareful ? 8 : column < a.row.C ? min(max(a.row.R - row, 0), 8) : 0;
    uint32_t even[8], odd[8];  // bytes of such rows, by columns
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int i = n / 2 * 4 + n % 2;
      uint32_t row_draws[2][4], column_draws[2][4], words[2][4], evens[2][4], odds[2][4];
      draws.template two_rows<2>(static_cast<uint32_t>(i), row_draws, column_draws);
      float by_row[2], by_column[8];
#pragma unroll
      for (int j = 0; j < 2; ++j) read_words(own + (i + 2 * j) * kRowBytes, words[j]), by_row[j] = row_factors[i + 2 * j];
      read4(column_factors, by_column), read4(column_factors + 4, by_column + 4);  // anew each time: registers are scarce
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        uint32_t c[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint32_t w = words[j][k >> 1], signs = (w & 0x80008000u) | around;
          const float v = element<!kCareful>(w, k % 2);
          const auto place = [&](uint32_t draw) { return __byte_perm(draw, signs, k % 2 == 0 ? 0x5104 : 0x7324); };
          (k % 2 == 0 ? evens : odds)[j][k >> 1] = code_down<kCareful>(v, by_row[j], minus, place(row_draws[j][k >> 1]));
          c[j] = code_down<kCareful>(v, by_column[k], minus, place(column_draws[j][k >> 1]));
        }
        uint32_t& bytes = (n % 2 == 0 ? even : odd)[k];
        bytes = n < 2 ? __byte_perm(c[0], c[1], 0x0073) : __byte_perm(__byte_perm(bytes, c[0], 0x0710), c[1], 0x7210);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const auto bytes = [](const uint32_t(&s)[4]) { return gather_bytes(s[0], s[1], s[2], s[3], 3); };
        uint32_t v = pack8_down(bytes(evens[j]), bytes(odds[j]), sixteen);
        const int r = i + 2 * j;
        uint8_t* to = row_codes + uint64_t{row_bytes} * static_cast<uint32_t>(r);
        if constexpr (kCareful) {
          if (by_row[j] == 0) v = 0;
          store_if(r < valid_rows, to, v);
        } else {
          *reinterpret_cast<uint32_t*>(to) = v;
        }
      }
    }
    const auto first =
        static_cast<uint32_t>(__cvta_generic_to_shared(own_warp.columns + PackedShared::column_at(warp, column_in) + (lane >> 3) * 4));
#pragma unroll
    for (uint32_t k = 0; k < 8; ++k) {
      uint32_t v = pack8_down(even[k], odd[k], sixteen);
      if (kCareful && column_factors[k] == 0) v = 0;
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(first ^ k * 16), "r"(v) : "memory");  // column_at: the piece begins at a multiple of 128
    }
  };
  if (!careful) {
    encode.template operator()<false>();
  } else {
    encode.template operator()<true>();
  }
  __syncthreads();
  const CopyArgs &r = a.row, &c = a.transposed;
  const auto piece = [&](int part, int v) {
    return reinterpret_cast<const uint4*>(shared.warps[part].columns + PackedShared::column_at(part, v));
  };
  if (inside && regular != 0) {
    store_scales<uint16_t, true>(r, shared.row_scales[thread], row0 + thread, column0);
    if (thread < kColumns) store_scales<uint32_t, true>(c, shared.column_scales[thread], column0 + thread, row0);
    // Whole pieces of columns.
    const auto column_bytes = static_cast<uint32_t>(c.C) / 2;
    const int part = thread & 3, v = thread >> 2;
    uint8_t* out = byte_at(c.packed, column0 + v, static_cast<int>(column_bytes), row0 / 2 + part * 16);
    const auto* from = reinterpret_cast<const uint8_t*>(piece(part, v));
    *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(from);
    // 32 columns further: column_at.
    const auto other = (static_cast<uint32_t>(__cvta_generic_to_shared(from)) ^ 64u) + 512u;
    uint32_t w[4];
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(other) : "memory");
    *reinterpret_cast<uint4*>(out + uint64_t{column_bytes} * 32) = {w[0], w[1], w[2], w[3]};
    return;
  }
  store_scales<uint16_t, false>(r, shared.row_scales[thread], row0 + thread, column0);
  if (thread < kColumns) store_scales<uint32_t, false>(c, shared.column_scales[thread], column0 + thread, row0);
  flush_pieces<4, kColumns, kTile, kThreads>(c.packed, c, column0, row0, thread, [&](int v, int at) { return piece(at >> 4, v); });
}

bool takes(const CopyArgs& d) { return !d.tile && d.hadamard == 0 && d.scale_tiles == nullptr; }
bool regular(const CopyArgs& d) {
  const auto aligned = [](const void* p, uintptr_t to) { return reinterpret_cast<uintptr_t>(p) % to == 0; };
  return d.C % kTile == 0 && d.scales != nullptr && aligned(d.packed, 16) && aligned(d.scales, 4);
}

}  // namespace

bool launch_mxfp4_packed_pair(const TileArgs& a, TileGrid tiles, cudaStream_t stream) {
  const Draws &r = a.row.draws, &c = a.transposed.draws;
  if (!takes(a.row) || !takes(a.transposed) || r.first != c.first || r.row != c.row) return false;
  dim3 grid = band_grid(tiles);
  grid.y *= kTile / kColumns;
  if (grid.y > 65535) return false;
  constexpr int kBytes = sizeof(PackedShared);
  static_assert((kBytes + 1024) * kOnSm <= 227 * 1024);
  auto* kernel = r.step != nullptr || c.step != nullptr ? mxfp4_packed_pair_kernel<true> : mxfp4_packed_pair_kernel<false>;
  return launch_pair(kernel, grid, kThreads, kBytes, stream, a, PairScale(a.row.mx), PairScale(a.transposed.mx),
                     regular(a.row) && regular(a.transposed) ? 1u : 0u);
}

}  // namespace halftone::device
