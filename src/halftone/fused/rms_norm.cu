#include <cuda_runtime.h>

#include <algorithm>

#include "halftone/device/error_text.h"
#include "halftone/device/vec.cuh"
#include "halftone/fused/block_reduce.cuh"
#include "halftone/fused/kernels_cuda.h"

namespace halftone::device {
namespace {

// Row blocks whose partial dw are summed in a second step.
constexpr int kParts = 264;
constexpr int64_t kMostColumns = 48 * 1024;  // one partial dw fits in smem

template <class T>
__device__ T rounded(float x) {
  T y;
  from_f32(x, y);
  return y;
}

// One thread block per row; in the second pass every thread rereads from cache what it wrote or read in the first.
template <int N, class S, class T, class W>
__global__ void forward_kernel(RmsNormForward p) {
  __shared__ float scratch[32];
  const int64_t t = blockIdx.x;
  const S* x = static_cast<const S*>(p.x) + t * p.x_stride;
  const T* branch = p.branch != nullptr ? static_cast<const T*>(p.branch) + t * p.branch_stride : nullptr;
  S* sum = branch != nullptr ? static_cast<S*>(p.sum) + t * p.sum_stride : nullptr;
  const W* w = static_cast<const W*>(p.weight);
  T* y = static_cast<T*>(p.y) + t * p.y_stride;
  float square = 0;
  for (int64_t i = threadIdx.x * N; i < p.cols; i += int64_t{blockDim.x} * N) {
    Vec<S, N> v = load<N>(x + i);
    if (branch != nullptr) {
      const Vec<T, N> b = load<N>(branch + i);
      for (int j = 0; j < N; ++j) v.value[j] = rounded<S>(to_f32(v.value[j]) + to_f32(b.value[j]));
      store(sum + i, v);
    }
    for (int j = 0; j < N; ++j) square += to_f32(v.value[j]) * to_f32(v.value[j]);
  }
  const float rstd = 1.0f / sqrtf(block_sum(square, scratch) / static_cast<float>(p.cols) + p.eps);
  if (p.rstd != nullptr && threadIdx.x == 0) p.rstd[t] = rstd;
  const S* normalised = branch != nullptr ? sum : x;
  uint32_t amax = 0;
  for (int64_t i = threadIdx.x * N; i < p.cols; i += int64_t{blockDim.x} * N) {
    const Vec<S, N> v = load<N>(normalised + i);
    const Vec<W, N> scale = load<N>(w + i);
    Vec<T, N> out;
    for (int j = 0; j < N; ++j) out.value[j] = rounded<T>(to_f32(v.value[j]) * rstd * to_f32(scale.value[j]));
    store(y + i, out);
    if (p.amax != nullptr) amax = larger_magnitude(amax, out);
  }
  if (p.amax != nullptr) raise_to_block_max(amax, p.amax);
}

// One thread block per block of adjacent rows; every thread owns columns, so dw needs no atomics.
template <int N, class S, class T, class W>
__global__ void backward_kernel(RmsNormBackward p, float* partial) {
  extern __shared__ float dw[];
  __shared__ float scratch[32];
  const W* w = static_cast<const W*>(p.weight);
  const int64_t begin = p.rows * blockIdx.x / gridDim.x, end = p.rows * (blockIdx.x + 1) / gridDim.x;
  if (p.dw != nullptr) {
    for (int64_t i = threadIdx.x * N; i < p.cols; i += int64_t{blockDim.x} * N) {
      for (int j = 0; j < N; ++j) dw[i + j] = 0;
    }
  }
  for (int64_t t = begin; t < end; ++t) {
    const S* x = static_cast<const S*>(p.x) + t * p.x_stride;
    const T* dy = static_cast<const T*>(p.dy) + t * p.dy_stride;
    const float rstd = p.rstd[t];
    float dot = 0;
    for (int64_t i = threadIdx.x * N; i < p.cols; i += int64_t{blockDim.x} * N) {
      const Vec<S, N> v = load<N>(x + i);
      const Vec<T, N> d = load<N>(dy + i);
      const Vec<W, N> scale = load<N>(w + i);
      for (int j = 0; j < N; ++j) {
        const float normal = to_f32(v.value[j]) * rstd, g = to_f32(d.value[j]);
        dot += g * to_f32(scale.value[j]) * normal;
        if (p.dw != nullptr) dw[i + j] += g * normal;
      }
    }
    const float mean = block_sum(dot, scratch) / static_cast<float>(p.cols);
    const S* d_sum = p.d_sum != nullptr ? static_cast<const S*>(p.d_sum) + t * p.d_sum_stride : nullptr;
    S* dx = static_cast<S*>(p.dx) + t * p.dx_stride;
    T* d_branch = p.d_branch != nullptr ? static_cast<T*>(p.d_branch) + t * p.d_branch_stride : nullptr;
    for (int64_t i = threadIdx.x * N; i < p.cols; i += int64_t{blockDim.x} * N) {
      const Vec<S, N> v = load<N>(x + i);
      const Vec<T, N> d = load<N>(dy + i);
      const Vec<W, N> scale = load<N>(w + i);
      Vec<S, N> before{}, out;
      if (d_sum != nullptr) before = load<N>(d_sum + i);
      Vec<T, N> to_branch;
      for (int j = 0; j < N; ++j) {
        const float g = to_f32(d.value[j]) * to_f32(scale.value[j]);
        float r = rstd * (g - to_f32(v.value[j]) * rstd * mean);
        if (d_sum != nullptr) r += to_f32(before.value[j]);
        from_f32(r, out.value[j]);
        from_f32(to_f32(out.value[j]), to_branch.value[j]);
      }
      store(dx + i, out);
      if (d_branch != nullptr) store(d_branch + i, to_branch);
    }
  }
  if (p.dw == nullptr) return;
  for (int64_t i = threadIdx.x * N; i < p.cols; i += int64_t{blockDim.x} * N) {
    for (int j = 0; j < N; ++j) partial[blockIdx.x * p.cols + i + j] = dw[i + j];
  }
}

__global__ void add_parts_kernel(const float* partial, int parts, int64_t cols, float* dw) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= cols) return;
  float sum = 0;
  for (int part = 0; part < parts; ++part) sum += partial[part * cols + i];
  dw[i] += sum;
}

