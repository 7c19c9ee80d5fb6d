#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include "halftone/device/error_text.h"
#include "halftone/device/vec.cuh"
#include "halftone/fused/block_reduce.cuh"
#include "halftone/fused/kernels_cuda.h"

namespace halftone::device {
namespace {

constexpr int kThreads = 256, kUnroll = 4;
// Bytes of a row staged in smem: three blocks per SM, so that some read while others write. kMost: limit per block.
constexpr int64_t kStaged = 72 << 10, kMost = 200 << 10;
constexpr unsigned kMostBlocks = 8;  // cluster size supported by every device with clusters

// One cluster of thread blocks per row, `part` elements per block. The first pass keeps a running maximum and the sum relative to it. With
// `staged` it stores the row in smem for the second pass, so that the row is read from global memory once.
template <int N, class T, class D>
__global__ void __launch_bounds__(kThreads) cross_entropy_kernel(CrossEntropy p, int64_t part, bool staged) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ float scratch[32];
  __shared__ float2 of_block;  // maximum, sum
  constexpr int64_t kStride = int64_t{kThreads} * N;
  const auto cluster = cooperative_groups::this_cluster();
  const unsigned blocks = cluster.num_blocks();
  const int64_t r = blockIdx.x / blocks, begin = cluster.block_rank() * part, end = begin + part < p.vocab ? begin + part : p.vocab;
  const T* z = static_cast<const T*>(p.logits) + r * p.logits_stride;
  T* tile = reinterpret_cast<T*>(memory);
  const int64_t label = p.label_dtype == DType::s64 ? static_cast<const int64_t*>(p.labels)[r] : static_cast<const int32_t*>(p.labels)[r];
  const int64_t column = label - p.first_column;  // the label's column; with a sharded vocabulary it may be on another rank
  const bool ignored = label == kIgnoredLabel, known = label >= 0 && label < (p.whole_vocab > 0 ? p.whole_vocab : p.vocab);
  const bool first = begin == 0 && threadIdx.x == 0, here = !ignored && column >= 0 && column < p.vocab;
  // Read before any block of the cluster writes dlogits, which may alias z.
  const float target = first && here && p.whole_lse == nullptr ? to_f32(z[column]) : 0.0f;
  const float none = -__int_as_float(0x7F800000);
  float lse = 0;
  if (!ignored && p.whole_lse != nullptr) {
    lse = known ? p.whole_lse[r] : __int_as_float(0x7FC00000);
  } else if (!ignored) {
    float top = none, sum = 0;
    for (int64_t start = begin + threadIdx.x * N; start < end; start += kUnroll * kStride) {
      Vec<T, N> v[kUnroll];
#pragma unroll
      for (int k = 0; k < kUnroll; ++k) {
        if (start + k * kStride < end) v[k] = load<N>(z + start + k * kStride);
      }
#pragma unroll
      for (int k = 0; k < kUnroll; ++k) {
        if (start + k * kStride >= end) break;
        if (staged) store(tile + (start + k * kStride - begin), v[k]);
        float most = to_f32(v[k].value[0]);
        for (int j = 1; j < N; ++j) most = fmaxf(most, to_f32(v[k].value[j]));
        if (most > top) sum *= __expf(top - most), top = most;
        const float shift = top == none ? 0.0f : top;
        for (int j = 0; j < N; ++j) sum += __expf(to_f32(v[k].value[j]) - shift);
      }
    }
    float all = block_max(top, scratch);
    float whole = block_sum(sum == 0 ? 0.0f : sum * __expf(top - all), scratch);
    if (threadIdx.x == 0) of_block = make_float2(all, whole);
    cluster.sync();
#pragma unroll 1
    for (unsigned b = 0; b < blocks; ++b) all = fmaxf(all, cluster.map_shared_rank(&of_block, b)->x);
    whole = 0;  // summed in block order, identically in every block
#pragma unroll 1
    for (unsigned b = 0; b < blocks; ++b) {
      const float2 other = *cluster.map_shared_rank(&of_block, b);
      whole += other.y == 0 ? 0.0f : other.y * __expf(other.x - all);
    }
    cluster.sync();  // remote smem stays valid until all blocks have read it
    lse = known ? all + logf(whole) : __int_as_float(0x7FC00000);
  }
  if (first) {
    if (p.loss != nullptr) p.loss[r] = lse - target;
    if (p.lse != nullptr) p.lse[r] = lse;
    if (p.target != nullptr) p.target[r] = target;
  }
  if (p.dlogits == nullptr) return;
  D* d = static_cast<D*>(p.dlogits) + r * p.dlogits_stride;
  const T* again = staged ? tile : z + begin;
  const float scale = p.grad_factor != nullptr ? p.grad_scale * *p.grad_factor : p.grad_scale;
  const float weight = p.z_loss == 0 ? 1.0f : 1.0f + 2.0f * p.z_loss * lse;
#pragma unroll 2
  for (int64_t i = begin + threadIdx.x * N; i < end; i += kStride) {
    float g[N] = {};
    if (!ignored) {
      const Vec<T, N> v = load<N>(again + (i - begin));
      for (int j = 0; j < N; ++j) g[j] = __expf(to_f32(v.value[j]) - lse) * weight;
      if (column >= i && column < i + N) {
        for (int j = 0; j < N; ++j) g[j] -= i + j == column ? 1.0f : 0.0f;
      }
    }
    Vec<D, N> out;
    for (int j = 0; j < N; ++j) from_f32(g[j] * scale, out.value[j]);
    store(d + i, out);
  }
}

template <int N, class T, class D>
cudaError_t launch_vectors(const CrossEntropy& p, cudaStream_t stream) {
  const auto kernel = cross_entropy_kernel<N, T, D>;
  const auto row_bytes = static_cast<int64_t>(p.vocab * sizeof(T));
  unsigned blocks = 1;
  while (p.dlogits != nullptr && blocks < kMostBlocks && row_bytes > blocks * kStaged) blocks *= 2;
  int64_t part = ceil_div(ceil_div(p.vocab, blocks), N) * N;
  size_t shared = part * sizeof(T);
  const bool staged = p.dlogits != nullptr && p.whole_lse == nullptr && static_cast<int64_t>(shared) <= kMost;
  if (!staged) blocks = 1, part = p.vocab, shared = 0;
  if (shared > 0) {
    const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (status != cudaSuccess) return status;
  }
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = blocks, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(p.rows * blocks)), config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = shared, config.stream = stream, config.attrs = &cluster, config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, p, part, staged);
}

