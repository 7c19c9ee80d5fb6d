#include "halftone/quantize/cuda/statistics.h"

#include <algorithm>

#include "halftone/device/launch.h"
#include "halftone/device/vec.cuh"
#include "halftone/quantize/cuda/amax8.cuh"
#include "halftone/quantize/cuda/async_copy.cuh"
#include "halftone/quantize/cuda/dependent.cuh"
#include "halftone/quantize/cuda/kernels.h"
#include "halftone/quantize/cuda/rotate.cuh"
#include "halftone/quantize/cuda/store_maxima.cuh"

namespace halftone::device {
namespace {

constexpr int kThreads = 1024;           // where a maximum is all that is wanted
constexpr int kStatisticsThreads = 512;  // which leave registers for a thread block of the kernel to come
constexpr int kAmaxThreads = 256;        // of a ring
constexpr int kBandRows = 32;            // of a warp's step, 64 columns

// Largest magnitudes of the elements with (kNegative) or without the sign bit, of every vector and across them. As signed numbers
// those with the bit are below 0, as unsigned ones above all others.
template <bool kNegative>
__device__ __forceinline__ uint32_t max_of_sign(uint32_t a, uint32_t b, uint32_t c) {
  return kNegative ? __vimax3_u16x2(a, b, c) : __vimax3_s16x2(a, b, c);
}
template <bool kNegative>
__device__ __forceinline__ uint32_t magnitudes_of_sign(uint32_t m) {
  return __vmaxs2(kNegative ? m ^ 0x80008000u : m, 0u);
}
template <bool kNegative>
__device__ __forceinline__ Amax8<bf16> amax_of_sign(const Vec8<bf16> (&x)[8]) {
  uint32_t m[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) m[i] = max_of_sign<kNegative>(max_of_sign<kNegative>(x[i].w[0], x[i].w[1], x[i].w[2]), x[i].w[3], x[i].w[3]);
  Amax8<bf16> a;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const uint32_t low = __byte_perm(m[2 * k], m[2 * k + 1], 0x5410), high = __byte_perm(m[2 * k], m[2 * k + 1], 0x7632);
    a.w[k] = magnitudes_of_sign<kNegative>(max_of_sign<kNegative>(low, high, high));
  }
  return a;
}
template <bool kNegative>
__device__ __forceinline__ Amax8<bf16> amax_across_of_sign(const Vec8<bf16> (&x)[8]) {
  Amax8<bf16> a;
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
__device__ __forceinline__ Amax8<float> amax8_of_sign(const Vec8<float> (&x)[8]) {
  Amax8<float> a;
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
__device__ __forceinline__ Amax8<float> amax_of_sign(const Vec8<float> (&x)[8]) {
  return amax8_of_sign<kNegative, false>(x);
}
template <bool kNegative>
__device__ __forceinline__ Amax8<float> amax_across_of_sign(const Vec8<float> (&x)[8]) {
  return amax8_of_sign<kNegative, true>(x);
}

template <class T>
__device__ __forceinline__ void merge(Amax8<T>& a, const Amax8<T>& b) {
#pragma unroll
  for (int i = 0; i < Amax8<T>::kWords; ++i) a.w[i] = max_words<T>(a.w[i], b.w[i]);
}

// Maxima of the rows of a thread block whose warps have the same rows: one atomic operation a row and thread block in memory.
// Several bands at a time, so that no warp waits for the last one, which stores them.
struct BlockRows {
  static constexpr unsigned kBands = 4;
  uint32_t amax[kBands][2][kBandRows];  // [band][sign]
  unsigned arrived[kBands], stored[kBands];
  __device__ __forceinline__ void clear() {
    for (unsigned i = threadIdx.x; i < kBands * 2 * kBandRows; i += blockDim.x) amax[0][0][i] = 0;
    if (threadIdx.x < kBands) arrived[threadIdx.x] = stored[threadIdx.x] = 0;
    __syncthreads();
  }
  // Of band number n of this thread block, once they may be written to.
  __device__ __forceinline__ uint32_t (&wait(unsigned n))[2][kBandRows] {
    while (*const_cast<volatile unsigned*>(&stored[n % kBands]) != n / kBands) __nanosleep(32);
    __syncwarp();
    return amax[n % kBands];
  }
  // By every warp; the last one stores the rows.
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
template <class T>
__device__ __forceinline__ void store_columns(uint32_t* out, int cols, int column, const Amax8<T>& amax, int lane) {
  Owned<T, 1, 4> own(amax, lane);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int c = column + Owned<T, 1, 4>::first(lane) + j;
    if (c < cols && own.amax[j] != 0) raise(out + c, own.amax[j]);
  }
}

// The largest magnitude so far of words that stand for elements in both halves (bf16), and of those of 16 bytes.
template <class T>
__device__ __forceinline__ uint32_t max_magnitude(uint32_t m, uint4 v) {
  constexpr uint32_t kMagnitude = sizeof(T) == 2 ? 0x7FFF7FFFu : 0x7FFFFFFFu;
  const auto max3 = [](uint32_t a, uint32_t b, uint32_t c) {
    if constexpr (sizeof(T) == 2) return __vimax3_u16x2(a, b, c);
    return __vimax3_u32(a, b, c);
  };
  return max3(max3(m, v.x & kMagnitude, v.y & kMagnitude), v.z & kMagnitude, v.w & kMagnitude);
}
template <class T>
__device__ __forceinline__ uint32_t magnitude_of_word(uint32_t m) {
  return sizeof(T) == 2 ? max(m << 16, m & 0xFFFF0000u) : m;
}

// What a kernel collects beside the tensor's maximum: of rows and columns as they are, by sign, or after the rotation.
enum class Collect : int { plain, by_sign, rotated };

// Bands of 32 rows x 64 columns to the warps, or 32 x 64 kWarps to the thread blocks (`shared_rows`): `teams` of them take turns with
// the bands of their columns, whose maxima they keep, so that all together read the matrix from the first row to the last.
template <class T, Collect kCollect>
__global__ void __launch_bounds__(kStatisticsThreads, 1) statistics_kernel(const __grid_constant__ StatisticsArgs a) {
  constexpr int kWarps = kStatisticsThreads / 32;
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int each = a.shared_rows ? kWarps : 1;  // strips of a team
  const auto strips = static_cast<unsigned>((a.cols + 63) / 64), groups = (strips + each - 1) / each;
  const unsigned items = groups * static_cast<unsigned>(a.teams), stride = gridDim.x * (kWarps / each);
  uint32_t tensor = 0, rotated = 0;
  bool first = true;  // what is cleared may be read or written after the wait, for which the first loads do not
  unsigned turn = 0;
  __shared__ BlockRows block_rows;
  if (a.shared_rows) block_rows.clear();
  if (a.wait_first) wait_for_primary();
  start_dependents();
  for (unsigned item = blockIdx.x + (a.shared_rows ? 0 : gridDim.x * static_cast<unsigned>(warp)); item < items; item += stride) {
    const int strip = static_cast<int>(item % groups) * each + (a.shared_rows ? warp : 0), team = static_cast<int>(item / groups);
    const int column = strip * 64 + (lane & 7) * 8;
    Amax8<T> columns{}, others{};  // others: of the elements with a sign, or of the rotated ones
#pragma unroll 1
    for (int top = team * kBandRows; top < a.rows; top += a.teams * kBandRows, ++turn) {
      const int row = top + (lane >> 3) * 8;
      const int valid = column < a.cols ? min(max(a.rows - row, 0), 8) : 0;
      const T* source = static_cast<const T*>(a.x) + int64_t{row} * a.ld + column;
      Vec8<T> x[8];
      const uint64_t policy = l2_policy(top >= a.keep_from);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        x[i] = {};
        if (i < valid) load8(source, x[i], policy);
        source += a.ld;
      }
      if (first) wait_for_primary();
      first = false;
      const auto of_rows = [&](const Amax8<T>& amax, int sign) {
        if (a.shared_rows) {
          store_rows<T, true>(block_rows.wait(turn)[sign], kBandRows, row - top, amax, lane);
        } else {
          store_rows<T>(a.row + sign * int64_t{a.rows}, a.rows, row, amax, lane);
        }
      };
      if (a.tensor != nullptr || (a.row != nullptr && !a.by_sign_row)) {
        const Amax8<T> rows = amax_of(x);
        tensor = max(tensor, amax_total(rows));
        if (a.row != nullptr && !a.by_sign_row) of_rows(rows, 0);
      }
      if (a.column != nullptr && !a.by_sign_column) merge<T>(columns, amax_across(x));
      if constexpr (kCollect == Collect::by_sign) {
        if (a.by_sign_row) of_rows(amax_of_sign<false>(x), 0), of_rows(amax_of_sign<true>(x), 1);
        if (a.by_sign_column) {
          merge<T>(columns, amax_across_of_sign<false>(x));
          merge<T>(others, amax_across_of_sign<true>(x));
        }
      }
      if constexpr (kCollect == Collect::rotated) {
        Vec8<T> t[8];
        rotate(x, t, a.hadamard, rotation_signs(a), lane);
        const Amax8<T> of_columns = amax_of(t);
        rotated = max(rotated, amax_total(of_columns));
        if (a.rotated_column != nullptr) merge<T>(others, of_columns);
      }
      if (a.shared_rows) block_rows.arrive(turn, kWarps, a.row, a.rows, top, a.by_sign_row, lane);
    }
    if (a.column != nullptr) store_columns<T>(a.column, a.cols, column, columns, lane);
    if (kCollect == Collect::by_sign && a.by_sign_column) store_columns<T>(a.column + a.cols, a.cols, column, others, lane);
    if (kCollect == Collect::rotated && a.rotated_column != nullptr) store_columns<T>(a.rotated_column, a.cols, column, others, lane);
  }
  if (first) wait_for_primary();
  if (a.tensor != nullptr) store_part(a.tensor, tensor);
  if (kCollect == Collect::rotated && a.rotated != nullptr) store_part(a.rotated, rotated);
}

// Maxima of tiles of 32 x 32: of those across the columns into the word of the first of their rows, of those down the rows into that of the
// first column. A warp has two tiles of a band, those below them after that, and keeps the maxima of their columns.
constexpr int kTilesThreads = 512;
using TilesRing = Ring<2, 8, kTilesThreads>;
__global__ void __launch_bounds__(kTilesThreads, 1) tiles_kernel(const __grid_constant__ StatisticsArgs a) {
  constexpr int kWarps = kTilesThreads / 32;
  extern __shared__ uint4 ring_memory[];
  TilesRing ring(ring_memory);
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const auto strips = static_cast<unsigned>((a.cols + 63) / 64), items = strips * static_cast<unsigned>(a.teams);
  start_dependents();
  const unsigned first_item = blockIdx.x + gridDim.x * static_cast<unsigned>(warp), stride = gridDim.x * kWarps;
  const auto top_of = [&](unsigned item) { return static_cast<int>(item / strips) * kBandRows; };
  const auto column_of = [&](unsigned item) { return static_cast<int>(item % strips) * 64 + (lane & 7) * 8; };
  unsigned asked = first_item;
  int asked_top = top_of(asked), asked_column = column_of(asked);
  const auto ask = [&](int stage) {
    if (asked < items) {
      const int row = asked_top + (lane >> 3);
      ring.ask(stage, static_cast<const bf16*>(a.x) + int64_t{row} * a.ld + asked_column, a.ld * 8,
               asked_column < a.cols ? (a.rows - row + 3) / 4 : 0, l2_policy(asked_top >= a.keep_from));
      asked_top += a.teams * kBandRows;
      if (asked_top >= a.rows && (asked += stride) < items) asked_top = top_of(asked), asked_column = column_of(asked);
    }
    end_copy_group();
  };
#pragma unroll 1
  for (int i = 0; i < ring.stages; ++i) ask(i);
  wait_for_primary();  // what is cleared may be written
  for (unsigned item = first_item; item < items; item += stride) {
    const int column = column_of(item) & ~31;
    const bool writes = (lane & ~4) == 0 && column < a.cols;
    uint32_t columns = 0;
#pragma unroll 1
    for (int top = top_of(item); top < a.rows; top += a.teams * kBandRows) {
      ring.wait();
      uint4 v[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = ring.read(ring.at(ring.stage, i));
      ask(ring.stage);
      ring.next();
      uint32_t m = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) m = max_magnitude<bf16>(m, v[i]);
      m = max_over(magnitude_of_word<bf16>(m), 1 | 2 | 8 | 16);
      columns = max(columns, m);
      if (writes && a.row != nullptr && m != 0) raise(a.row + top, m);
    }
    if (writes && a.column != nullptr && columns != 0) raise(a.column + column, columns);
  }
}

// Whether that is all that is asked for; widths are 16 and 32.
bool only_rotated(const StatisticsArgs& a) {
  return a.rotated != nullptr && a.row == nullptr && a.column == nullptr && a.rotated_column == nullptr;
}

// Zeros for the maxima of rows and columns; the kernel that collects them loads meanwhile, but not before what is done to x.
__global__ void __launch_bounds__(256) clear_kernel(uint32_t* p, int64_t n) {
  wait_for_primary();
  start_dependents();
  for (int64_t i = blockIdx.x * int64_t{256} + threadIdx.x; i < n; i += int64_t{gridDim.x} * 256) p[i] = 0;
}

template <class... Params, class... Args>
cudaError_t launch(void (*kernel)(Params...), int blocks, int threads, bool dependent, cudaStream_t stream, Args... args) {
  const DependentLaunch how(dim3(static_cast<unsigned>(blocks)), threads, stream, dependent);
  return cudaLaunchKernelEx(&how.config, kernel, static_cast<Params>(args)...);
}
template <class T, Collect kCollect>
cudaError_t launch_statistics(StatisticsArgs a, bool early, cudaStream_t stream) {
  constexpr int kWarps = kStatisticsThreads / 32;
  const int strips = (a.cols + 63) / 64, groups = (strips + kWarps - 1) / kWarps, bands = (a.rows + kBandRows - 1) / kBandRows;
  // Where every warp of nearly all thread blocks has something to do.
  a.shared_rows = a.row != nullptr && (strips % kWarps == 0 || groups > 4) && int64_t{groups} * bands >= 120;
  a.teams = std::clamp(kStatisticsParts * (a.shared_rows ? 1 : kWarps) / (a.shared_rows ? groups : strips), 1, bands);
  return launch(statistics_kernel<T, kCollect>, kStatisticsParts, kStatisticsThreads, !a.wait_first || early, stream, a);
}
template <class T>
cudaError_t launch_statistics(const StatisticsArgs& a, bool early, cudaStream_t stream) {
  if (a.hadamard != 0) return launch_statistics<T, Collect::rotated>(a, early, stream);
  if (a.by_sign_row || a.by_sign_column) return launch_statistics<T, Collect::by_sign>(a, early, stream);
  return launch_statistics<T, Collect::plain>(a, early, stream);
}

// Elements one by one, for matrices that are not made of vectors.
template <class T>
__global__ void __launch_bounds__(kThreads, 1) amax_kernel(const T* x, int64_t rows, int64_t cols, int64_t ld, uint32_t* out) {
  uint32_t amax = 0;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < rows * cols; i += int64_t{gridDim.x} * kThreads) {
    amax = max(amax, __float_as_uint(to_f32(x[i / cols * ld + i % cols])) & 0x7FFFFFFFu);
  }
  amax = __reduce_max_sync(0xFFFFFFFFu, amax);
  wait_for_primary();
  if (threadIdx.x % 32 == 0 && amax != 0) atomicMax(out, amax);
}
// Of rows of `per_row` vectors of eight, `vectors` in all: into *out, which is cleared, or a part of each thread block.
template <class T, bool kParts>
__global__ void __launch_bounds__(kThreads, 1)
    amax_vector_kernel(const T* x, int64_t vectors, int64_t per_row, int64_t ld, int64_t keep_from, uint32_t* out) {
  constexpr int kAhead = sizeof(T) == 2 ? 8 : 4;  // 128 KiB of a multiprocessor
  if (kParts) wait_for_primary();
  start_dependents();
  uint32_t amax = 0;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < vectors; i += kAhead * stride) {
    Vec8<T> v[8] = {};
    const uint64_t policy = l2_policy(i >= keep_from);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int64_t at = i + k * stride;
      if (at >= vectors) continue;
      const T* from = x + (per_row == vectors ? 8 * at : at / per_row * ld + 8 * (at % per_row));
      if constexpr (kParts) load8(from, v[k], policy);
      if constexpr (!kParts) load8(from, v[k]);
    }
    amax = max(amax, amax_total(amax_across(v)));
  }
  if (!kParts) wait_for_primary();
  store_part<!kParts>(out, amax);
}

