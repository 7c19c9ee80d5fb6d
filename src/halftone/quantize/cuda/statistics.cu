#include "halftone/quantize/cuda/statistics.h"

#include <algorithm>

#include "halftone/device/launch.h"
#include "halftone/device/row_groups.cuh"
#include "halftone/device/vec.cuh"
#include "halftone/quantize/cuda/amax_vector.cuh"
#include "halftone/quantize/cuda/dependent.cuh"
#include "halftone/quantize/cuda/gathered_rows.cuh"
#include "halftone/quantize/cuda/kernels.h"
#include "halftone/quantize/cuda/rotate_column.cuh"
#include "halftone/quantize/cuda/store_maxima.cuh"

namespace halftone::device {
namespace {

constexpr int kThreads = 1024;           // for amax only
constexpr int kStatisticsThreads = 512;  // leaves registers for a thread block of the next kernel (bf16: 96 registers each)
constexpr int kBandRows = 32;            // rows of a warp's step, 64 columns

// Maxima of the elements with (kNegative) or without the sign bit, per vector and across vectors. Elements with the sign bit are below 0 as
// signed integers and above all others as unsigned integers.
template <bool kNegative>
__device__ __forceinline__ uint32_t max_of_sign(uint32_t a, uint32_t b, uint32_t c) {
  return kNegative ? __vimax3_u16x2(a, b, c) : __vimax3_s16x2(a, b, c);
}
template <bool kNegative>
__device__ __forceinline__ uint32_t magnitudes_of_sign(uint32_t m) {
  return __vmaxs2(kNegative ? m ^ 0x80008000u : m, 0u);
}
template <bool kNegative>
__device__ __forceinline__ AmaxVector<bf16> amax_of_sign(const ElementVector<bf16> (&x)[8]) {
  uint32_t m[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) m[i] = max_of_sign<kNegative>(max_of_sign<kNegative>(x[i].w[0], x[i].w[1], x[i].w[2]), x[i].w[3], x[i].w[3]);
  AmaxVector<bf16> a;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const uint32_t low = __byte_perm(m[2 * k], m[2 * k + 1], 0x5410), high = __byte_perm(m[2 * k], m[2 * k + 1], 0x7632);
    a.w[k] = magnitudes_of_sign<kNegative>(max_of_sign<kNegative>(low, high, high));
  }
  return a;
}
template <bool kNegative>
__device__ __forceinline__ AmaxVector<bf16> amax_across_of_sign(const ElementVector<bf16> (&x)[8]) {
  AmaxVector<bf16> a;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    uint32_t m = x[7].w[k];
#pragma unroll
    for (int i = 0; i < 6; i += 2) m = max_of_sign<kNegative>(m, x[i].w[k], x[i + 1].w[k]);
    a.w[k] = magnitudes_of_sign<kNegative>(max_of_sign<kNegative>(m, x[6].w[k], x[6].w[k]));
  }
  return a;
}
template <bool kNegative>
__device__ __forceinline__ uint32_t larger_of_sign(uint32_t a, float b) {
  return kNegative ? max(a, __float_as_uint(b)) : static_cast<uint32_t>(max(static_cast<int>(a), __float_as_int(b)));
}
template <bool kNegative>
__device__ __forceinline__ uint32_t magnitude_of_sign(uint32_t m) {
  return static_cast<uint32_t>(max(static_cast<int>(kNegative ? m ^ 0x80000000u : m), 0));
}
template <bool kNegative, bool kAcross>
__device__ __forceinline__ AmaxVector<float> amax_of_signs(const ElementVector<float> (&x)[8]) {
  AmaxVector<float> a;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    uint32_t m = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) m = larger_of_sign<kNegative>(m, kAcross ? x[j].v[i] : x[i].v[j]);
    a.w[i] = magnitude_of_sign<kNegative>(m);
  }
  return a;
}
template <bool kNegative>
__device__ __forceinline__ AmaxVector<float> amax_of_sign(const ElementVector<float> (&x)[8]) {
  return amax_of_signs<kNegative, false>(x);
}
template <bool kNegative>
__device__ __forceinline__ AmaxVector<float> amax_across_of_sign(const ElementVector<float> (&x)[8]) {
  return amax_of_signs<kNegative, true>(x);
}