unsigned threads_for(int64_t cols, int n) {
  return static_cast<unsigned>(std::clamp<int64_t>(ceil_div(ceil_div(cols, n), 32) * 32, 32, 512));
}

// Calls f(S{}, T{}, W{}) with the three types; false if there is no kernel for them.
template <class F>
bool with_types(DType stream, DType type, DType weight, F&& f) {
  const auto with_weight = [&](auto s, auto t) {
    weight == DType::bf16 ? f(s, t, bf16{}) : f(s, t, float{});
    return true;
  };
  if (stream == DType::f32 && type == DType::bf16) return with_weight(float{}, bf16{});
  if (stream == DType::bf16 && type == DType::bf16) return with_weight(bf16{}, bf16{});
  if (stream == DType::f32 && type == DType::f32) return with_weight(float{}, float{});
  return false;
}

constexpr int kVector = 4;
bool rows_aligned(const void* p, DType type, int64_t stride) { return device::rows_aligned(kVector, p, size_of(type), stride); }

}  // namespace
}  // namespace halftone::device

const char* halftone_cuda_rms_norm_forward(const halftone::RmsNormForward* what, void* stream) {
  using namespace halftone;
  using namespace halftone::device;
  const RmsNormForward& p = *what;
  const auto s = static_cast<cudaStream_t>(stream);
  if (p.amax != nullptr) {
    if (const cudaError_t status = cudaMemsetAsync(p.amax, 0, sizeof(uint32_t), s); status != cudaSuccess)
      return device::error_text(status);
  }
  if (p.rows == 0 || p.cols == 0) return nullptr;
  const bool wide = p.cols % kVector == 0 && rows_aligned(p.x, p.stream_dtype, p.x_stride) &&
                    rows_aligned(p.branch, p.dtype, p.branch_stride) && rows_aligned(p.sum, p.stream_dtype, p.sum_stride) &&
                    rows_aligned(p.weight, p.weight_dtype, 0) && rows_aligned(p.y, p.dtype, p.y_stride);
  const bool known = with_types(p.stream_dtype, p.dtype, p.weight_dtype, [&](auto stream_type, auto type, auto weight) {
    using S = decltype(stream_type);
    using T = decltype(type);
    using W = decltype(weight);
    if (wide)
      forward_kernel<kVector, S, T, W><<<static_cast<unsigned>(p.rows), threads_for(p.cols, kVector), 0, s>>>(p);
    else
      forward_kernel<1, S, T, W><<<static_cast<unsigned>(p.rows), threads_for(p.cols, 1), 0, s>>>(p);
  });
  if (!known) return "rms_norm: expected f32 or bf16, and a stream no narrower than the branch";
  return device::error_text(cudaGetLastError());
}

int64_t halftone_cuda_rms_norm_partial(int64_t cols) { return cols * halftone::device::kParts; }

const char* halftone_cuda_rms_norm_backward(const halftone::RmsNormBackward* what, float* partial, void* stream) {
  using namespace halftone;
  using namespace halftone::device;
  const RmsNormBackward& p = *what;
  if (p.rows == 0 || p.cols == 0) return nullptr;
  if (p.dw != nullptr && p.cols > kMostColumns) return "rms_norm: expected at most 49,152 columns";
  const bool wide = p.cols % kVector == 0 && rows_aligned(p.x, p.stream_dtype, p.x_stride) && rows_aligned(p.dy, p.dtype, p.dy_stride) &&
                    rows_aligned(p.d_sum, p.stream_dtype, p.d_sum_stride) && rows_aligned(p.weight, p.weight_dtype, 0) &&
                    rows_aligned(p.dx, p.stream_dtype, p.dx_stride) && rows_aligned(p.d_branch, p.dtype, p.d_branch_stride);
  const auto s = static_cast<cudaStream_t>(stream);
  const auto parts = static_cast<unsigned>(std::min<int64_t>(p.rows, kParts));
  const size_t shared = p.dw != nullptr ? static_cast<size_t>(p.cols) * sizeof(float) : 0;
  cudaError_t status = cudaSuccess;
  const bool known = with_types(p.stream_dtype, p.dtype, p.weight_dtype, [&](auto stream_type, auto type, auto weight) {
    using S = decltype(stream_type);
    using T = decltype(type);
    using W = decltype(weight);
    const auto run = [&](auto* kernel, int n) {
      if (shared > 40 * 1024) status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
      if (status == cudaSuccess) kernel<<<parts, threads_for(p.cols, n), shared, s>>>(p, partial);
    };
    wide ? run(backward_kernel<kVector, S, T, W>, kVector) : run(backward_kernel<1, S, T, W>, 1);
  });
  if (!known) return "rms_norm: expected f32 or bf16, and a stream no narrower than the branch";
  if (status == cudaSuccess) status = cudaGetLastError();
  if (status == cudaSuccess && p.dw != nullptr) {
    add_parts_kernel<<<static_cast<unsigned>(ceil_div(p.cols, 128)), 128, 0, s>>>(partial, static_cast<int>(parts), p.cols, p.dw);
    status = cudaGetLastError();
  }
  return device::error_text(status);
}
