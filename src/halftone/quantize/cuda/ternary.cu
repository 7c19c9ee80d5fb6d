#include <algorithm>

#include "halftone/device/launch.h"
#include "halftone/device/vec.cuh"
#include "halftone/formats/int_scale.h"
#include "halftone/formats/pairwise_sum.h"
#include "halftone/quantize/cuda/dependent.cuh"
#include "halftone/quantize/cuda/element_vector.cuh"
#include "halftone/quantize/cuda/generic.h"
#include "halftone/quantize/cuda/statistics.h"

namespace halftone::device {
namespace {

constexpr int kLoads = 8;
constexpr int kPiece = kLoads * 256;  // elements of one warp's sum: eight times eight per lane

__device__ __forceinline__ double tree8(const double (&v)[8]) { return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7])); }

// Sums each part over the lanes, neighbours first, then tree8 over the parts; every lane gets the result. The first three exchanges each
// send half of the lane's remaining parts, so lanes that differ in bits 0, 1, 2 end with parts whose indices differ in bits 2, 1, 0.
__device__ __forceinline__ double sum_of_parts(double (&part)[kLoads], int lane) {
#pragma unroll
  for (int step = 0; step < 3; ++step) {
    const int left = kLoads >> (step + 1);
    const bool upper = (lane >> step & 1) != 0;
#pragma unroll
    for (int i = 0; i < left; ++i) {
      const double give = upper ? part[i] : part[i + left], keep = upper ? part[i + left] : part[i];
      part[i] = keep + __shfl_xor_sync(0xFFFFFFFFu, give, 1 << step);
    }
  }
  double sum = part[0];
#pragma unroll
  for (int bit : {8, 16, 4, 2, 1}) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, bit);
  return sum;
}

// Ranges of the n elements and of the workspace per set of a matrix with groups of rows. A set uses one workspace word per started kWord
// elements.
struct Sets {
  RowGroups groups;  // none: one set
  int64_t rows, cols, n;
};
template <int64_t kWord>
constexpr int64_t words_before(int64_t elements, int64_t set) {
  return elements / kWord + set;
}

// Sums of |x| over eight aligned pieces of the row-major order, one piece per warp: neighbours first, as in the whole tree. kVectors: x is
// contiguous, n a multiple of 8. kGroups: rows of set blockIdx.y.
template <class T, bool kVectors, bool kGroups>
__global__ void __launch_bounds__(256)
    pieces_kernel(const T* x, bool as_bf16, const __grid_constant__ Sets sets, int64_t ld, int64_t keep_from, double* sums) {
  wait_for_primary();
  start_dependents();
  const int64_t cols = sets.cols;
  int64_t n = sets.n;
  if constexpr (kGroups) {
    const int64_t row = first_row(sets.groups, blockIdx.y, sets.rows), before = row * cols;
    n = first_row(sets.groups, blockIdx.y + 1, sets.rows) * cols - before;
    x += row * ld, keep_from -= before, sums += words_before<8 * kPiece>(before, blockIdx.y);
  }
  const int64_t pieces = ceil_div(n, int64_t{kPiece});
  const int lane = static_cast<int>(threadIdx.x) & 31;
  __shared__ double of_warps[2][8];
  bool odd = false;
#pragma unroll 1
  for (int64_t group = blockIdx.x; group < ceil_div(pieces, int64_t{8}); group += gridDim.x, odd = !odd) {
    const int64_t piece = group * 8 + threadIdx.x / 32;
    double part[kLoads];
    const int64_t first = piece * kPiece + lane * 8;
    ElementVector<T> e[kLoads];
    const uint64_t policy = l2_policy(group * 8 * kPiece >= keep_from);
    if (kVectors && (group + 1) * 8 * kPiece <= n) {  // a branch, so that all loads are issued first
#pragma unroll
      for (int k = 0; k < kLoads; ++k) load_vector(x + first + k * 256, e[k], policy);
    } else {
#pragma unroll
      for (int k = 0; k < kLoads; ++k) {
        e[k] = {};
        if (kVectors && first + k * 256 < n) load_vector(x + first + k * 256, e[k], policy);
      }
    }
    round_elements(e, as_bf16);
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int64_t at = first + k * 256;
      double v[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float f = element(e[k], i);
        if (!kVectors) f = at + i < n ? to_f32(x[(at + i) / cols * ld + (at + i) % cols]) : 0.0f;
        if (!kVectors && sizeof(T) == 4 && as_bf16) f = __uint_as_float(bf16_words(f, 0) << 16);
        v[i] = fabs(static_cast<double>(f));
      }
      part[k] = tree8(v);
    }
    const double sum = sum_of_parts(part, lane);
    if (lane == 0) of_warps[odd][threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) sums[group] = tree8(of_warps[odd]);
  }
}

