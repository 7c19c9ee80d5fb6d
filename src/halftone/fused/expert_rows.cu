#include <cuda_runtime.h>

#include <algorithm>

#include "halftone/device/error_text.h"
#include "halftone/device/row_grid.cuh"
#include "halftone/device/row_groups.cuh"
#include "halftone/device/vec.cuh"
#include "halftone/fused/block_reduce.cuh"
#include "halftone/fused/kernels_cuda.h"

namespace halftone::device {
namespace {

constexpr int kThreads = 256;
constexpr int kMostBlocks = 8192;

__device__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// Each block processes rows in turn.
template <int N, class T>
__global__ void gather_kernel(GatherRows p) {
  __shared__ float scratch[32];
  for (int64_t turn = blockIdx.x; turn < p.rows; turn += gridDim.x) {
    const int64_t r = p.order == nullptr ? turn : p.order[turn / kGroupRows] * kGroupRows + turn % kGroupRows;
    const int32_t source = p.source[r];
    const T* x = static_cast<const T*>(p.x) + (source < 0 ? 0 : source / p.top_k) * p.cols;
    const T* y = static_cast<const T*>(p.other) + r * p.cols;
    T* out = static_cast<T*>(p.out) + r * p.cols;
    const float w = p.weight == nullptr || source < 0 ? 1.0f : p.weight[source];
    float dot = 0;
    for (int64_t c = threadIdx.x * N; c < p.cols; c += kThreads * N) {
      Vec<T, N> v{};
      if (source >= 0) {
        v = load<N>(x + c);
        if (p.other != nullptr) {
          const Vec<T, N> o = load<N>(y + c);
          for (int j = 0; j < N; ++j) dot += to_f32(v.value[j]) * to_f32(o.value[j]);
        }
        if (p.weight != nullptr) {
          for (int j = 0; j < N; ++j) from_f32(w * to_f32(v.value[j]), v.value[j]);
        }
      }
      if (p.out != nullptr) store(out + c, v);
    }
    if (p.other == nullptr || source < 0) continue;
    dot = block_sum(dot, scratch);
    if (threadIdx.x == 0) p.dots[source] = dot;
  }
}

template <int N, class T>
__global__ void combine_kernel(CombineRows p, RowGrid grid) {
  const int64_t c = grid.column() * N;
  for (int64_t t = grid.row(); c < p.cols && t < p.tokens; t += grid.row_step()) {
    float sum[N] = {};
    for (int64_t j = t * p.top_k; j < (t + 1) * p.top_k; ++j) {
      const Vec<T, N> row = load<N>(static_cast<const T*>(p.rows) + p.slot[j] * p.cols + c);
      const float w = p.weight == nullptr ? 1.0f : p.weight[j];
      Vec<T, N> more{};
      if (p.more != nullptr) more = load<N>(static_cast<const T*>(p.more) + p.slot[j] * p.cols + c);
      for (int i = 0; i < N; ++i) sum[i] += w * (to_f32(row.value[i]) + to_f32(more.value[i]));
    }
    Vec<T, N> out;
    for (int i = 0; i < N; ++i) from_f32(sum[i], out.value[i]);
    store(static_cast<T*>(p.out) + t * p.cols + c, out);
  }
}

template <class T, class B>
__global__ void bias_kernel(GroupBias p) {
  for (int64_t r = blockIdx.x; r < p.rows; r += gridDim.x) {
    const int64_t g = group_of(p.groups, r);
    if (g == p.groups.groups || r >= p.groups.ends[g]) continue;
    for (int64_t c = threadIdx.x; c < p.cols; c += kThreads) {
      T& x = static_cast<T*>(p.x)[r * p.cols + c];
      from_f32(to_f32(x) + to_f32(static_cast<const B*>(p.bias)[g * p.cols + c]), x);
    }
  }
}

// One thread per column of a group.
template <class T>
__global__ void sums_kernel(GroupSums p) {
  const int64_t g = blockIdx.y, c = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (c >= p.cols) return;
  float sum = 0;
  for (int64_t r = p.groups.offsets[g]; r < p.groups.ends[g]; ++r) sum += to_f32(static_cast<const T*>(p.x)[r * p.cols + c]);
  p.sums[g * p.cols + c] += sum;
}

template <class T>
__global__ void clamped_kernel(ClampedSwiglu p) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < p.rows * p.cols; i += step) {
    const Vec<T, 2> gu = load<2>(static_cast<const T*>(p.gu) + 2 * i);
    const float g = fminf(to_f32(gu.value[0]), p.limit), u = fminf(fmaxf(to_f32(gu.value[1]), -p.limit), p.limit);
    from_f32(g * sigmoid(kClampedSlope * g) * (u + 1), static_cast<T*>(p.h)[i]);
  }
}

