#include <cuda_runtime.h>

#include "halftone/device/error_text.h"
#include "halftone/device/vec.cuh"
#include "halftone/fused/block_reduce.cuh"
#include "halftone/fused/cross_entropy_cuda.h"

namespace halftone::device {
namespace {

constexpr int kThreads = 512;

// One row a thread block. The first turn keeps a running maximum and the sum relative to it, so that the row is read from
// memory once; the second reads it from the cache.
template <int N, class T, class D>
__global__ void cross_entropy_kernel(CrossEntropy p) {
  __shared__ float scratch[32];
  const int64_t r = blockIdx.x;
  const T* z = static_cast<const T*>(p.logits) + r * p.logits_stride;
  const int64_t label = p.label_dtype == DType::s64 ? static_cast<const int64_t*>(p.labels)[r] : static_cast<const int32_t*>(p.labels)[r];
  const bool ignored = label == kIgnoredLabel, known = label >= 0 && label < p.vocab;
  float lse = 0;
  if (!ignored) {
    float top = -__int_as_float(0x7F800000), sum = 0;
    for (int64_t i = threadIdx.x * N; i < p.vocab; i += kThreads * N) {
      const Vec<T, N> v = load<N>(z + i);
      float most = to_f32(v.value[0]);
      for (int j = 1; j < N; ++j) most = fmaxf(most, to_f32(v.value[j]));
      if (most > top) sum *= expf(top - most), top = most;
      const float shift = top == -__int_as_float(0x7F800000) ? 0.0f : top;
      for (int j = 0; j < N; ++j) sum += expf(to_f32(v.value[j]) - shift);
    }
    const float all = block_max(top, scratch);
    const float whole = block_sum(sum == 0 ? 0.0f : sum * expf(top - all), scratch);
    lse = known ? all + logf(whole) : __int_as_float(0x7FC00000);
  }
  if (threadIdx.x == 0) {
    p.loss[r] = ignored ? 0.0f : known ? lse - to_f32(z[label]) : lse;
    if (p.lse != nullptr) p.lse[r] = lse;
  }
  if (p.dlogits == nullptr) return;
  __syncthreads();  // z[label] was read before dlogits, which may be z, is written
  D* d = static_cast<D*>(p.dlogits) + r * p.dlogits_stride;
  const float scale = p.grad_factor != nullptr ? p.grad_scale * *p.grad_factor : p.grad_scale;
  for (int64_t i = threadIdx.x * N; i < p.vocab; i += kThreads * N) {
    const Vec<T, N> v = load<N>(z + i);
    Vec<D, N> out;
    for (int j = 0; j < N; ++j) {
      const float g = expf(to_f32(v.value[j]) - lse) - (i + j == label ? 1.0f : 0.0f);
      from_f32(ignored ? 0.0f : g * scale, out.value[j]);
    }
    store(d + i, out);
  }
}

template <class T, class D>
void launch(const CrossEntropy& p, cudaStream_t stream) {
  constexpr int kVector = 4;
  const bool wide = p.vocab % kVector == 0 && rows_aligned(kVector, p.logits, sizeof(T), p.logits_stride) &&
                    rows_aligned(kVector, p.dlogits, sizeof(D), p.dlogits_stride);
  const auto rows = static_cast<unsigned>(p.rows);
  if (wide)
    cross_entropy_kernel<kVector, T, D><<<rows, kThreads, 0, stream>>>(p);
  else
    cross_entropy_kernel<1, T, D><<<rows, kThreads, 0, stream>>>(p);
}

}  // namespace
}  // namespace halftone::device

const char* halftone_cuda_cross_entropy(const halftone::CrossEntropy* what, void* stream) {
  using namespace halftone;
  using device::launch;
  const CrossEntropy& p = *what;
  if (p.rows == 0) return nullptr;
  if (p.loss == nullptr || p.vocab == 0) return "cross_entropy: expected memory for the losses and a vocabulary";
  const bool types = (p.dtype == DType::bf16 || p.dtype == DType::f32) && (p.dlogits_dtype == DType::bf16 || p.dlogits_dtype == DType::f32) &&
                     (p.label_dtype == DType::s64 || p.label_dtype == DType::s32);
  if (!types) return "cross_entropy: expected logits in bf16 or f32 and labels in s64 or s32";
  const auto s = static_cast<cudaStream_t>(stream);
  if (p.dtype == DType::bf16) {
    p.dlogits_dtype == DType::bf16 ? launch<bf16, bf16>(p, s) : launch<bf16, float>(p, s);
  } else {
    p.dlogits_dtype == DType::bf16 ? launch<float, bf16>(p, s) : launch<float, float>(p, s);
  }
  return device::error_text(cudaGetLastError());
}