// The rest of the tree: every warp sums aligned runs of kRun sums, every thread an aligned power of two of runs, then the thread block.
// Small, so that it fits as soon as one thread block of the pass ends.
constexpr int kRun = 32 * kLoads, kTotalThreads = 256;
__global__ void __launch_bounds__(kTotalThreads)
    total_kernel(double* sums, double* of_runs, const __grid_constant__ Sets sets, ScalePair* out) {
  __shared__ double part[kTotalThreads];
  start_dependents();
  part[threadIdx.x] = 0;
  __syncthreads();
  wait_for_primary();
  int64_t n = sets.n;
  if (sets.groups.groups > 0) {
    const int64_t before = first_row(sets.groups, blockIdx.x, sets.rows) * sets.cols;
    n = first_row(sets.groups, blockIdx.x + 1, sets.rows) * sets.cols - before;
    sums += words_before<8 * kPiece>(before, blockIdx.x), of_runs += words_before<8 * kPiece * kRun>(before, blockIdx.x);
  }
  const int64_t pieces = ceil_div(n, int64_t{8 * kPiece}), runs = ceil_div(pieces, int64_t{kRun});
  int64_t each = 1;
  while (each * kTotalThreads < runs) each *= 2;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  for (int64_t run = threadIdx.x / 32; run < runs; run += kTotalThreads / 32) {
    double v[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int64_t at = run * kRun + lane * kLoads + i;
      v[i] = at < pieces ? sums[at] : 0;
    }
    double a = tree8(v);
#pragma unroll
    for (int bit = 1; bit < 32; bit *= 2) a += __shfl_xor_sync(0xFFFFFFFFu, a, bit);
    if (lane == 0) (each > 1 ? of_runs[run] : part[run]) = a;
  }
  __syncthreads();
  if (each > 1) {
    const int64_t first = threadIdx.x * each, count = min(max(runs - first, int64_t{0}), each);
    part[threadIdx.x] = pairwise_sum(count, [&](int64_t i) { return of_runs[first + i]; });
  }
  const auto parts = static_cast<int>(ceil_div(runs, each));
  for (int stride = 1; stride < parts; stride *= 2) {
    if (each > 1 || stride > 1) __syncthreads();
    const int i = static_cast<int>(threadIdx.x) * 2 * stride;
    if (i + stride < kTotalThreads) part[i] += part[i + stride];
  }
  if (threadIdx.x == 0) out[blockIdx.x] = ternary_scale(part[0], n);
}

int64_t words_of_pieces(const QuantizeOperand& p) { return words_before<8 * kPiece>(p.rows * p.cols, sets_of(p.groups)); }

template <class T>
cudaError_t launch_pieces(const QuantizeOperand& p, const DependentLaunch& launch, double* sums) {
  const int64_t n = p.rows * p.cols;
  const bool vectors = (p.ld == p.cols || p.rows == 1) && n % 8 == 0 && reinterpret_cast<uintptr_t>(p.x) % 16 == 0;
  const auto kernel = p.groups.groups > 0 ? (vectors ? pieces_kernel<T, true, true> : pieces_kernel<T, false, true>)
                                          : (vectors ? pieces_kernel<T, true, false> : pieces_kernel<T, false, false>);
  const int64_t keep_from = n - kKeptBytes / static_cast<int64_t>(sizeof(T));
  return cudaLaunchKernelEx(&launch.config, kernel, static_cast<const T*>(p.x), p.as_bf16, Sets{p.groups, p.rows, p.cols, n}, p.ld,
                            keep_from, sums);
}

}  // namespace

size_t ternary_workspace(const QuantizeOperand& p) {
  return static_cast<size_t>(words_of_pieces(p) + words_before<8 * kPiece * kRun>(p.rows * p.cols, sets_of(p.groups))) * sizeof(double);
}

cudaError_t collect_ternary(const QuantizeOperand& p, void* workspace, ScalePair* out, int32_t* tile_groups, cudaStream_t stream) {
  const int64_t n = p.rows * p.cols, groups = ceil_div(n, int64_t{8 * kPiece});
  const auto sets = static_cast<unsigned>(p.groups.groups > 0 ? sets_of(p.groups) : 1);
  auto* sums = static_cast<double*>(workspace);
  const bool early = starts_early(p.type, p.rows, p.cols);
  if (p.groups.groups > 0) {
    const cudaError_t status = map_groups(p.groups, p.rows / kGroupRows, tile_groups, nullptr, 0, early, stream);
    if (status != cudaSuccess) return status;
  }
  if (n > 0) {
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(groups, int64_t{sets}), 132 * 8));
    const DependentLaunch launch(dim3(blocks, sets), 256, stream, early);
    const cudaError_t status = p.type == DType::bf16 ? launch_pieces<bf16>(p, launch, sums) : launch_pieces<float>(p, launch, sums);
    if (status != cudaSuccess) return status;
  }
  const DependentLaunch launch(dim3(sets), kTotalThreads, stream, true);
  return cudaLaunchKernelEx(&launch.config, total_kernel, sums, sums + words_of_pieces(p), Sets{p.groups, p.rows, p.cols, n}, out);
}

}  // namespace halftone::device
