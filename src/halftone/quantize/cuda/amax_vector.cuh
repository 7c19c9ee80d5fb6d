#pragma once
#include "halftone/quantize/cuda/element_vector.cuh"

namespace halftone::device {

// Larger magnitudes of two bf16 pairs, signs arbitrary; NaN if either is NaN.
__device__ __forceinline__ uint32_t max_magnitudes(uint32_t a, uint32_t b) {
#if __CUDA_ARCH__ >= 860
  uint32_t r;
  asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
#else
  return __vmaxu2(a & 0x7FFF7FFFu, b & 0x7FFF7FFFu);
#endif
}
// amax as integers (numerics.md section 1) of a thread's eight vectors: bf16 as pairs of 16-bit halves (vector 2k in the low half of word
// k), fp32 one per word.
template <class T>
struct AmaxVector;
template <>
struct AmaxVector<bf16> {
  static constexpr int kWords = 4;
  uint32_t w[4];
};
template <>
struct AmaxVector<float> {
  static constexpr int kWords = 8;
  uint32_t w[8];
};

template <class T>
__device__ __forceinline__ uint32_t max_words(uint32_t a, uint32_t b) {
  if constexpr (sizeof(T) == 2) return __vmaxu2(a, b);
  return max(a, b);
}

// amax of one vector, as fp32 bits.
__device__ __forceinline__ uint32_t amax_of(const ElementVector<bf16>& x) {
  constexpr uint32_t kMagnitude = 0x7FFF7FFFu;
  const uint32_t m = __vmaxu2(__vimax3_u16x2(x.w[0] & kMagnitude, x.w[1] & kMagnitude, x.w[2] & kMagnitude), x.w[3] & kMagnitude);
  return max(m << 16, m & 0xFFFF0000u);
}
__device__ __forceinline__ uint32_t amax_of(const ElementVector<float>& x) {
  uint32_t m = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) m = max(m, __float_as_uint(x.v[i]) & 0x7FFFFFFFu);
  return m;
}

// amax of each vector.
__device__ __forceinline__ AmaxVector<bf16> amax_of(const ElementVector<bf16> (&x)[8]) {
  constexpr uint32_t kMagnitude = 0x7FFF7FFFu;
  uint32_t m[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    m[i] = __vmaxu2(__vimax3_u16x2(x[i].w[0] & kMagnitude, x[i].w[1] & kMagnitude, x[i].w[2] & kMagnitude), x[i].w[3] & kMagnitude);
  }
  AmaxVector<bf16> a;
#pragma unroll
  for (int k = 0; k < 4; ++k) a.w[k] = __vmaxu2(__byte_perm(m[2 * k], m[2 * k + 1], 0x5410), __byte_perm(m[2 * k], m[2 * k + 1], 0x7632));
  return a;
}
__device__ __forceinline__ AmaxVector<float> amax_of(const ElementVector<float> (&x)[8]) {
  AmaxVector<float> a;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    uint32_t m = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) m = max(m, __float_as_uint(x[i].v[j]) & 0x7FFFFFFFu);
    a.w[i] = m;
  }
  return a;
}

// amax of each element position across the vectors: if vectors are rows, the column amax.
__device__ __forceinline__ AmaxVector<bf16> amax_across(const ElementVector<bf16> (&x)[8]) {
  constexpr uint32_t kMagnitude = 0x7FFF7FFFu;
  AmaxVector<bf16> a;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    uint32_t m = x[0].w[k] & kMagnitude;
#pragma unroll
    for (int i = 1; i < 7; i += 2) m = __vimax3_u16x2(m, x[i].w[k] & kMagnitude, x[i + 1].w[k] & kMagnitude);
    a.w[k] = __vmaxu2(m, x[7].w[k] & kMagnitude);
  }
  return a;
}
__device__ __forceinline__ AmaxVector<float> amax_across(const ElementVector<float> (&x)[8]) {
  AmaxVector<float> a;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    uint32_t m = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) m = max(m, __float_as_uint(x[i].v[j]) & 0x7FFFFFFFu);
    a.w[j] = m;
  }
  return a;
}

// Maximum over all words of AmaxVector, as fp32 bits.
__device__ __forceinline__ uint32_t amax_total(const AmaxVector<bf16>& a) {
  const uint32_t m = __vmaxu2(__vmaxu2(a.w[0], a.w[1]), __vmaxu2(a.w[2], a.w[3]));
  return max(m << 16, m & 0xFFFF0000u);
}
__device__ __forceinline__ uint32_t amax_total(const AmaxVector<float>& a) {
  uint32_t m = a.w[0];
#pragma unroll
  for (int i = 1; i < 8; ++i) m = max(m, a.w[i]);
  return m;
}
template <class T>
__device__ __forceinline__ uint32_t amax_bits(const uint32_t* w, int i) {
  if constexpr (sizeof(T) == 2) return (i & 1) != 0 ? w[i >> 1] & 0xFFFF0000u : w[i >> 1] << 16;
  return w[i];
}

// A warp's 32 lanes hold 32 rows x 64 columns: lane = 8 * (group of 8 rows) + (group of 8 columns). Neighbours along axis 0 (elements of a
// row) differ in lane bits 0, 1, 2; along axis 1 (elements of a column) in bits 3, 4.
template <int kAxis>
__device__ __forceinline__ constexpr int lane_stride(int bit) {
  return 1 << (bit + (kAxis == 0 ? 0 : 3));
}

// Reduces over four neighbours along the axis; every lane ends with the two vectors it owns: vector first(lane) + j. Each step exchanges
// half of the words instead of all.
template <class T, int kAxis>
struct Owned {
  static constexpr int kCount = 2;
  uint32_t amax[kCount];

  static __device__ __forceinline__ int first(int lane) {
    const int b0 = (lane & lane_stride<kAxis>(0)) != 0, b1 = (lane & lane_stride<kAxis>(1)) != 0;
    return 4 * b0 + 2 * b1;
  }
  __device__ __forceinline__ explicit Owned(const AmaxVector<T>& all, int lane) {
    constexpr int kWords = AmaxVector<T>::kWords;
    uint32_t w[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) w[i] = all.w[i];
    halve<kWords>(w, lane, lane_stride<kAxis>(0));
    halve<kWords / 2>(w, lane, lane_stride<kAxis>(1));
#pragma unroll
    for (int j = 0; j < kCount; ++j) amax[j] = amax_bits<T>(w, j);
  }

 private:
  template <int kWords, int kSize>
  static __device__ __forceinline__ void halve(uint32_t (&w)[kSize], int lane, int stride) {
    const bool upper = (lane & stride) != 0;
#pragma unroll
    for (int i = 0; i < kWords / 2; ++i) {
      const uint32_t give = upper ? w[i] : w[i + kWords / 2], keep = upper ? w[i + kWords / 2] : w[i];
      w[i] = max_words<T>(keep, __shfl_xor_sync(0xFFFFFFFFu, give, stride));
    }
  }
};

// Maximum over the lanes whose indices differ in the bits of `lanes`.
__device__ __forceinline__ uint32_t max_over(uint32_t a, int lanes) {
#pragma unroll
  for (int bit = 1; bit < 32; bit *= 2) {
    if ((lanes & bit) != 0) a = max(a, __shfl_xor_sync(0xFFFFFFFFu, a, bit));
  }
  return a;
}

}  // namespace halftone::device
