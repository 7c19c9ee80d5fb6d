#pragma once
#include "halftone/quantize/cuda/pair.cuh"

namespace halftone::device {

// For kernels of bf16 whose lanes have blocks of their own.

// PairScale of one magnitude.
struct OneScale {
  uint32_t add, lowest;
  explicit OneScale(const PairScale& s) : add(s.add & 0xFFFFu), lowest(s.lowest & 0xFFFFu) {}
  __device__ __forceinline__ uint32_t operator()(uint32_t amax) const {
    return static_cast<uint32_t>(max(static_cast<int>((amax + add) >> 7) - 2, static_cast<int>(lowest)));
  }
};

// 16 bits of the largest magnitude; a NaN is larger than all.
__device__ __forceinline__ uint32_t largest(const Block<bf16>& t) {
  uint32_t m[2] = {t.w[0], t.w[1]};
#pragma unroll
  for (int i = 2; i < 16; ++i) m[i & 1] = max_magnitudes(m[i & 1], t.w[i]);
  const uint32_t w = max_magnitudes(m[0], m[1]);
  return max_magnitudes(w, __byte_perm(w, 0u, 0x1032)) & 0x7FFFu;
}

// Words of a block, as far as `keep` keeps them, times `by` plus `with`, pairs of bf16 each. Volatile: where blocks that need it branch to.
__device__ __forceinline__ void remake(Block<bf16>& t, uint32_t keep, uint32_t by, uint32_t with) {
#pragma unroll
  for (uint32_t& w : t.w)
    asm volatile("{.reg .b32 k; and.b32 k, %0, %1; fma.rn.bf16x2 %0, k, %2, %3;}" : "+r"(w) : "r"(keep), "r"(by), "r"(with));
}

// Shared memory by addresses that the compiler does not make anew from the lane's number for each piece, some 40 instructions: what comes
// back from an exchange with oneself.
__device__ __forceinline__ uint32_t address_of(const void* at, int lane) {
  return __shfl_sync(0xFFFFFFFFu, static_cast<uint32_t>(__cvta_generic_to_shared(at)), lane);
}
template <int kAt>
__device__ __forceinline__ void load16(uint32_t from, uint32_t* w) {
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4+%5];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "r"(from), "n"(kAt)
               : "memory");
}
template <int kAt>
__device__ __forceinline__ void store16(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("st.shared.v4.u32 [%0+%1], {%2,%3,%4,%5};" ::"r"(to), "n"(kAt), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

}  // namespace halftone::device
