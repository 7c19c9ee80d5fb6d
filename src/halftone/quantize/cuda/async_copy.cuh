#pragma once
#include <cstdint>

namespace halftone::device {

// 16 bytes from global to shared memory behind the thread's back.
__device__ __forceinline__ void copy_async(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// The same, or zeros.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool valid) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
// The same; policy: l2_policy.
__device__ __forceinline__ void copy_async(uint32_t to, const void* from, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(policy) : "memory");
}
__device__ __forceinline__ void copy_async(uint32_t to, const void* from, bool valid, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0), "l"(policy)
               : "memory");
}
// Copies in groups, of which all but the last kLeft have arrived after the wait.
__device__ __forceinline__ void end_copy_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLeft>
__device__ __forceinline__ void wait_for_copy_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Pieces of 16 bytes on their way to the thread that asked for them, kStages groups of kPieces (half as many where the launch gave half of
// kBytes, as it does on devices with less shared memory), in shared memory: unlike loads to registers
// they leave registers, and with these the multiprocessor, to thread blocks of the next kernel, whose elements then come while the last
// of these do; nor do they stop while a thread is busy with the last ones.
template <int kStagesOf, int kPieces, int kThreads>
struct Ring {
  static constexpr int kStages = kStagesOf, kBytes = kStages * kPieces * kThreads * 16;
  uint32_t first;  // of the thread, in shared memory
  int stages;
  int stage = 0;  // the oldest
  __device__ __forceinline__ explicit Ring(void* memory)
      : first(static_cast<uint32_t>(__cvta_generic_to_shared(memory)) + threadIdx.x * 16) {
    uint32_t bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    stages = bytes < kBytes ? kStages / 2 : kStages;
  }
  // Until the oldest group has arrived.
  __device__ __forceinline__ void wait() const {
    if (stages == kStages) {
      wait_for_copy_groups<kStages - 1>();
    } else {
      wait_for_copy_groups<kStages / 2 - 1>();
    }
  }
  __device__ __forceinline__ uint32_t at(int of, int i) const {
    return first + static_cast<uint32_t>((of * kPieces + i) * (kThreads * 16));
  }
  // Asks for pieces `step` bytes apart, of which the lane's first `valid` exist.
  __device__ __forceinline__ void ask(int of, const void* from, int64_t step, int valid, uint64_t policy) const {
    const auto* source = static_cast<const uint8_t*>(from);
    if (__all_sync(0xFFFFFFFFu, valid >= kPieces)) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i, source += step) copy_async(at(of, i), source, policy);
    } else {
#pragma unroll 1
      for (int i = 0; i < kPieces; ++i, source += step) copy_async(at(of, i), source, i < valid, policy);
    }
  }
  __device__ __forceinline__ static uint4 read(uint32_t from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from) : "memory");
    return v;
  }
  __device__ __forceinline__ void next() { stage = stage + 1 == stages ? 0 : stage + 1; }
};

}  // namespace halftone::device
