#include <cuda_runtime.h>

#include <algorithm>

#include "halftone/device/error_text.h"
#include "halftone/fused/kernels_cuda.h"

namespace halftone::device {
namespace {

constexpr int kThreads = 256;

__device__ void read_step(Rounding& r) {
  if (r.device_step != nullptr) r.step = *r.device_step;
}

__device__ bool keeps(const StoreWeight& p) { return p.outcome != nullptr && !p.outcome->updated; }

// One thread block per row.
__global__ void store_int8_kernel(StoreWeight p) {
  __shared__ uint32_t amax;
  if (keeps(p)) return;
  read_step(p.rounding);
  const int64_t r = blockIdx.x;
  const float* x = p.w + r * p.k;
  if (threadIdx.x == 0) amax = 0;
  __syncthreads();
  uint32_t mine = 0;
  for (int64_t j = threadIdx.x; j < p.k; j += kThreads) mine = max(mine, __float_as_uint(x[j]) & 0x7FFFFFFFu);
  atomicMax(&amax, __reduce_max_sync(0xFFFFFFFFu, mine));
  __syncthreads();
  const ScalePair s = int8_scale(amax);
  if (threadIdx.x == 0) p.scales[r] = s.scale;
  for (int64_t j = threadIdx.x; j < p.k; j += kThreads) p.codes[r * p.k + j] = stored_code(p, x[j] * s.inv, r, j);
}

// One thread per group.
__global__ void store_uint4_kernel(StoreWeight p) {
  const int64_t groups = p.k / p.group, total = p.n * groups;
  if (keeps(p)) return;
  read_step(p.rounding);
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < total; i += int64_t{gridDim.x} * kThreads) {
    store_uint4_group(p, i / groups, i % groups);
  }
}

}  // namespace
}  // namespace halftone::device

const char* halftone_cuda_store_weight(const halftone::StoreWeight* what, void* stream) {
  using namespace halftone;
  using namespace halftone::device;
  const StoreWeight& p = *what;
  if (p.element != Element::int8 && (p.element != Element::uint4 || p.group <= 0 || p.group % 2 != 0 || p.k % p.group != 0))
    return "stored weight: expected int8, or uint4 in whole groups";
  if (p.n * p.k == 0) return nullptr;
  const auto s = static_cast<cudaStream_t>(stream);
  if (p.element == Element::int8) {
    store_int8_kernel<<<static_cast<unsigned>(p.n), kThreads, 0, s>>>(p);
  } else {
    const int64_t groups = p.n * (p.k / p.group);
    store_uint4_kernel<<<static_cast<unsigned>(std::min<int64_t>(ceil_div(groups, kThreads), 8192)), kThreads, 0, s>>>(p);
  }
  return device::error_text(cudaGetLastError());
}