template <class T>
__device__ __forceinline__ void merge(AmaxVector<T>& a, const AmaxVector<T>& b) {
#pragma unroll
  for (int i = 0; i < AmaxVector<T>::kWords; ++i) a.w[i] = max_words<T>(a.w[i], b.w[i]);
}

// Row maxima of a thread block whose warps share the same rows: one global atomic per row and thread block. Several bands are in flight, so
// that no warp waits for the last warp, which stores them.
struct BlockRows {
  static constexpr unsigned kBands = 4;
  uint32_t amax[kBands][2][kBandRows];  // [band][sign]
  unsigned arrived[kBands], stored[kBands];
  __device__ __forceinline__ void clear() {
    for (unsigned i = threadIdx.x; i < kBands * 2 * kBandRows; i += blockDim.x) amax[0][0][i] = 0;
    if (threadIdx.x < kBands) arrived[threadIdx.x] = stored[threadIdx.x] = 0;
    __syncthreads();
  }
  // Slot of band n of this thread block; waits until it may be overwritten.
  __device__ __forceinline__ uint32_t (&wait(unsigned n))[2][kBandRows] {
    while (*const_cast<volatile unsigned*>(&stored[n % kBands]) != n / kBands) __nanosleep(32);
    __syncwarp();
    return amax[n % kBands];
  }
  // Called by every warp; the last one stores the rows.
  __device__ __forceinline__ void arrive(unsigned n, int warps, uint32_t* out, int rows, int top, bool by_sign, int lane) {
    const unsigned band = n % kBands;
    __syncwarp();
    __threadfence_block();
    unsigned before = 0;
    if (lane == 0) before = atomicAdd(&arrived[band], 1u);
    if (__shfl_sync(0xFFFFFFFFu, before, 0) != static_cast<unsigned>(warps) - 1) return;
    __threadfence_block();
    for (int sign = 0; sign <= static_cast<int>(by_sign); ++sign) {
      const uint32_t a = amax[band][sign][lane];
      amax[band][sign][lane] = 0;
      if (a != 0 && top + lane < rows) raise(out + sign * static_cast<int64_t>(rows) + top + lane, a);
    }
    __syncwarp();
    __threadfence_block();
    if (lane == 0) {
      arrived[band] = 0;
      __threadfence_block();
      *const_cast<volatile unsigned*>(&stored[band]) = n / kBands + 1;
    }
  }
};
// Raises *out to the warp's maximum.
__device__ __forceinline__ void raise_warp(uint32_t* out, uint32_t amax, int lane) {
  amax = __reduce_max_sync(0xFFFFFFFFu, amax);
  if (lane == 0 && amax != 0) raise(out, amax);
}
template <class T>
__device__ __forceinline__ void store_columns(uint32_t* out, int cols, int column, const AmaxVector<T>& amax, int lane) {
  Owned<T, 1> own(amax, lane);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int c = column + Owned<T, 1>::first(lane) + j;
    if (c < cols && own.amax[j] != 0) raise(out + c, own.amax[j]);
  }
}

