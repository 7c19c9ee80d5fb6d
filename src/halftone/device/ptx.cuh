#pragma once
#include <cstdint>

// PTX instructions without a CUDA C++ intrinsic.
namespace halftone::device {

// Programmatic dependent launch (programmatic stream serialization, sm_90 and above): a kernel may start while its predecessor runs, once
// all of the predecessor's thread blocks have triggered it, and may read the predecessor's output after the wait. The first kernel of a
// request is launched this way, too: its thread blocks are resident when the preceding work ends, which saves 1.5 to 2 us per request. It
// waits first and only then triggers its own dependents, so that they find the input complete.
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

// Streaming load: bypasses L1 allocation. Not a read-only load (nc): a kernel may start before its input is written (dependent.cuh).
__device__ __forceinline__ uint4 load_once(const void* p) {
  uint4 r;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(p));
  return r;
}

// load_once with an L2 eviction policy: evict_first or keep (evict_normal). Beside evict_first loads, loads without a policy keep less in
// L2 than evict_normal loads.
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

// Asynchronous copy (cp.async) of 16 bytes from global to shared memory; zeros if not valid.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool valid) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// atomicMax without a result; the compiler does not emit red for it next to fences.
__device__ __forceinline__ void raise(uint32_t* p, uint32_t a) {
  asm volatile("red.relaxed.gpu.global.max.u32 [%0], %1;" ::"l"(p), "r"(a) : "memory");
}

}  // namespace halftone::device
