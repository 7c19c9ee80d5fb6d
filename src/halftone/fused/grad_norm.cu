#include <cuda_runtime.h>

#include "halftone/device/error_text.h"
#include "halftone/device/vec.cuh"
#include "halftone/fused/kernels_cuda.h"

namespace halftone::device {
namespace {

constexpr int kThreads = 256, kVectors = 4;  // kVectors: 16-byte loads in flight per thread
constexpr int kJudgeThreads = 1024;

// Sum over the block; every thread gets it. The order depends on the thread count only. Call once per kernel.
template <int kBlockThreads>
__device__ double block_sum(double x) {
  constexpr int kWarps = kBlockThreads / 32;
  __shared__ double warps[kWarps];
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  x = warps[threadIdx.x % kWarps];
  for (int step = kWarps / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
  return x;
}

// Squares are computed and summed in fp64, as on the CPU: a large finite gradient must not look infinite. The kernel stays memory-bound.
__global__ void __launch_bounds__(kThreads) partial_squares_kernel(PartialSquares p) {
  constexpr int64_t kPiece = int64_t{kThreads} * kVectors;  // vectors that a block reads at once
  const int64_t vectors = p.n / 4;
  double sum = 0;
  const auto add = [&](float value) {
    const double x = value;
    sum = fma(x, x, sum);
  };
  for (int64_t begin = blockIdx.x * kPiece; begin < vectors; begin += gridDim.x * kPiece) {
    Vec<float, 4> v[kVectors];
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int64_t i = begin + j * kThreads + threadIdx.x;
      v[j] = i < vectors ? load<4>(p.x + 4 * i) : Vec<float, 4>{};
    }
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
#pragma unroll
      for (int k = 0; k < 4; ++k) add(v[j].value[k]);
    }
  }
  if (blockIdx.x == 0 && threadIdx.x < p.n % 4) add(p.x[4 * vectors + threadIdx.x]);
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) p.parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kJudgeThreads) judge_kernel(JudgeStep p) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < p.count; i += kJudgeThreads) sum += p.parts[i];
  sum = block_sum<kJudgeThreads>(sum);
  if (threadIdx.x == 0) judge(*p.outcome, sqrt(sum), p.limits);
}

}  // namespace
}  // namespace halftone::device

const char* halftone_cuda_partial_squares(const halftone::PartialSquares* what, void* stream) {
  using namespace halftone;
  using namespace halftone::device;
  if (!aligned<4>(what->x, 0)) return "gradient norm: expected a buffer on a boundary of 16 bytes";
  const auto blocks = static_cast<unsigned>(norm_parts(what->n));
  if (blocks > 0) partial_squares_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*what);
  return error_text(cudaGetLastError());
}

const char* halftone_cuda_judge_step(const halftone::JudgeStep* what, void* stream) {
  using namespace halftone::device;
  judge_kernel<<<1, kJudgeThreads, 0, static_cast<cudaStream_t>(stream)>>>(*what);
  return error_text(cudaGetLastError());
}
