#pragma once
#include "halftone/quantize/cuda/pair.cuh"

namespace halftone::device {

// For kernels of bf16 whose lanes have blocks of their own.

// PairScale of one magnitude.
struct OneScale {
  uint32_t add, lowest;
  __device__ __forceinline__ uint32_t operator()(uint32_t amax) const {
    return static_cast<uint32_t>(max(static_cast<int>((amax + add) >> 7) - 2, static_cast<int>(lowest)));
  }
};

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
