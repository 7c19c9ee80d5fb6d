#pragma once
#include "halftone/quantize/cuda/amax_vector.cuh"

namespace halftone::device {

// Row maxima of a warp: each lane reduces its two rows over the eight lanes of a row group.
template <class T, bool kShared = false>
__device__ __forceinline__ void store_rows(uint32_t* out, int rows, int row, const AmaxVector<T>& amax, int lane) {
  Owned<T, 0> own(amax, lane);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const uint32_t a = max(own.amax[j], __shfl_xor_sync(0xFFFFFFFFu, own.amax[j], 4));
    const int r = row + Owned<T, 0>::first(lane) + j;
    if ((lane & 4) != 0 || r >= rows || a == 0) continue;
    if constexpr (kShared) atomicMax(out + r, a);
    if constexpr (!kShared) raise(out + r, a);
  }
}

// Maximum of a thread block, into its own part or into a shared word.
template <bool kOneWord = false>
__device__ __forceinline__ void store_part(uint32_t* out, uint32_t amax) {
  __shared__ uint32_t warps[32];
  if (threadIdx.x < 32) warps[threadIdx.x] = 0;
  amax = __reduce_max_sync(0xFFFFFFFFu, amax);
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = amax;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  amax = __reduce_max_sync(0xFFFFFFFFu, warps[threadIdx.x]);
  if (threadIdx.x != 0) return;
  if constexpr (!kOneWord) out[blockIdx.x] = amax;
  if (kOneWord && amax != 0) raise(out, amax);
}

}  // namespace halftone::device
