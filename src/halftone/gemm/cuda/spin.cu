#include "halftone/gemm/cuda/timing.h"

namespace halftone::gemm {
namespace {

__global__ void spin_kernel(long long nanoseconds) {
  long long begin = 0, now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

}  // namespace

void spin(int microseconds, cudaStream_t stream) { spin_kernel<<<1, 1, 0, stream>>>(1000LL * microseconds); }

}  // namespace halftone::gemm
