#include <algorithm>

#include "halftone/device/launch.h"
#include "halftone/gemm/cuda/grouped.h"
#include "halftone/gemm/cuda/grouped_factor.cuh"

namespace halftone::gemm {
namespace {

__device__ void fill_zeros(void* from, int64_t bytes, int64_t thread, int64_t threads) {
  for (int64_t i = thread; i < bytes / 16; i += threads) static_cast<uint4*>(from)[i] = {};
}

__global__ void __launch_bounds__(256) prepare_kernel(GroupedPrepare what) {
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x, threads = int64_t{gridDim.x} * blockDim.x;
  const GroupedProduct& p = what.product;
  const RowGroups& groups = p.groups;
  const int count = static_cast<int>(groups.groups);
  for (const FactorJob& job : what.jobs) {
    if (!job.to) continue;
    const int64_t all = job.rows * (job.of_buffer ? 1 : count);
    for (int64_t i = thread; i < all; i += threads) {
      const int64_t group = job.of_buffer ? group_of(groups, i) : i / job.rows;
      job.to[i] = group < count ? row_factor(job.from, job.factor, group, i) : 0.0f;
    }
  }
  char* const d = static_cast<char*>(p.d);
  const int64_t element = static_cast<int64_t>(size_of(p.d_type));
  if (p.ragged == Ragged::rows) {
    for (int64_t i = thread; i < p.rows / kGroupRows; i += threads) what.order[i] = group_of(groups, i * kGroupRows);
    const int64_t end = groups.offsets[count];
    fill_zeros(d + end * p.n * element, (p.rows - end) * p.n * element, thread, threads);
    return;
  }
  for (int64_t g = thread; g < count; g += threads) {
    const int length = groups.ends[g] - groups.offsets[g];
    int rank = 0;
    for (int other = 0; other < count; ++other) {
      const int its = groups.ends[other] - groups.offsets[other];
      rank += its > length || (its == length && other < g);
    }
    what.order[rank] = static_cast<int32_t>(g);
  }
  if (p.accumulate) return;
  const int64_t bytes = p.m * p.n * element;
  for (int g = 0; g < count; ++g) {
    if (groups.ends[g] <= groups.offsets[g]) fill_zeros(d + g * bytes, bytes, thread, threads);
  }
}

}  // namespace

cudaError_t grouped_prepare(const GroupedPrepare& what, cudaStream_t stream) {
  prepare_kernel<<<264, 256, 0, stream>>>(what);
  return cudaGetLastError();
}

}  // namespace halftone::gemm