// The same for a pass before packed copies. x: `pieces` of 16 bytes.
using AmaxRing = Ring<4, 8, kAmaxThreads>;
template <class T>
__global__ void __launch_bounds__(kAmaxThreads, 4) amax_parts_kernel(const uint4* x, int64_t pieces, int64_t keep_from, uint32_t* out) {
  extern __shared__ uint4 ring_memory[];
  AmaxRing ring(ring_memory);
  wait_for_primary();
  start_dependents();
  const int64_t stride = int64_t{gridDim.x} * kAmaxThreads;
  int64_t asked = blockIdx.x * int64_t{kAmaxThreads} + threadIdx.x;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const auto ask = [&](int stage) {
    if (asked - lane < pieces) {
      const int64_t left = pieces - asked;
      ring.ask(stage, x + asked, stride * 16,
               left > 7 * stride ? 8
               : left > 0        ? static_cast<int>((left - 1) / stride) + 1
                                 : 0,
               l2_policy(asked >= keep_from));
      asked += 8 * stride;
    }
    end_copy_group();
  };
#pragma unroll 1
  for (int i = 0; i < ring.stages; ++i) ask(i);
  uint32_t m = 0;
#pragma unroll 1
  for (int64_t i = blockIdx.x * int64_t{kAmaxThreads} + threadIdx.x; i - lane < pieces; i += 8 * stride) {
    ring.wait();
    uint4 v[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] = ring.read(ring.at(ring.stage, k));
    ask(ring.stage);
    ring.next();
#pragma unroll
    for (int k = 0; k < 8; ++k) m = max_magnitude<T>(m, v[k]);
  }
  store_part(out, magnitude_of_word<T>(m));
}