// Distributes bands of 32 rows x 64 columns over warps, or of 32 x 64 kWarps over thread blocks (`shared_rows`). `teams` of them take turns
// with the bands of their columns and keep the column maxima, so that together they read the matrix from the first row to the last.
// kGroups: one team per tile of kGroupRows rows, which belongs to one group.
template <class T, bool kBySign, bool kGroups>
__global__ void __launch_bounds__(sizeof(T) == 2 ? kStatisticsThreads + 128 : kStatisticsThreads, 1)
    statistics_kernel(const __grid_constant__ StatisticsArgs a) {
  constexpr int kWarps = kStatisticsThreads / 32;
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int each = a.shared_rows ? kWarps : 1;  // strips per team
  const auto strips = static_cast<unsigned>((a.cols + 63) / 64), groups = (strips + each - 1) / each;
  const unsigned items = groups * static_cast<unsigned>(a.teams), stride = gridDim.x * (kWarps / each);
  uint32_t tensor = 0;
  bool first = true;  // cleared memory may be accessed only after the wait; the first loads need not wait
  unsigned turn = 0;
  __shared__ BlockRows block_rows;
  if (a.shared_rows) block_rows.clear();
  if (a.wait_first) wait_for_primary();
  start_dependents();
  for (unsigned item = blockIdx.x + (a.shared_rows ? 0 : gridDim.x * static_cast<unsigned>(warp)); item < items; item += stride) {
    const int strip = static_cast<int>(item % groups) * each + (a.shared_rows ? warp : 0), in_turn = static_cast<int>(item / groups);
    const int team = kGroups ? tile_in_turn(a.from, a.first_tile + in_turn) : in_turn;
    const int column = strip * 64 + (lane & 7) * 8;
    AmaxVector<T> columns{}, others{};  // others: elements with the sign bit
#pragma unroll 1
    for (int top = team * (kGroups ? kTile : kBandRows); top < (kGroups ? (team + 1) * kTile : a.rows);
         top += (kGroups ? 1 : a.teams) * kBandRows, ++turn) {
      const int row = top + (lane >> 3) * 8;
      const int valid = column < a.cols ? min(max(a.rows - row, 0), 8) : 0;
      const T* source = static_cast<const T*>(a.x) + int64_t{row} * a.ld + column;
      ElementVector<T> x[8];
      const uint64_t policy = l2_policy(top >= a.keep_from);
      if (kGroups && a.from.source != nullptr) {
        load_rows(a.from, static_cast<const T*>(a.x) + column, a.ld, top, lane, column < a.cols, x, policy);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          x[i] = {};
          if (i < valid) load_vector(source, x[i], policy);
          source += a.ld;
        }
      }
      round_elements(x, a.as_bf16);
      if (first) wait_for_primary();
      first = false;
      const auto of_rows = [&](const AmaxVector<T>& amax, int sign) {
        if (a.shared_rows) {
          store_rows<T, true>(block_rows.wait(turn)[sign], kBandRows, row - top, amax, lane);
        } else {
          store_rows<T>(a.row + sign * int64_t{a.rows}, a.rows, row, amax, lane);
        }
      };
      if (a.tensor != nullptr || (a.row != nullptr && !a.by_sign_row)) {
        const AmaxVector<T> rows = amax_of(x);
        tensor = max(tensor, amax_total(rows));
        if (a.row != nullptr && !a.by_sign_row) of_rows(rows, 0);
      }
      if (a.column != nullptr && !a.by_sign_column) merge<T>(columns, amax_across(x));
      if constexpr (kBySign) {
        if (a.by_sign_row) of_rows(amax_of_sign<false>(x), 0), of_rows(amax_of_sign<true>(x), 1);
        if (a.by_sign_column) {
          merge<T>(columns, amax_across_of_sign<false>(x));
          merge<T>(others, amax_across_of_sign<true>(x));
        }
      }
      if (a.shared_rows) block_rows.arrive(turn, kWarps, a.row, a.rows, top, a.by_sign_row, lane);
    }
    const int set = kGroups ? a.tile_groups[team] : 0;
    uint32_t* const of_set = a.column + int64_t{set} * a.cols * (a.by_sign_column ? 2 : 1);
    if (a.column != nullptr) store_columns<T>(of_set, a.cols, column, columns, lane);
    if (kBySign && a.by_sign_column) store_columns<T>(of_set + a.cols, a.cols, column, others, lane);
    if (kGroups && a.tensor != nullptr) raise_warp(a.tensor + set, tensor, lane), tensor = 0;
  }
  if (first) wait_for_primary();
  if (!kGroups && a.tensor != nullptr) store_part(a.tensor, tensor);
}

