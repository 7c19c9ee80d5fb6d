#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "halftone/base/dtype.h"

namespace halftone::device {

// kCount elements of T that a thread loads or stores with one instruction; aligned to their total size.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Vec {
  T value[kCount];
};
template <int kCount, class T>
__device__ Vec<T, kCount> load(const T* p) {
  return *reinterpret_cast<const Vec<T, kCount>*>(p);
}
template <int kCount, class T>
__device__ void store(T* p, const Vec<T, kCount>& v) {
  *reinterpret_cast<Vec<T, kCount>*>(p) = v;
}

// Whether `base + offset` is aligned for access as a vector of kCount elements.
template <int kCount, class T>
bool aligned(const T* base, int64_t offset) {
  return base == nullptr || reinterpret_cast<uintptr_t>(base + offset) % (sizeof(T) * kCount) == 0;
}

// Whether every row of a matrix with row stride `stride` (elements) can be accessed in vectors of `count` elements.
inline bool rows_aligned(int count, const void* base, size_t element_bytes, int64_t stride) {
  return reinterpret_cast<uintptr_t>(base) % (static_cast<size_t>(count) * element_bytes) == 0 && stride % count == 0;
}

__device__ inline float to_f32(float x) { return x; }
__device__ inline float to_f32(bf16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }
// Round to nearest, ties to even; NaN stays NaN: same as bf16's constructor on the host.
__device__ inline void from_f32(float x, float& out) { out = x; }
__device__ inline void from_f32(float x, bf16& out) {
  const uint32_t u = __float_as_uint(x);
  out.bits = static_cast<uint16_t>((u & 0x7FFFFFFFu) > 0x7F800000u ? (u >> 16) | 0x40 : (u + 0x7FFF + ((u >> 16) & 1)) >> 16);
}

}  // namespace halftone::device
