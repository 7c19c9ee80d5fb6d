#include <cuda_runtime.h>

#include "halftone/device/error_text.h"
#include "halftone/fused/kernels_cuda.h"

namespace halftone::device {
namespace {

constexpr int kThreads = 1024;

// Number of `mine` flags before this thread, within the block's chunk of kThreads assignments; `total`: in the whole chunk.
__device__ int place_in_chunk(bool mine, int& total) {
  __shared__ int warps[kThreads / 32];
  const unsigned votes = __ballot_sync(0xFFFFFFFFu, mine);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();
  if (lane == 0) warps[warp] = __popc(votes);
  __syncthreads();
  int before = 0;
  total = 0;
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < warp) before += warps[w];
    total += warps[w];
  }
  return before + __popc(votes & ((1u << lane) - 1));
}

// One block per expert.
__global__ void count_kernel(PlaceExperts p) {
  const int64_t n = p.tokens * p.top_k;
  int count = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) count += p.expert[i] == static_cast<int>(blockIdx.x);
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  count = __reduce_add_sync(0xFFFFFFFFu, count);
  if (threadIdx.x % 32 == 0) atomicAdd(&sum, count);
  __syncthreads();
  if (threadIdx.x == 0) p.counts[blockIdx.x] = sum;
}

__global__ void offsets_kernel(PlaceExperts p) {
  int32_t offset = 0;
  for (int64_t e = 0; e < p.experts; ++e) {
    p.offsets[e] = offset, p.ends[e] = offset + p.counts[e];
    offset += (p.counts[e] + static_cast<int>(kGroupRows) - 1) / static_cast<int>(kGroupRows) * static_cast<int>(kGroupRows);
  }
  p.offsets[p.experts] = offset;
}

// One block per expert, and one for the rows after all groups.
__global__ void place_kernel(PlaceExperts p) {
  const int expert = blockIdx.x;
  if (expert == p.experts) {
    for (int64_t r = p.offsets[p.experts] + threadIdx.x; r < p.rows; r += kThreads) p.source[r] = -1;
    return;
  }
  int next = p.offsets[expert];
  const int64_t n = p.tokens * p.top_k;
  for (int64_t first = 0; first < n; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    const bool mine = i < n && p.expert[i] == expert;
    int total;
    const int row = next + place_in_chunk(mine, total);
    if (mine) p.slot[i] = row, p.source[row] = static_cast<int32_t>(i);
    next += total;
  }
  for (int r = next + threadIdx.x; r < p.offsets[expert + 1]; r += kThreads) p.source[r] = -1;
}

// Rank of each tile in the read order; the tile's warp counts the tiles before it.
__global__ void order_kernel(PlaceExperts p) {
  constexpr int kKeys = 4096;
  __shared__ uint32_t keys[kKeys];
  const int64_t tiles = p.rows / kGroupRows, tile = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  const auto key = [&](int64_t t) { return static_cast<uint32_t>(p.source[t * kGroupRows]); };  // -1: after all others
  const uint32_t own = tile < tiles ? key(tile) : 0;
  int before = 0;
  for (int64_t first = 0; first < tiles; first += kKeys) {
    const int n = static_cast<int>(min(tiles - first, int64_t{kKeys}));
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += kThreads) keys[i] = key(first + i);
    __syncthreads();
    for (int i = threadIdx.x % 32; i < n; i += 32) before += keys[i] < own || (keys[i] == own && first + i < tile);
  }
  before = __reduce_add_sync(0xFFFFFFFFu, before);
  if (threadIdx.x % 32 == 0 && tile < tiles) p.order[before] = static_cast<int32_t>(tile);
}

}  // namespace
}  // namespace halftone::device

const char* halftone_cuda_place_experts(const halftone::PlaceExperts* what, void* stream) {
  using namespace halftone::device;
  const halftone::PlaceExperts& p = *what;
  const auto s = static_cast<cudaStream_t>(stream);
  count_kernel<<<static_cast<unsigned>(p.experts), kThreads, 0, s>>>(p);
  offsets_kernel<<<1, 1, 0, s>>>(p);
  place_kernel<<<static_cast<unsigned>(p.experts + 1), kThreads, 0, s>>>(p);
  const int64_t tiles = p.rows / halftone::kGroupRows;
  if (tiles > 0) order_kernel<<<static_cast<unsigned>((tiles + kThreads / 32 - 1) / (kThreads / 32)), kThreads, 0, s>>>(p);
  return error_text(cudaGetLastError());
}