template <class T>
__global__ void clamped_backward_kernel(ClampedSwigluBackward p) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < p.rows * p.cols; i += step) {
    const Vec<T, 2> gu = load<2>(static_cast<const T*>(p.gu) + 2 * i);
    const float g0 = to_f32(gu.value[0]), u0 = to_f32(gu.value[1]), d = to_f32(static_cast<const T*>(p.dh)[i]);
    const float g = fminf(g0, p.limit), u = fminf(fmaxf(u0, -p.limit), p.limit), s = sigmoid(kClampedSlope * g);
    Vec<T, 2> out;
    from_f32(g0 <= p.limit ? d * (u + 1) * s * (1 + kClampedSlope * g * (1 - s)) : 0.0f, out.value[0]);
    from_f32(u0 == u ? d * g * s : 0.0f, out.value[1]);
    store(static_cast<T*>(p.dgu) + 2 * i, out);
  }
}

unsigned blocks(int64_t n) { return static_cast<unsigned>(std::min<int64_t>(n, kMostBlocks)); }
bool wide(int64_t cols, std::initializer_list<const void*> rows) {
  return cols % 8 == 0 && std::all_of(rows.begin(), rows.end(), [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; });
}

}  // namespace
}  // namespace halftone::device

using namespace halftone;
using namespace halftone::device;

const char* halftone_cuda_gather_rows(const GatherRows* what, void* stream) {
  const GatherRows& p = *what;
  if (p.rows == 0 || p.cols == 0) return nullptr;
  const auto s = static_cast<cudaStream_t>(stream);
  const bool vectors = wide(p.cols, {p.x, p.out, p.other});
  const auto kernel = p.dtype == DType::bf16 ? vectors ? gather_kernel<8, bf16> : gather_kernel<1, bf16>
                      : vectors ? gather_kernel<4, float>
                                             : gather_kernel<1, float>;
  kernel<<<blocks(p.rows), kThreads, 0, s>>>(p);
  return error_text(cudaGetLastError());
}

const char* halftone_cuda_combine_rows(const CombineRows* what, void* stream) {
  const CombineRows& p = *what;
  if (p.tokens == 0 || p.cols == 0) return nullptr;
  const bool vectors = wide(p.cols, {p.rows, p.more, p.out});
  const int n = !vectors ? 1 : p.dtype == DType::bf16 ? 8 : 4;
  const auto kernel = p.dtype == DType::bf16 ? vectors ? combine_kernel<8, bf16> : combine_kernel<1, bf16>
                      : vectors ? combine_kernel<4, float>
                                             : combine_kernel<1, float>;
  const RowLaunch launch = row_launch(p.tokens, p.cols / n, kThreads, kMostBlocks);
  kernel<<<launch.blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(p, launch.grid);
  return error_text(cudaGetLastError());
}

const char* halftone_cuda_group_bias(const GroupBias* what, void* stream) {
  const GroupBias& p = *what;
  if (p.rows == 0 || p.cols == 0) return nullptr;
  const bool b16 = p.bias_dtype == DType::bf16;
  const auto kernel = p.dtype == DType::bf16 ? b16 ? bias_kernel<bf16, bf16> : bias_kernel<bf16, float>
                      : b16 ? bias_kernel<float, bf16>
                                             : bias_kernel<float, float>;
  kernel<<<blocks(p.rows), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
  return error_text(cudaGetLastError());
}

const char* halftone_cuda_group_sums(const GroupSums* what, void* stream) {
  const GroupSums& p = *what;
  if (p.cols == 0 || p.groups.groups == 0) return nullptr;
  const dim3 grid(static_cast<unsigned>(ceil_div(p.cols, kThreads)), static_cast<unsigned>(p.groups.groups));
  (p.dtype == DType::bf16 ? sums_kernel<bf16> : sums_kernel<float>)<<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
  return error_text(cudaGetLastError());
}

const char* halftone_cuda_clamped_swiglu(const ClampedSwiglu* what, void* stream) {
  const ClampedSwiglu& p = *what;
  if (p.rows == 0 || p.cols == 0) return nullptr;
  const unsigned n = blocks(ceil_div(p.rows * p.cols, kThreads));
  (p.dtype == DType::bf16 ? clamped_kernel<bf16> : clamped_kernel<float>)<<<n, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
  return error_text(cudaGetLastError());
}

const char* halftone_cuda_clamped_swiglu_backward(const ClampedSwigluBackward* what, void* stream) {
  const ClampedSwigluBackward& p = *what;
  if (p.rows == 0 || p.cols == 0) return nullptr;
  const unsigned n = blocks(ceil_div(p.rows * p.cols, kThreads));
  const auto kernel = p.dtype == DType::bf16 ? clamped_backward_kernel<bf16> : clamped_backward_kernel<float>;
  kernel<<<n, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
  return error_text(cudaGetLastError());
}