// Maxima of the tensor and of rows before a rotation, and of the tensor and of columns after it. A warp processes chunks of 128 rows x 64
// columns; a lane holds 32 rows of two columns, so rotations need no lane exchange. The factor n^(-1/2) and rounding to bf16 are monotonic
// and are applied to the maximum only; the larger magnitude of a final sum and difference is the sum of magnitudes. (Two infinities then do
// not give NaN, but poison just the same.)
constexpr int kRotatedThreads = 512, kChunkRows = 128;
static_assert(kChunkRows == kGroupRows);
template <int kWidth>
__device__ __forceinline__ float largest_rotated(float (&v)[kWidth]) {
  butterflies<kWidth, kWidth / 2>(v);
  float largest[2] = {};  // odd rows separately, for a shorter dependency chain
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i) largest[i & 1] = max_magnitudes(largest[i & 1], fabsf(v[i]) + fabsf(v[i + kWidth / 2]));
  return max_magnitudes(largest[0], largest[1]);
}
template <class T, int kWidth>
__device__ __forceinline__ uint32_t rotated_amax(float largest) {
  const float v = fabsf(largest) * hadamard_norm(kWidth);
  return sizeof(T) == 2 ? __float_as_uint(__bfloat162float(__float2bfloat16_rn(v))) : __float_as_uint(v);
}
__device__ __forceinline__ void scale_pair(uint32_t& w, float by) {
  w = bf16_words(by * __uint_as_float(w << 16), by * __uint_as_float(w & 0xFFFF0000u));
}
__device__ __forceinline__ void scale_pair(float2& w, float by) { w.x *= by, w.y *= by; }
__device__ __forceinline__ void load_pair(const void* p, uint32_t& w, uint64_t policy) {
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.u32 %0, [%1], %2;" : "=r"(w) : "l"(p), "l"(policy));
}
__device__ __forceinline__ void load_pair(const void* p, float2& w, uint64_t policy) {
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v2.f32 {%0, %1}, [%2], %3;" : "=f"(w.x), "=f"(w.y) : "l"(p), "l"(policy));
}
template <class T, int kWidth, bool kGroups>
__global__ void __launch_bounds__(kRotatedThreads, 1) rotated_kernel(const __grid_constant__ StatisticsArgs a) {
  constexpr int kWarps = kRotatedThreads / 32, kRows = 32;
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const auto strips = static_cast<unsigned>((a.cols + 63) / 64),
             chunks = static_cast<unsigned>(kGroups ? a.tiles : (a.rows + kChunkRows - 1) / kChunkRows);
  __shared__ RowFlips of_warps[kWarps];
  RowFlips& flips = of_warps[warp];
  wait_for_primary();
  start_dependents();
  flips.fill(a, kWidth, lane);
  const int64_t stride = a.ld * static_cast<int64_t>(sizeof(T));
  uint32_t plain = 0;
  float rotated = 0;
  for (unsigned item = blockIdx.x + gridDim.x * static_cast<unsigned>(warp); item < strips * chunks; item += gridDim.x * kWarps) {
    const int column = static_cast<int>(item % strips) * 64 + lane * 2, chunk = static_cast<int>(item / strips);
    const int top = (kGroups ? tile_in_turn(a.from, a.first_tile + chunk) : chunk) * kChunkRows;
    float columns[2] = {};
#pragma unroll 1
    for (int row = top; row < min(top + kChunkRows, a.rows); row += kRows) {
      RowPair<T> w[kRows];
      const auto* source = static_cast<const uint8_t*>(a.x) + row * stride + column * static_cast<int64_t>(sizeof(T));
      const int valid = column < a.cols ? a.rows - row : 0;
      const uint64_t policy = l2_policy(row >= a.keep_from);
      if (kGroups && a.from.source != nullptr) {
        const SourceRows rows(a.from, row, lane);
        const auto* x = static_cast<const uint8_t*>(a.x) + column * static_cast<int64_t>(sizeof(T));
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          const int from = rows.row(i);
          w[i] = {};
          if (from >= 0 && column < a.cols) load_pair(x + stride * from, w[i], policy);
        }
        if (a.from.weight != nullptr) {
#pragma unroll
          for (int i = 0; i < kRows; ++i) scale_pair(w[i], rows.weight(i));
        }
      } else {
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          w[i] = {};
          if (i < valid) load_pair(source + stride * i, w[i], policy);
        }
      }
      uint32_t of_row = 0;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const uint32_t amax = amax_of_pair(w[i]);
        plain = max(plain, amax);
        if (a.row == nullptr) continue;
        const uint32_t whole = __reduce_max_sync(0xFFFFFFFFu, amax);
        of_row = lane == i ? whole : of_row;
      }
      if (a.row != nullptr && row + lane < a.rows && of_row != 0) raise(a.row + row + lane, of_row);
      const auto rotate_half = [&](auto half) {
#pragma unroll
        for (int first = 0; first < kRows; first += kWidth) {
          float v[kWidth];
          flip_column<kWidth, half.value>(w + first, flips.words, v);
          columns[half.value] = max_magnitudes(columns[half.value], largest_rotated(v));
        }
      };
      rotate_half(std::integral_constant<int, 0>{});
      rotate_half(std::integral_constant<int, 1>{});
    }
    const int set = kGroups ? a.tile_groups[top / kChunkRows] : 0;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      rotated = max_magnitudes(rotated, columns[j]);
      const uint32_t amax = rotated_amax<T, kWidth>(columns[j]);
      if (a.rotated_column != nullptr && column + j < a.cols && amax != 0)
        raise(a.rotated_column + int64_t{set} * a.cols + column + j, amax);
    }
    if constexpr (kGroups) {
      if (a.tensor != nullptr) raise_warp(a.tensor + set, plain, lane);
      if (a.rotated != nullptr) raise_warp(a.rotated + set, rotated_amax<T, kWidth>(rotated), lane);
      plain = 0, rotated = 0;
    }
  }
  if (!kGroups && a.tensor != nullptr) store_part(a.tensor, plain);
  if (!kGroups && a.rotated != nullptr) store_part(a.rotated, rotated_amax<T, kWidth>(rotated));
}

