#include "halftone/quantize/cuda/pair.cuh"

namespace halftone::device {
namespace {

// A thread block has four warps below each other, 128 x 64 elements.
constexpr int kWarps = 4, kThreads = kWarps * 32, kColumns = 64, kOnSm = 7;

struct Int4Shared {
  static constexpr int kRowBytes = PairWarps::kRowBytes;
  // Of the transposed copy, 16 bytes a column and warp: eight columns apart and warps apart in different banks.
  static constexpr int kEight = 8 * 16 + 16, kPiece = 8 * kEight + 32;
  alignas(128) uint8_t warps[kWarps][8 * kRowBytes];  // row i of a warp's lanes' 8 x 8 elements, 16 bytes a lane
  alignas(16) uint32_t rows[kWarps][8][32];           // the row copy likewise, a word a lane
  alignas(16) uint8_t columns[kWarps * kPiece];
  alignas(16) float factors[kTile + kColumns];  // inverse scales of the tile's rows, then of its columns
};

// A quotient and draw_number<., kBase> add up, rounded up, to 96 plus the code and a fraction of 17 bits, in whose binade the fraction is
// the lowest of an fp32: the code's four bits, -8 to 7 in two's complement, are bits 1 to 4 of byte 2. (ceil(y - draw) is the integer part
// of y - draw, rounded up to 17 places, and 1 - 2^-17.)
constexpr uint32_t kBase = 0x42C00000u + 131070;
// Byte 2 of b, a code's, behind the first kBytes of a, which are those of others; kBytes = 1: behind byte 2 of a.
template <int kBytes>
__device__ __forceinline__ uint32_t gather_codes(uint32_t a, uint32_t b) {
  static_assert(kBytes >= 1 && kBytes <= 3);
  return __byte_perm(a, b, kBytes == 1 ? 0x0062 : kBytes == 2 ? 0x0610 : 0x6210);
}
// Four even and four odd ones.
__device__ __forceinline__ uint32_t pack_codes(uint32_t even, uint32_t odd) { return (even >> 1 & 0x0F0F0F0Fu) | (odd << 3 & 0xF0F0F0F0u); }

// kVectors vectors of kCodes from (r0, c0) on in pieces of 16 bytes: that of the thread's first vector from `from`, others kNext bytes on.
template <int kVectors, int kCodes, int kThreads, int kNext>
__device__ __forceinline__ void store_packed(const CopyArgs& d, int r0, int c0, unsigned thread, const uint8_t* from) {
  constexpr unsigned kPieces = kCodes / 32, kStep = kThreads / kPieces;
  const unsigned v = thread / kPieces, part = thread % kPieces, bytes = static_cast<unsigned>(d.C) / 2;
  uint8_t* to = d.packed + (static_cast<unsigned>(c0) / 2 + part * 16) + uint64_t{bytes} * (static_cast<unsigned>(r0) + v);
#pragma unroll
  for (unsigned i = 0; i < kVectors / kStep; ++i) {
    *reinterpret_cast<uint4*>(to + uint64_t{bytes} * (i * kStep)) = *reinterpret_cast<const uint4*>(from + i * kNext);
  }
}

// Packed int4 codes of both copies of bf16 elements, as int_pair_kernel makes them. All tiles lie within both copies, whose rows are
// aligned to 16 bytes, and the groups of both copies' draws are the same.
template <bool kDeviceStep>
__global__ void __launch_bounds__(kThreads, kOnSm) int4_pair_kernel(const __grid_constant__ TileArgs a) {
  extern __shared__ __align__(128) uint8_t memory[];
  Int4Shared& shared = *reinterpret_cast<Int4Shared*>(memory);
  constexpr int kRowBytes = Int4Shared::kRowBytes;
  const int thread = static_cast<int>(threadIdx.x), lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5);
  const auto [tile_r, tile_c] = TileAt(a.backwards);
  if (tile_r >= a.tiles_r) return;
  const int row0 = tile_r * kTile, column0 = tile_c * kColumns;
  const int row_in = warp * 32 + (lane >> 3) * 8, column_in = (lane & 7) * 8;
  const int row = row0 + row_in, column = column0 + column_in;

