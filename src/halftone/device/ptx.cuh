#pragma once
#include <cstdint>

// Instructions that CUDA C++ has no name for.
namespace halftone::device {

// A kernel launched as a dependent of the one before it (programmatic stream serialization, sm_90 and above) may start while
// that one runs, once all of its thread blocks have said so; what it wrote may be read after the wait. The first kernel of a request is
// launched so, too: its thread blocks then stand ready when the work before, whatever that is, ends, which saves 1.5 to 2 us a request.
// It waits before anything else and lets its own dependents start only then, so that these find the input complete.
__device__ __forceinline__ void start_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void wait_for_primary() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Read once: the lines are not kept in L1. No read-only load (nc): a kernel may have started before its input was written (dependent.cuh).
__device__ __forceinline__ uint4 load_once(const void* p) {
  uint4 r;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(p));
  return r;
}

// As load_once, with what the L2 cache is to do with the lines: let them go before all others, or keep them. Loads that say nothing
// keep less than those that say evict_normal beside others that say evict_first.
__device__ __forceinline__ uint64_t l2_policy(bool keep) {
  uint64_t first, normal;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(normal));
  return keep ? normal : first;
}
__device__ __forceinline__ uint4 load_once(const void* p, uint64_t policy) {
  uint4 r;
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "l"(p), "l"(policy));
  return r;
}

// 16 bytes, or zeros, from global to shared memory behind the thread's back.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool valid) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// atomicMax without a result, which the compiler does not make of it beside fences.
__device__ __forceinline__ void raise(uint32_t* p, uint32_t a) {
  asm volatile("red.relaxed.gpu.global.max.u32 [%0], %1;" ::"l"(p), "r"(a) : "memory");
}

}  // namespace halftone::device
