#pragma once
#include <cuda_bf16.h>

#include "halftone/formats/hadamard.h"
#include "halftone/quantize/cuda/vec8.cuh"

namespace halftone::device {

// Hadamard transform of 16 or 32 consecutive rows (numerics.md section 5) of the eight that each thread holds: lanes l, l ^ 8,
// l ^ 16 hold the others (see amax8.cuh). Rows x in, columns t out, rounded to the type of x.
namespace detail {

// kColumns columns of a thread in fp32, signs applied.
template <int kColumns>
__device__ __forceinline__ void butterflies(float (&v)[8][kColumns], int width, int lane) {
#pragma unroll
  for (int stride = 1; stride < 8; stride *= 2) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if ((i & stride) != 0) continue;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const float a = v[i][j], b = v[i + stride][j];
        v[i][j] = a + b, v[i + stride][j] = a - b;
      }
    }
  }
  // a + b stays, and the lane of b keeps a - b: one addition of +-1 times the own value.
  const float side8 = (lane & 8) != 0 ? -1.0f : 1.0f, side16 = (lane & 16) != 0 ? -1.0f : 1.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) v[i][j] = __fmaf_rn(v[i][j], side8, __shfl_xor_sync(0xFFFFFFFFu, v[i][j], 8));
  }
  if (width == 32) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) v[i][j] = __fmaf_rn(v[i][j], side16, __shfl_xor_sync(0xFFFFFFFFu, v[i][j], 16));
    }
  }
  const float norm = width == 32 ? hadamard_norm(32) : hadamard_norm(16);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) v[i][j] *= norm;
  }
}

}  // namespace detail

__device__ __forceinline__ void rotate(const Vec8<bf16> (&x)[8], Vec8<bf16> (&t)[8], int width, uint32_t signs, int lane) {
  const uint32_t own = signs >> (width == 32 ? lane & 24 : lane & 8);  // of rows 8 * (lane / 8) + i
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    float v[8][2];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t w = x[i].w[k] ^ ((own >> i & 1u) * 0x80008000u);
      v[i][0] = __uint_as_float(w << 16), v[i][1] = __uint_as_float(w & 0xFFFF0000u);
    }
    detail::butterflies(v, width, lane);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(v[2 * i][j], v[2 * i + 1][j]);
        t[2 * k + j].w[i] = *reinterpret_cast<const uint32_t*>(&pair);
      }
    }
  }
}
__device__ __forceinline__ void rotate(const Vec8<float> (&x)[8], Vec8<float> (&t)[8], int width, uint32_t signs, int lane) {
  const uint32_t own = signs >> (width == 32 ? lane & 24 : lane & 8);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    float v[8][1];
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i][0] = __uint_as_float(__float_as_uint(x[i].v[j]) ^ ((own >> i & 1u) << 31));
    detail::butterflies(v, width, lane);
#pragma unroll
    for (int i = 0; i < 8; ++i) t[j].v[i] = v[i][0];
  }
}

}  // namespace halftone::device