// Zeroes row and column maxima; the collecting kernel issues its loads meanwhile, but not before x is complete.
__global__ void __launch_bounds__(256) clear_kernel(uint32_t* p, int64_t n) {
  wait_for_primary();
  start_dependents();
  for (int64_t i = blockIdx.x * int64_t{256} + threadIdx.x; i < n; i += int64_t{gridDim.x} * 256) p[i] = 0;
}

__global__ void __launch_bounds__(256) map_kernel(RowGroups groups, int64_t tiles, int32_t* tile_groups, uint32_t* zeros, int64_t n) {
  wait_for_primary();
  start_dependents();
  const int64_t first = blockIdx.x * int64_t{256} + threadIdx.x, step = int64_t{gridDim.x} * 256;
  for (int64_t i = first; i < n; i += step) zeros[i] = 0;
  for (int64_t i = first; i < tiles; i += step) tile_groups[i] = group_of(groups, i * kGroupRows);
}

template <class... Params, class... Args>
cudaError_t launch(void (*kernel)(Params...), int blocks, int threads, bool dependent, cudaStream_t stream, Args... args) {
  const DependentLaunch how(dim3(static_cast<unsigned>(blocks)), threads, stream, dependent);
  return cudaLaunchKernelEx(&how.config, kernel, static_cast<Params>(args)...);
}
template <class T, bool kBySign, bool kGroups>
cudaError_t launch_statistics(StatisticsArgs a, bool early, cudaStream_t stream) {
  constexpr int kWarps = kStatisticsThreads / 32;
  const int strips = (a.cols + 63) / 64, groups = (strips + kWarps - 1) / kWarps, bands = (a.rows + kBandRows - 1) / kBandRows;
  // Only if every warp of nearly all thread blocks has work.
  a.shared_rows = !kGroups && a.row != nullptr && (strips % kWarps == 0 || groups > 4) && int64_t{groups} * bands >= 120;
  a.teams = std::clamp(kStatisticsParts * (a.shared_rows ? 1 : kWarps) / (a.shared_rows ? groups : strips), 1, bands);
  if (kGroups) a.teams = a.tiles;
  return launch(statistics_kernel<T, kBySign, kGroups>, kStatisticsParts, kStatisticsThreads, !a.wait_first || early, stream, a);
}
template <class T, bool kGroups>
cudaError_t launch_statistics(const StatisticsArgs& a, bool early, cudaStream_t stream) {
  if (a.rotated != nullptr || a.rotated_column != nullptr) {
    const auto kernel = a.hadamard == 32 ? rotated_kernel<T, 32, kGroups> : rotated_kernel<T, 16, kGroups>;
    return launch(kernel, kStatisticsParts, kRotatedThreads, true, stream, a);
  }
  if (a.by_sign_row || a.by_sign_column) return launch_statistics<T, true, kGroups>(a, early, stream);
  return launch_statistics<T, false, kGroups>(a, early, stream);
}

