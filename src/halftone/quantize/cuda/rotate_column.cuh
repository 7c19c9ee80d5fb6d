#pragma once
#include <cstdint>

#include "halftone/formats/hadamard.h"
#include "halftone/quantize/cuda/amax8.cuh"
#include "halftone/quantize/cuda/draws.cuh"

namespace halftone::device {

// The rotation of kRows rows of a column that a lane holds, signs applied, before the factor n^(-1/2) (numerics.md section 5).
// Steps from kEnd on are left out, and those before kFirst.
template <int kRows, int kEnd = kRows, int kFirst = 1>
__device__ __forceinline__ void butterflies(float (&v)[kRows]) {
#pragma unroll
  for (int stride = kFirst; stride < kEnd; stride *= 2) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if ((i & stride) != 0) continue;
      const float a = v[i], b = v[i + stride];
      v[i] = a + b, v[i + stride] = a - b;
    }
  }
}
// Of bf16, a word of two columns a row; kHalf: which column. by16: 65536. flips: sign bits of the rows in shared memory, so that
// one instruction widens and negates.
template <int kRows, int kHalf>
__device__ __forceinline__ void flip_column(const uint32_t* w, const uint4* flips, uint32_t by16, float (&v)[kRows]) {
  asm volatile("" ::: "memory");  // or the compiler keeps the flips in registers
  const auto flipped = [&](uint32_t word, uint32_t flip) {
    return __uint_as_float(kHalf == 0 ? word * by16 + flip : (word & 0xFFFF0000u) ^ flip);
  };
#pragma unroll
  for (int i = 0; i < kRows; i += 4) {
    const uint4 f = flips[i / 4];
    v[i] = flipped(w[i], f.x), v[i + 1] = flipped(w[i + 1], f.y), v[i + 2] = flipped(w[i + 2], f.z), v[i + 3] = flipped(w[i + 3], f.w);
  }
}
// Of fp32.
template <int kRows, int kHalf>
__device__ __forceinline__ void flip_column(const float2* w, const uint4* flips, uint32_t, float (&v)[kRows]) {
  asm volatile("" ::: "memory");
  const auto flipped = [](float2 x, uint32_t flip) { return __uint_as_float(__float_as_uint(kHalf == 0 ? x.x : x.y) ^ flip); };
#pragma unroll
  for (int i = 0; i < kRows; i += 4) {
    const uint4 f = flips[i / 4];
    v[i] = flipped(w[i], f.x), v[i + 1] = flipped(w[i + 1], f.y), v[i + 2] = flipped(w[i + 2], f.z), v[i + 3] = flipped(w[i + 3], f.w);
  }
}
template <int kRows, int kHalf, class Pair>
__device__ __forceinline__ void rotate_column(const Pair* w, const uint4* flips, uint32_t by16, float (&v)[kRows]) {
  flip_column<kRows, kHalf>(w, flips, by16, v);
  butterflies(v);
}

// Larger magnitude of the two, with either sign; NaN where there is one.
__device__ __forceinline__ float max_magnitudes(float a, float b) {
#if __CUDA_ARCH__ >= 860
  float r;
  asm("max.NaN.xorsign.abs.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
#else
  return __uint_as_float(max(__float_as_uint(fabsf(a)), __float_as_uint(fabsf(b))));
#endif
}

// Sign bits of 32 rows, of a warp, below them `bits`; rows from n on repeat those of a rotation of n.
struct RowFlips {
  uint4 words[8];
  template <class Args>
  __device__ __forceinline__ void fill(const Args& a, int width, int lane, uint32_t bits = 0) {
    reinterpret_cast<uint32_t*>(words)[lane] = rotation_signs(a) >> (lane & (width - 1)) << 31 | bits;
    __syncwarp();
  }
};

}  // namespace halftone::device
