#pragma once

namespace halftone::device {

// A kernel launched as a dependent of the one before it (programmatic stream serialization, sm_90 and above) may start while
// that one runs, once all of its thread blocks have said so; what it wrote may be read after the wait.
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

}  // namespace halftone::device
