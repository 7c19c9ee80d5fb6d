#pragma once
#include <cstdint>

namespace halftone::device {

// 16 bytes, or zeros, from global to shared memory behind the thread's back.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool valid) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace halftone::device