// Rounding is monotonic: the amax of rounded elements is the rounded amax.
template <class T>
__device__ __forceinline__ uint32_t rounded(uint32_t amax, bool as_bf16) {
  return sizeof(T) == 4 && as_bf16 ? bf16_words(__uint_as_float(amax), 0) << 16 : amax;
}
// Element by element, for matrices that do not consist of vectors.
template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    amax_kernel(const T* x, bool as_bf16, int64_t rows, int64_t cols, int64_t ld, uint32_t* out) {
  uint32_t amax = 0;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < rows * cols; i += int64_t{gridDim.x} * kThreads) {
    amax = max(amax, __float_as_uint(to_f32(x[i / cols * ld + i % cols])) & 0x7FFFFFFFu);
  }
  amax = rounded<T>(__reduce_max_sync(0xFFFFFFFFu, amax), as_bf16);
  wait_for_primary();
  if (threadIdx.x % 32 == 0 && amax != 0) atomicMax(out, amax);
}
// Rows of `per_row` vectors of eight, `vectors` in total: into *out, which is zeroed, or one part per thread block.
template <class T, bool kParts>
__global__ void __launch_bounds__(kThreads, 1)
    amax_vector_kernel(const T* x, bool as_bf16, int64_t vectors, int64_t per_row, int64_t ld, int64_t keep_from, uint32_t* out) {
  constexpr int kAhead = sizeof(T) == 2 ? 8 : 4;  // 128 KiB per SM
  if (kParts) wait_for_primary();
  start_dependents();
  uint32_t amax = 0;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < vectors; i += kAhead * stride) {
    ElementVector<T> v[8] = {};
    const uint64_t policy = l2_policy(i >= keep_from);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int64_t at = i + k * stride;
      if (at >= vectors) continue;
      const T* from = x + (per_row == vectors ? 8 * at : at / per_row * ld + 8 * (at % per_row));
      if constexpr (kParts) load_vector(from, v[k], policy);
      if constexpr (!kParts) load_vector(from, v[k]);
    }
    amax = max(amax, amax_total(amax_across(v)));
  }
  if (!kParts) wait_for_primary();
  store_part<!kParts>(out, rounded<T>(amax, as_bf16));
}

template <class T>
cudaError_t amax_of_type(const void* p, bool as_bf16, int64_t rows, int64_t cols, int64_t ld, uint32_t* out, cudaStream_t stream) {
  const T* x = static_cast<const T*>(p);
  const bool flat = ld == cols || rows == 1;
  const bool vectors = reinterpret_cast<uintptr_t>(p) % 16 == 0 && (flat ? rows * cols % 8 == 0 : cols % 8 == 0 && ld % 8 == 0);
  const auto blocks = static_cast<int>(std::clamp<int64_t>(ceil_div(rows * cols, kThreads * 8), 1, kStatisticsParts));
  if (!vectors) return launch(amax_kernel<T>, blocks, kThreads, true, stream, x, as_bf16, rows, cols, ld, out);
  const int64_t n = rows * cols / 8;
  return launch(amax_vector_kernel<T, false>, blocks, kThreads, true, stream, x, as_bf16, n, flat ? n : cols / 8, ld, 0, out);
}
template <class T>
cudaError_t amax_parts(const StatisticsArgs& a, bool early, cudaStream_t stream) {
  const int64_t per_row = a.cols / 8, n = a.rows * per_row;
  return launch(amax_vector_kernel<T, true>, kStatisticsParts, kThreads, early, stream, static_cast<const T*>(a.x), a.as_bf16, n, n, a.ld,
                a.keep_from * per_row, a.tensor);
}

}  // namespace