  start_dependents();
  uint8_t* own = shared.warps[warp] + lane * 16;
  if (a.rows != 0) {  // always: a branch, before which no draws are begun
    const auto stride = static_cast<uint32_t>(a.ld) * 2;
    const uint8_t* source =
        static_cast<const uint8_t*>(a.x) + static_cast<unsigned>(column) * 2 + uint64_t{stride} * static_cast<unsigned>(row);
    const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(own));
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) copy_async(to + i * kRowBytes, source + uint64_t{stride} * i);
  }
  // Draws of two rows at a time. They follow from positions alone: the first come while the elements do.
  const SharedDraws<kDeviceStep> draws(a, row, column);
  uint32_t row_draws[2][4], column_draws[2][4];
  draws.two_rows(0, row_draws, column_draws);

  if (a.dependent) wait_for_primary();  // always: a branch, across which no draws are moved
  const auto maxima = [](const CopyArgs& d, int v) {
    const uint32_t* p = d.group_amax + v;
    return uint2{p[0], p[d.R]};
  };
  const uint2 of_row = maxima(a.row, row0 + thread), of_column = maxima(a.transposed, column0 + thread % kColumns);
  const auto inverse = [](const CopyArgs& d, uint2 m) {
    const float inv = int4_scale_within(m.x, m.y, d.scale_floor).inv;
    return poisoned(max(m.x, m.y)) ? 0.0f : inv;
  };
  shared.factors[thread] = inverse(a.row, of_row);
  if (thread < kColumns) shared.factors[kTile + thread] = inverse(a.transposed, of_column);
  if (row0 == 0 || column0 == 0) {
    const auto write = [&](const CopyArgs& d, int first, int count, bool by_this) {
      if (!by_this || d.scales == nullptr) return;
#pragma unroll 1
      for (int v = first + thread; v < min(first + count, d.R); v += kThreads) {
        const uint2 m = maxima(d, v);
        static_cast<float*>(d.scales)[v] = poisoned(max(m.x, m.y)) ? quiet_nan() : int4_scale_within(m.x, m.y, d.scale_floor).scale;
      }
    };
    write(a.row, row0, kTile, column0 == 0), write(a.transposed, column0, kColumns, row0 == 0);
  }
  wait_for_copies();
  // Codes of poisoned rows and columns are 0, and so are those of finite elements times 0. Others poison both their row and their column.
  if (__syncthreads_or(poisoned(max(max(of_row.x, of_row.y), max(of_column.x, of_column.y)))) != 0) {
#pragma unroll 1
    for (int i = 0; i < 8; ++i) {
      auto* words = reinterpret_cast<uint32_t*>(own + i * kRowBytes);
#pragma unroll
      for (int k = 0; k < 4; ++k) clear_specials(words[k]);
    }
  }

  constexpr uint32_t kOne = 0x3F800000u;
  float by_row[4], by_column[8];
  uint32_t columns[2][8];  // even and odd rows
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i == 0) read4(shared.factors + kTile + column_in, by_column), read4(shared.factors + kTile + column_in + 4, by_column + 4);
    if (i != 0 && i % 2 == 0) draws.two_rows(static_cast<uint32_t>(i), row_draws, column_draws);
    if (i % 4 == 0) read4(shared.factors + row_in + i, by_row);
    const uint4 x = *reinterpret_cast<const uint4*>(own + i * kRowBytes);
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
    uint32_t s[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float v = k % 2 == 0 ? widened<0>(words[k >> 1], kOne, 0u) : widened<1>(words[k >> 1], kOne, 0u);  // all are finite
      const auto code = [&](float factor, uint32_t draws) {
        const uint32_t number = k % 2 == 0 ? draw_number<0, kBase>(draws) : draw_number<1, kBase>(draws);
        return __float_as_uint(__fadd_ru(v * factor, __uint_as_float(number)));
      };
      s[k] = code(by_row[i % 4], row_draws[i % 2][k >> 1]);
      const uint32_t c = code(by_column[k], column_draws[i % 2][k >> 1]);
      uint32_t& column = columns[i % 2][k];
      column = i < 2 ? c : i < 4 ? gather_codes<1>(column, c) : i < 6 ? gather_codes<2>(column, c) : gather_codes<3>(column, c);
    }
    const auto four = [&](int k) { return __byte_perm(gather_codes<1>(s[k], s[k + 2]), gather_codes<1>(s[k + 4], s[k + 6]), 0x5410); };
    shared.rows[warp][i][lane] = pack_codes(four(0), four(1));
  }
  uint8_t* to = shared.columns + warp * Int4Shared::kPiece + (lane & 7) * Int4Shared::kEight + (lane >> 3) * 4;
#pragma unroll
  for (int k = 0; k < 8; ++k) *reinterpret_cast<uint32_t*>(to + k * 16) = pack_codes(columns[0][k], columns[1][k]);
  __syncwarp();
  {
    const unsigned v = static_cast<unsigned>(lane) / 2;
    store_packed<32, kColumns, 32, 64>(a.row, row0 + warp * 32, column0, static_cast<unsigned>(lane),
                                       reinterpret_cast<const uint8_t*>(shared.rows[warp][v % 8] + v / 8 * 8 + lane % 2 * 4));
  }
  __syncthreads();
  const unsigned v = threadIdx.x / 4;
  store_packed<kColumns, kTile, kThreads, 4 * Int4Shared::kEight>(
      a.transposed, column0, row0, threadIdx.x,
      shared.columns + threadIdx.x % 4 * Int4Shared::kPiece + v / 8 * Int4Shared::kEight + v % 8 * 16);
}

}  // namespace

bool launch_int4_pair(const TileArgs& a, TileGrid tiles, cudaStream_t stream) {
  const Draws &row = a.row.draws, &column = a.transposed.draws;
  if (row.first != column.first || row.row != column.row) return false;
  const auto takes = [](const CopyArgs& d) {
    const bool moderate = d.scale_floor == 0 || (d.scale_floor >= 0x1p-99f && d.scale_floor <= 0x1p100f);  // int4_scale_within
    return moderate && d.C % 32 == 0 && reinterpret_cast<uintptr_t>(d.packed) % 16 == 0;
  };
  if (!takes(a.row) || !takes(a.transposed)) return false;
  if (a.rows % kTile != 0 || a.cols % kTile != 0 || a.row.C != a.cols || a.transposed.C != a.rows) return false;
  dim3 grid = band_grid(tiles);
  grid.y *= kTile / kColumns;
  if (grid.y > 65535) return false;
  constexpr int kBytes = sizeof(Int4Shared);
  static_assert((kBytes + 1024) * kOnSm <= 227 * 1024);
  const auto go = [&](auto* kernel) { return launch_pair(kernel, grid, kThreads, kBytes, stream, a); };
  return row.step != nullptr || column.step != nullptr ? go(int4_pair_kernel<true>) : go(int4_pair_kernel<false>);
}

}  // namespace halftone::device