template <class T>
cudaError_t amax_of_type(const void* p, int64_t rows, int64_t cols, int64_t ld, uint32_t* out, cudaStream_t stream) {
  const T* x = static_cast<const T*>(p);
  const bool flat = ld == cols || rows == 1;
  const bool vectors = reinterpret_cast<uintptr_t>(p) % 16 == 0 && (flat ? rows * cols % 8 == 0 : cols % 8 == 0 && ld % 8 == 0);
  const auto blocks = static_cast<int>(std::clamp<int64_t>(ceil_div(rows * cols, kThreads * 8), 1, kStatisticsParts));
  if (!vectors) return launch(amax_kernel<T>, blocks, kThreads, true, stream, x, rows, cols, ld, out);
  const int64_t n = rows * cols / 8;
  return launch(amax_vector_kernel<T, false>, blocks, kThreads, true, stream, x, n, flat ? n : cols / 8, ld, 0, out);
}
template <class T>
cudaError_t amax_parts(const StatisticsArgs& a, bool early, cudaStream_t stream) {
  if (!a.packed_next) {  // the kernel to come loads to registers, which takes first-level cache that a ring would leave it without
    const int64_t per_row = a.cols / 8, n = a.rows * per_row;
    return launch(amax_vector_kernel<T, true>, kStatisticsParts, kThreads, early, stream, static_cast<const T*>(a.x), n, n, a.ld,
                  a.keep_from * per_row, a.tensor);
  }
  const int64_t per_row = a.cols * static_cast<int64_t>(sizeof(T)) / 16;
  return launch_ring(amax_parts_kernel<T>, kStatisticsParts, kAmaxThreads, AmaxRing::kBytes, early, stream, static_cast<const uint4*>(a.x),
                     a.rows * per_row, a.keep_from * per_row, a.tensor);
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
  a.keep_from = static_cast<int>(std::max<int64_t>(0, a.rows - kKeptBytes / (a.cols * static_cast<int64_t>(size_of(a.type)))));
  if (only_rotated(a)) {
    a.wait_first = true;
    return collect_rotated(a, early, stream);
  }
  // One stretch of memory, so that clearing it is one operation.
  uint32_t *first = nullptr, *last = nullptr;
  const auto clear = [&](uint32_t* p, int64_t n) {
    if (p == nullptr) return;
    if (first == nullptr || p < first) first = p;
    if (p + n > last) last = p + n;
  };
  clear(a.row, int64_t{a.rows} * (a.by_sign_row ? 2 : 1));
  clear(a.column, int64_t{a.cols} * (a.by_sign_column ? 2 : 1));
  clear(a.rotated_column, a.cols);
  a.wait_first = first == nullptr;
  if (a.wait_first && a.rotated == nullptr && a.ld == a.cols) {
    return a.type == DType::bf16 ? amax_parts<bf16>(a, early, stream) : amax_parts<float>(a, early, stream);
  }
  if (first != nullptr) {
    const int64_t n = last - first;
    const auto blocks = static_cast<int>(std::clamp<int64_t>(ceil_div(n, int64_t{1024}), 1, kStatisticsParts));
    if (const cudaError_t status = launch(clear_kernel, blocks, 256, early, stream, first, n); status != cudaSuccess) return status;
  }
  if (a.tiles) {
    a.teams = std::clamp(kStatisticsParts * kTilesThreads / 32 / ((a.cols + 63) / 64), 1, (a.rows + kBandRows - 1) / kBandRows);
    return launch_ring(tiles_kernel, kStatisticsParts, kTilesThreads, TilesRing::kBytes, true, stream, a);
  }
  if (a.type == DType::bf16 && a.rotated_column != nullptr && a.column == nullptr) {
    return collect_rotated_columns(a, stream);
  }
  return a.type == DType::bf16 ? launch_statistics<bf16>(a, early, stream) : launch_statistics<float>(a, early, stream);
}

cudaError_t collect_amax(const void* x, DType type, int64_t rows, int64_t cols, int64_t ld, uint32_t* out, cudaStream_t stream) {
  if (const cudaError_t status = launch(clear_kernel, 1, 32, starts_early(type, rows, cols), stream, out, 1); status != cudaSuccess)
    return status;
  if (rows * cols == 0) return cudaSuccess;
  return type == DType::bf16 ? amax_of_type<bf16>(x, rows, cols, ld, out, stream) : amax_of_type<float>(x, rows, cols, ld, out, stream);
}

}  // namespace halftone::device