bool has_dependent_launches() {
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 9;
}

cudaError_t collect_statistics(const StatisticsArgs& given, cudaStream_t stream) {
  StatisticsArgs a = given;
  const bool early = starts_early(a.type, a.rows, a.cols);
  a.keep_from = a.from.source != nullptr
                    ? 0
                    : static_cast<int>(std::max<int64_t>(0, a.rows - kKeptBytes / (a.cols * static_cast<int64_t>(size_of(a.type)))));
  // One contiguous range, so that clearing takes one operation.
  uint32_t *first = nullptr, *last = nullptr;
  const auto clear = [&](uint32_t* p, int64_t n) {
    if (p == nullptr) return;
    if (first == nullptr || p < first) first = p;
    if (p + n > last) last = p + n;
  };
  const bool groups = a.tile_groups != nullptr;
  const int64_t sets = groups ? sets_of(a.groups) : 1;
  if (groups) clear(a.tensor, sets), clear(a.rotated, sets);
  clear(a.row, int64_t{a.rows} * (a.by_sign_row ? 2 : 1));
  clear(a.column, sets * a.cols * (a.by_sign_column ? 2 : 1));
  clear(a.rotated_column, sets * a.cols);
  a.wait_first = first == nullptr;
  if (groups) {
    if (a.tiles < a.rows / kTile) a.keep_from = 0;  // keep everything that is read
    const cudaError_t status =
        a.first_tile > 0 ? cudaSuccess : map_groups(a.groups, a.rows / kTile, a.tile_groups, first, last - first, early, stream);
    if (status != cudaSuccess) return status;
    return a.type == DType::bf16 ? launch_statistics<bf16, true>(a, early, stream) : launch_statistics<float, true>(a, early, stream);
  }
  if (a.wait_first && a.rotated == nullptr && a.ld == a.cols) {
    return a.type == DType::bf16 ? amax_parts<bf16>(a, early, stream) : amax_parts<float>(a, early, stream);
  }
  if (first != nullptr) {
    const int64_t n = last - first;
    const auto blocks = static_cast<int>(std::clamp<int64_t>(ceil_div(n, int64_t{1024}), 1, kStatisticsParts));
    if (const cudaError_t status = launch(clear_kernel, blocks, 256, early, stream, first, n); status != cudaSuccess) return status;
  }
  return a.type == DType::bf16 ? launch_statistics<bf16, false>(a, early, stream) : launch_statistics<float, false>(a, early, stream);
}

cudaError_t map_groups(const RowGroups& groups, int64_t tiles, int32_t* tile_groups, uint32_t* zeros, int64_t n, bool early,
                       cudaStream_t stream) {
  const auto blocks = static_cast<int>(std::clamp<int64_t>(ceil_div(n + tiles, int64_t{1024}), 1, kStatisticsParts));
  return launch(map_kernel, blocks, 256, early, stream, groups, tiles, tile_groups, zeros, n);
}

cudaError_t collect_amax(const void* x, DType type, bool as_bf16, int64_t rows, int64_t cols, int64_t ld, uint32_t* out,
                         cudaStream_t stream) {
  if (const cudaError_t status = launch(clear_kernel, 1, 32, starts_early(type, rows, cols), stream, out, 1); status != cudaSuccess)
    return status;
  if (rows * cols == 0) return cudaSuccess;
  return type == DType::bf16 ? amax_of_type<bf16>(x, as_bf16, rows, cols, ld, out, stream)
                             : amax_of_type<float>(x, as_bf16, rows, cols, ld, out, stream);
}

}  // namespace halftone::device
