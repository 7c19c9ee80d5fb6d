#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "halftone/base/dtype.h"
#include "halftone/device/ptx.cuh"

namespace halftone::device {

// Eight consecutive elements in registers: loaded with 16-byte accesses, encoded with one scale and stored as 4, 8 or 16 bytes. bf16 stays
// packed, two per word, because half of the work (amax, e2m1 codes) is done on pairs.
template <class T>
struct ElementVector;
template <>
struct ElementVector<bf16> {
  uint32_t w[4];
};
template <>
struct ElementVector<float> {
  float v[8];
};

__device__ __forceinline__ float element(const ElementVector<bf16>& x, int i) {
  return __uint_as_float((i & 1) != 0 ? x.w[i >> 1] & 0xFFFF0000u : x.w[i >> 1] << 16);
}
__device__ __forceinline__ float element(const ElementVector<float>& x, int i) { return x.v[i]; }

// Sign bits of elements 2k and 2k + 1 at bits 15 and 31; the other bits are arbitrary.
__device__ __forceinline__ uint32_t sign_pair(const ElementVector<bf16>& x, int k) { return x.w[k]; }
__device__ __forceinline__ uint32_t sign_pair(const ElementVector<float>& x, int k) {
  return __byte_perm(__float_as_uint(x.v[2 * k]), __float_as_uint(x.v[2 * k + 1]), 0x7632);
}

__device__ __forceinline__ void load_vector(const bf16* p, ElementVector<bf16>& x) {
  const uint4 a = load_once(p);
  x = {{a.x, a.y, a.z, a.w}};
}
__device__ __forceinline__ void load_vector(const float* p, ElementVector<float>& x) {
  const uint4 a = load_once(p), b = load_once(p + 4);
  x = {{__uint_as_float(a.x), __uint_as_float(a.y), __uint_as_float(a.z), __uint_as_float(a.w), __uint_as_float(b.x), __uint_as_float(b.y),
        __uint_as_float(b.z), __uint_as_float(b.w)}};
}

__device__ __forceinline__ void load_vector(const bf16* p, ElementVector<bf16>& x, uint64_t policy) {
  const uint4 a = load_once(p, policy);
  x = {{a.x, a.y, a.z, a.w}};
}
__device__ __forceinline__ void load_vector(const float* p, ElementVector<float>& x, uint64_t policy) {
  const uint4 a = load_once(p, policy), b = load_once(p + 4, policy);
  x = {{__uint_as_float(a.x), __uint_as_float(a.y), __uint_as_float(a.z), __uint_as_float(a.w), __uint_as_float(b.x), __uint_as_float(b.y),
        __uint_as_float(b.z), __uint_as_float(b.w)}};
}

__device__ __forceinline__ uint32_t bf16_words(float low, float high) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&v);
}
// Rounds fp32 elements to bf16 (QuantizeOperand::as_bf16).
__device__ __forceinline__ void round_pair(float& low, float& high) {
  const uint32_t w = bf16_words(low, high);
  low = __uint_as_float(w << 16), high = __uint_as_float(w & 0xFFFF0000u);
}
template <int kVectors>
__device__ __forceinline__ void round_elements(ElementVector<bf16> (&)[kVectors], bool) {}
template <int kVectors>
__device__ __forceinline__ void round_elements(ElementVector<float> (&x)[kVectors], bool as_bf16) {
  if (!as_bf16) return;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
#pragma unroll
    for (int k = 0; k < 8; k += 2) round_pair(x[i].v[k], x[i].v[k + 1]);
  }
}

// Transposes 8 x 8 elements.
__device__ __forceinline__ void transpose(const ElementVector<bf16> (&x)[8], ElementVector<bf16> (&t)[8]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      t[2 * j].w[k] = __byte_perm(x[2 * k].w[j], x[2 * k + 1].w[j], 0x5410);
      t[2 * j + 1].w[k] = __byte_perm(x[2 * k].w[j], x[2 * k + 1].w[j], 0x7632);
    }
  }
}
__device__ __forceinline__ void transpose(const ElementVector<float> (&x)[8], ElementVector<float> (&t)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) t[j].v[i] = x[i].v[j];
  }
}

}  // namespace halftone::device
