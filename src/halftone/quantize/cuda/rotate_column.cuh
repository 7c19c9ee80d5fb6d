#pragma once
#include <cstdint>
#include <type_traits>

#include "halftone/formats/hadamard.h"
#include "halftone/quantize/cuda/amax_vector.cuh"
#include "halftone/quantize/cuda/draws.cuh"

namespace halftone::device {

// Hadamard rotations (numerics.md section 5) of 16 or 32 rows of a column held by one lane: no lane exchange.

// Two neighbouring elements of a row; a lane holds 32 rows of them.
template <class T>
using RowPair = std::conditional_t<sizeof(T) == 2, uint32_t, float2>;
// Larger magnitude of the pair, as fp32 bits.
__device__ __forceinline__ uint32_t amax_of_pair(uint32_t w) { return max(w << 16 & 0x7FFF0000u, w & 0x7FFF0000u); }
__device__ __forceinline__ uint32_t amax_of_pair(float2 w) {
  return max(__float_as_uint(w.x) & 0x7FFFFFFFu, __float_as_uint(w.y) & 0x7FFFFFFFu);
}

// Performs the butterfly steps below kEnd only.
template <int kRows, int kEnd = kRows>
__device__ __forceinline__ void butterflies(float (&v)[kRows]) {
#pragma unroll
  for (int stride = 1; stride < kEnd; stride *= 2) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if ((i & stride) != 0) continue;
      const float a = v[i], b = v[i + stride];
      v[i] = a + b, v[i + stride] = a - b;
    }
  }
}

// Sign bits of a warp's 32 rows in smem; a rotation of 16 repeats its 16 signs.
struct RowFlips {
  uint4 words[8];
  template <class Args>
  __device__ __forceinline__ void fill(const Args& a, int width, int lane) {
    reinterpret_cast<uint32_t*>(words)[lane] = rotation_signs(a).word[0] >> (lane & (width - 1)) << 31;
    __syncwarp();
  }
};

// One column of kRows pairs with signs applied: one multiply-add widens and negates each element.
template <int kHalf>
__device__ __forceinline__ float flipped(uint32_t pair, uint32_t flip) {
  return __uint_as_float(kHalf == 0 ? pair * 65536u + flip : (pair & 0xFFFF0000u) ^ flip);
}
template <int kHalf>
__device__ __forceinline__ float flipped(float2 pair, uint32_t flip) {
  return __uint_as_float(__float_as_uint(kHalf == 0 ? pair.x : pair.y) ^ flip);
}
template <int kRows, int kHalf, class Pair>
__device__ __forceinline__ void flip_column(const Pair* rows, const uint4* flips, float (&v)[kRows]) {
  asm volatile("" ::: "memory");  // prevents the compiler from keeping the flips in registers
#pragma unroll
  for (int i = 0; i < kRows; i += 4) {
    const uint4 f = flips[i / 4];
    v[i] = flipped<kHalf>(rows[i], f.x), v[i + 1] = flipped<kHalf>(rows[i + 1], f.y);
    v[i + 2] = flipped<kHalf>(rows[i + 2], f.z), v[i + 3] = flipped<kHalf>(rows[i + 3], f.w);
  }
}

// Larger magnitude of the two, sign arbitrary; NaN if either is NaN.
__device__ __forceinline__ float max_magnitudes(float a, float b) {
#if __CUDA_ARCH__ >= 860
  float r;
  asm("max.NaN.xorsign.abs.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
#else
  return __uint_as_float(max(__float_as_uint(fabsf(a)), __float_as_uint(fabsf(b))));
#endif
}

}  // namespace halftone::device
