#include <cuda_runtime.h>

#include <algorithm>

#include "halftone/device/error_text.h"
#include "halftone/device/vec.cuh"
#include "halftone/fused/kernels_cuda.h"

namespace halftone::device {
namespace {

constexpr int kThreads = 256;

// One thread per Philox group: the four elements from index 4 g; only those inside the range are written.
template <class T>
__global__ void __launch_bounds__(kThreads) random_fill_kernel(const __grid_constant__ RandomFill p) {
  const uint64_t first = p.first_index, last = first + static_cast<uint64_t>(p.count), groups = (last + 3) / 4 - first / 4;
  T* out = static_cast<T*>(p.out);
  for (uint64_t g = uint64_t{blockIdx.x} * kThreads + threadIdx.x; g < groups; g += uint64_t{gridDim.x} * kThreads) {
    const uint64_t group = first / 4 + g;
    const auto words = philox(p.key, group, p.draw);
    for (int j = 0; j < 4; ++j) {
      const uint64_t i = 4 * group + static_cast<uint64_t>(j);
      if (i < first || i >= last) continue;
      from_f32(static_cast<float>(p.values(unit_double(words[j]))), out[i - first]);
    }
  }
}

}  // namespace
}  // namespace halftone::device

const char* halftone_cuda_random_fill(const halftone::RandomFill* what, void* stream) {
  using namespace halftone;
  using namespace halftone::device;
  const RandomFill& p = *what;
  if (p.dtype != DType::f32 && p.dtype != DType::bf16) return "random fill: expected bf16 or f32 elements";
  if (p.count < 0 || (p.out == nullptr && p.count > 0)) return "random fill: expected a destination";
  if (p.count == 0) return nullptr;
  constexpr int64_t kMostBlocks = 132 * 32;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(p.count / 4 + 2, kThreads), kMostBlocks));
  const auto kernel = p.dtype == DType::f32 ? random_fill_kernel<float> : random_fill_kernel<bf16>;
  kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
  return error_text(cudaGetLastError());
}