template <class T, class D>
cudaError_t launch(const CrossEntropy& p, cudaStream_t stream) {
  constexpr int kVector = 16 / sizeof(T);
  const bool wide = p.vocab % kVector == 0 && rows_aligned(kVector, p.logits, sizeof(T), p.logits_stride) &&
                    rows_aligned(kVector, p.dlogits, sizeof(D), p.dlogits_stride);
  return wide ? launch_vectors<kVector, T, D>(p, stream) : launch_vectors<1, T, D>(p, stream);
}

}  // namespace
}  // namespace halftone::device

const char* halftone_cuda_cross_entropy(const halftone::CrossEntropy* what, void* stream) {
  using namespace halftone;
  using device::launch;
  const CrossEntropy& p = *what;
  if (p.rows == 0) return nullptr;
  if (p.vocab == 0) return "cross_entropy: expected a vocabulary";
  const bool types = (p.dtype == DType::bf16 || p.dtype == DType::f32) &&
                     (p.dlogits_dtype == DType::bf16 || p.dlogits_dtype == DType::f32) &&
                     (p.label_dtype == DType::s64 || p.label_dtype == DType::s32);
  if (!types) return "cross_entropy: expected logits in bf16 or f32 and labels in s64 or s32";
  const auto s = static_cast<cudaStream_t>(stream);
  const bool wide = p.dlogits_dtype == DType::f32;
  const cudaError_t status = p.dtype == DType::bf16 ? wide ? launch<bf16, float>(p, s) : launch<bf16, bf16>(p, s)
                             : wide ? launch<float, float>(p, s)
                                                    : launch<float, bf16>(p, s);
  if (status != cudaSuccess) return device::error_text(status);
  return device::error_text(cudaGetLastError());
}
