#include "halftone/gemm/cuda/scales.h"

#include <cuda_fp16.h>

#include <algorithm>

#include "halftone/device/launch.h"
#include "halftone/device/vec.cuh"
#include "halftone/gemm/cuda/scale_at.cuh"

namespace halftone::gemm {
namespace {

using device::ceil_div;
constexpr int kTile = 32;

struct Jobs {
  ScaleJob job[2];
};

// blockIdx.z: operand. vector and row_of_4: one thread per number. column: through smem, since the source runs along the blocks of a row
// and the target along the rows.
__global__ void arrange_kernel(Jobs jobs) {
  const ScaleJob& job = jobs.job[blockIdx.z];
  if (!job.to) return;
  if (job.layout == ScaleLayout::column) {
    __shared__ float tile[kTile][kTile + 1];
    const int64_t row0 = int64_t{blockIdx.x} * kTile, block0 = int64_t{blockIdx.y} * kTile;
    for (int i = threadIdx.y; i < kTile; i += blockDim.y) {
      const int64_t row = row0 + i, block = block0 + threadIdx.x;
      if (row < job.rows && block < job.blocks) tile[i][threadIdx.x] = scale_at(job, row, block);
    }
    __syncthreads();
    for (int i = threadIdx.y; i < kTile; i += blockDim.y) {
      const int64_t row = row0 + threadIdx.x, block = block0 + i;
      if (row < job.rows && block < job.blocks) job.to[block * job.rows + row] = tile[threadIdx.x][i];
    }
    return;
  }
  const int64_t thread = (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * (kTile * 8) + threadIdx.y * kTile + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * gridDim.y * (kTile * 8);
  if (job.layout == ScaleLayout::vector) {
    for (int64_t i = thread; i < job.rows; i += step) job.to[i] = scale_at(job, i, 0);
    return;
  }
  const int64_t pitch = ceil_div(job.blocks, 4) * 4, count = ceil_div(job.rows, 128) * pitch;
  for (int64_t i = thread; i < count; i += step) {
    const int64_t block = i % pitch;
    job.to[i] = block < job.blocks ? scale_at(job, i / pitch * 128, block) : 1.0f;
  }
}

__global__ void scalar_kernel(ProductOperand a, ProductOperand b, float alpha, float beta, float* out) {
  for (const ProductOperand* x : {&a, &b}) {
    if (x->scales == Scales::tensor) alpha *= *x->scale;
    if (x->outer) alpha *= *x->outer;
  }
  out[0] = alpha;
  out[1] = beta;
}

__device__ float bias_at(const void* bias, DType type, int64_t i) {
  return type == DType::f32 ? static_cast<const float*>(bias)[i] : device::to_f32(static_cast<const bf16*>(bias)[i]);
}

template <class T>
__global__ void convert_kernel(const void* bias, DType type, int64_t n, T* to) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) device::from_f32(bias_at(bias, type, i), to[i]);
}

// e5m2 is the upper byte of an fp16.
__global__ void decode_kernel(const uint4* codes, int64_t vectors, uint4* to) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= vectors) return;
  const uint4 in = codes[i];
  const uint32_t words[] = {in.x, in.y, in.z, in.w};
  uint32_t out[8];
  for (int j = 0; j < 8; ++j) {
    const uint32_t two = words[j / 2] >> (j % 2 * 16);
    uint32_t pair = 0;
    for (int b = 0; b < 2; ++b) {
      bf16 value;
      device::from_f32(__half2float(__ushort_as_half(static_cast<unsigned short>((two >> (8 * b) & 255u) << 8))), value);
      pair |= static_cast<uint32_t>(value.bits) << (16 * b);
    }
    out[j] = pair;
  }
  to[2 * i] = {out[0], out[1], out[2], out[3]};
  to[2 * i + 1] = {out[4], out[5], out[6], out[7]};
}

template <class T>
__global__ void finish_kernel(Finish what, int64_t ldd) {
  const Product& p = what.product;
  const int64_t count = p.m * p.n, step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const int64_t row = i / p.n, column = i % p.n;
    float v = 0;
    if (what.sum) {
      v = what.integer ? static_cast<float>(static_cast<const int32_t*>(what.sum)[i]) : static_cast<const float*>(what.sum)[i];
      v = v * what.scale_m[row] * what.scale_n[column];
    }
    if (p.bias) v += bias_at(p.bias, p.bias_type, column);
    T& at = static_cast<T*>(p.d)[row * ldd + column];
    if (p.accumulate) v += device::to_f32(at);
    device::from_f32(v, at);
  }
}

}  // namespace

int64_t scale_count(const ScaleJob& job) {
  switch (job.layout) {
    case ScaleLayout::vector:
      return job.rows;
    case ScaleLayout::column:
      return job.rows * job.blocks;
    case ScaleLayout::row_of_4:
      return ceil_div(job.rows, 128) * ceil_div(job.blocks, 4) * 4;
  }
  return 0;
}

cudaError_t arrange_scales(const ScaleJob& a, const ScaleJob& b, cudaStream_t stream) {
  int64_t x = 1, y = 1;
  for (const ScaleJob* job : {&a, &b}) {
    if (!job->to) continue;
    const bool column = job->layout == ScaleLayout::column;
    x = std::max(x, column ? ceil_div(job->rows, kTile) : std::min<int64_t>(ceil_div(scale_count(*job), kTile * 8), 1024));
    y = std::max(y, column ? ceil_div(job->blocks, kTile) : 1);
  }
  arrange_kernel<<<dim3(static_cast<unsigned>(x), static_cast<unsigned>(y), 2), dim3(kTile, 8), 0, stream>>>(Jobs{{a, b}});
  return cudaGetLastError();
}

cudaError_t scalar_factor(const ProductOperand& a, const ProductOperand& b, float alpha, bool accumulate, float* out, cudaStream_t stream) {
  scalar_kernel<<<1, 1, 0, stream>>>(a, b, alpha, accumulate ? 1.0f : 0.0f, out);
  return cudaGetLastError();
}

cudaError_t convert_bias(const void* bias, DType type, int64_t n, void* to, DType to_type, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(n, 256));
  if (to_type == DType::f32)
    convert_kernel<<<blocks, 256, 0, stream>>>(bias, type, n, static_cast<float*>(to));
  else
    convert_kernel<<<blocks, 256, 0, stream>>>(bias, type, n, static_cast<bf16*>(to));
  return cudaGetLastError();
}

cudaError_t decode_e5m2(const void* codes, int64_t count, void* to, cudaStream_t stream) {
  const int64_t vectors = count / 16;
  decode_kernel<<<static_cast<unsigned>(ceil_div(vectors, 256)), 256, 0, stream>>>(static_cast<const uint4*>(codes), vectors,
                                                                                   static_cast<uint4*>(to));
  return cudaGetLastError();
}

cudaError_t finish(const Finish& what, cudaStream_t stream) {
  const Product& p = what.product;
  if (!what.sum && p.accumulate && !p.bias) return cudaSuccess;
  const int64_t ldd = p.ldd ? p.ldd : p.n;
  if (p.d_type == DType::s32) return cudaMemset2DAsync(p.d, static_cast<size_t>(ldd) * 4, 0, static_cast<size_t>(p.n) * 4, p.m, stream);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(p.m * p.n, 1024), 4096));
  if (p.d_type == DType::f32)
    finish_kernel<float><<<blocks, 256, 0, stream>>>(what, ldd);
  else
    finish_kernel<bf16><<<blocks, 256, 0, stream>>>(what, ldd);
  return cudaGetLastError();
}

}  // namespace halftone::gemm
