#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "halftone/device/vec.cuh"

namespace halftone::device {

// Sum or maximum over the block; every thread gets the result. The summation order depends on the thread count only. `scratch` holds 32
// floats; a second call needs no barrier in between.
__device__ inline float block_sum(float x, float* scratch) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < blockDim.x / 32 ? scratch[threadIdx.x % 32] : 0.0f;
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
  return x;
}
__device__ inline float block_max(float x, float* scratch) {
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, step));
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < blockDim.x / 32 ? scratch[threadIdx.x % 32] : -__int_as_float(0x7F800000);
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, step));
  return x;
}

// Maximum of `amax` and the magnitudes of a vector, as fp32 bits.
template <class T, int N>
__device__ inline uint32_t larger_magnitude(uint32_t amax, const Vec<T, N>& v) {
  for (int j = 0; j < N; ++j) amax = max(amax, __float_as_uint(to_f32(v.value[j])) & 0x7FFFFFFFu);
  return amax;
}
// Raises *out to the block's maximum. Reads the word first: few blocks find a smaller value there.
__device__ inline void raise_to_block_max(uint32_t amax, uint32_t* out) {
  __shared__ uint32_t warps[32];
  amax = __reduce_max_sync(0xFFFFFFFFu, amax);
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = amax;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  amax = __reduce_max_sync(0xFFFFFFFFu, threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : 0u);
  if (threadIdx.x == 0 && amax > *static_cast<volatile uint32_t*>(out)) atomicMax(out, amax);
}

}  // namespace halftone::device
