#include <cuda_runtime.h>

#include <algorithm>

#include "halftone/device/error_text.h"
#include "halftone/device/vec.cuh"
#include "halftone/fused/kernels_cuda.h"

namespace halftone::device {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void slopes_kernel(DgeSlopes p) {
  const int64_t total = p.rows * p.cols;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < total; i += int64_t{gridDim.x} * kThreads) {
    const int64_t r = i / p.cols, j = i % p.cols;
    p.out[i] = dge_slope(p.copy.spec, to_f32(static_cast<const T*>(p.w)[i]), dge_argument(p.copy, p.cols, r, j));
  }
}

}  // namespace
}  // namespace halftone::device

const char* halftone_cuda_dge_slopes(const halftone::DgeSlopes* what, void* stream) {
  using namespace halftone;
  using namespace halftone::device;
  if (what->copy.spec.element != Element::e2m1 || what->copy.spec.block <= 0)
    return "the gradient estimator is that of block-scaled e2m1 weights";
  if (what->rows * what->cols == 0) return nullptr;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(what->rows * what->cols, kThreads), 8192));
  const auto s = static_cast<cudaStream_t>(stream);
  if (what->type == DType::bf16)
    slopes_kernel<bf16><<<blocks, kThreads, 0, s>>>(*what);
  else
    slopes_kernel<float><<<blocks, kThreads, 0, s>>>(*what);
  return device::error_text(cudaGetLastError());
}
