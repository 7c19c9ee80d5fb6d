#include <cuda_runtime.h>

#include "halftone/device/error_text.h"
#include "halftone/device/row_grid.cuh"
#include "halftone/device/vec.cuh"
#include "halftone/fused/block_reduce.cuh"
#include "halftone/fused/kernels_cuda.h"

namespace halftone::device {
namespace {

constexpr int kThreads = 256;

__device__ float sigmoid(float g) { return 1.0f / (1.0f + expf(-g)); }

template <int N, class T>
__global__ void forward_kernel(SwigluForward p, RowGrid grid) {
  const int64_t c = grid.column() * N;
  uint32_t amax = 0;
  for (int64_t t = grid.row(); c < p.cols && t < p.rows; t += grid.row_step()) {
    const Vec<T, N> g = load<N>(static_cast<const T*>(p.g) + t * p.g_stride + c),
                    u = load<N>(static_cast<const T*>(p.u) + t * p.u_stride + c);
    Vec<T, N> h;
    for (int j = 0; j < N; ++j) {
      const float x = to_f32(g.value[j]);
      from_f32(x * sigmoid(x) * to_f32(u.value[j]), h.value[j]);
    }
    store(static_cast<T*>(p.h) + t * p.h_stride + c, h);
    if (p.amax != nullptr) amax = larger_magnitude(amax, h);
  }
  if (p.amax != nullptr) raise_to_block_max(amax, p.amax);
}

template <int N, class T>
__global__ void backward_kernel(SwigluBackward p, RowGrid grid) {
  const int64_t c = grid.column() * N;
  uint32_t amax_g = 0, amax_u = 0;
  for (int64_t t = grid.row(); c < p.cols && t < p.rows; t += grid.row_step()) {
    const Vec<T, N> g = load<N>(static_cast<const T*>(p.g) + t * p.g_stride + c),
                    u = load<N>(static_cast<const T*>(p.u) + t * p.u_stride + c);
    const Vec<T, N> dh = load<N>(static_cast<const T*>(p.dh) + t * p.dh_stride + c);
    Vec<T, N> dg, du, h;
    for (int j = 0; j < N; ++j) {
      const float x = to_f32(g.value[j]), y = to_f32(u.value[j]), d = to_f32(dh.value[j]), s = sigmoid(x);
      from_f32(d * y * s * (1.0f + x * (1.0f - s)), dg.value[j]);
      from_f32(d * x * s, du.value[j]);
      from_f32(x * s * y, h.value[j]);
    }
    store(static_cast<T*>(p.dg) + t * p.dg_stride + c, dg);
    store(static_cast<T*>(p.du) + t * p.du_stride + c, du);
    if (p.h != nullptr) store(static_cast<T*>(p.h) + t * p.h_stride + c, h);
    if (p.amax != nullptr) amax_g = larger_magnitude(amax_g, dg), amax_u = larger_magnitude(amax_u, du);
  }
  if (p.amax != nullptr) raise_to_block_max(amax_g, p.amax), raise_to_block_max(amax_u, p.amax + 1);
}

constexpr int kVector = 8;
bool rows_aligned(const void* p, DType type, int64_t stride) { return device::rows_aligned(kVector, p, size_of(type), stride); }

template <class P>
const char* run(const P& p, int maxima, bool wide, void (*vector16)(P, RowGrid), void (*single16)(P, RowGrid), void (*vector32)(P, RowGrid),
                void (*single32)(P, RowGrid), void* stream) {
  if (p.dtype != DType::bf16 && p.dtype != DType::f32) return "swiglu: expected bf16 or f32";
  const auto s = static_cast<cudaStream_t>(stream);
  if (p.amax != nullptr) {
    const cudaError_t status = cudaMemsetAsync(p.amax, 0, sizeof(uint32_t) * maxima, s);
    if (status != cudaSuccess) return device::error_text(status);
  }
  if (p.rows == 0 || p.cols == 0) return nullptr;
  const auto kernel = p.dtype == DType::bf16 ? wide ? vector16 : single16 : wide ? vector32 : single32;
  const RowLaunch launch = row_launch(p.rows, p.cols / (wide ? kVector : 1), kThreads, 4096);
  kernel<<<launch.blocks, kThreads, 0, s>>>(p, launch.grid);
  return device::error_text(cudaGetLastError());
}

}  // namespace
}  // namespace halftone::device

const char* halftone_cuda_swiglu_forward(const halftone::SwigluForward* what, void* stream) {
  using namespace halftone;
  using namespace halftone::device;
  const SwigluForward& p = *what;
  const bool wide = p.cols % kVector == 0 && rows_aligned(p.g, p.dtype, p.g_stride) && rows_aligned(p.u, p.dtype, p.u_stride) &&
                    rows_aligned(p.h, p.dtype, p.h_stride);
  return run(p, 1, wide, forward_kernel<kVector, bf16>, forward_kernel<1, bf16>, forward_kernel<kVector, float>, forward_kernel<1, float>,
             stream);
}

const char* halftone_cuda_swiglu_backward(const halftone::SwigluBackward* what, void* stream) {
  using namespace halftone;
  using namespace halftone::device;
  const SwigluBackward& p = *what;
  const bool wide = p.cols % kVector == 0 && rows_aligned(p.g, p.dtype, p.g_stride) && rows_aligned(p.u, p.dtype, p.u_stride) &&
                    rows_aligned(p.dh, p.dtype, p.dh_stride) && rows_aligned(p.dg, p.dtype, p.dg_stride) &&
                    rows_aligned(p.du, p.dtype, p.du_stride) && rows_aligned(p.h, p.dtype, p.h_stride);
  return run(p, 2, wide, backward_kernel<kVector, bf16>, backward_kernel<1, bf16>, backward_kernel<kVector, float>,
             backward_kernel<1, float>, stream);
}
