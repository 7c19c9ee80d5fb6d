#include "halftone/quantize/cuda/arrange.h"

#include <algorithm>

#include "halftone/device/launch.h"
#include "halftone/quantize/cuda/dependent.cuh"
#include "halftone/quantize/cuda/kernels.h"

namespace halftone::device {
namespace {

constexpr int kThreads = 256, kSector = 32;

struct ArrangeArgs {
  ScaleRows copies[2];
};

// A lane writes one sector of one row, a warp those of 32 rows.
__global__ void __launch_bounds__(kThreads) arrange_kernel(const __grid_constant__ ArrangeArgs a) {
  const ScaleRows& j = a.copies[blockIdx.y];
  const int sectors = (j.row_bytes + kSector - 1) / kSector;
  const int64_t item = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  const int sector = static_cast<int>(item % sectors), r = static_cast<int>(item / sectors) * 32 + static_cast<int>(threadIdx.x % 32);
  wait_for_primary();
  if (r >= j.R) return;
  uint32_t w[8] = {};
  const int first = sector * (kSector / 4);
  const auto* tiles = static_cast<const uint32_t*>(j.tiles) + (int64_t{r / kTile} * j.tiles_c + first) * kTile + r % kTile;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (first + i < j.tiles_c) w[i] = __ldcg(tiles + i * kTile);
  }
  auto* out = reinterpret_cast<uint4*>(static_cast<uint8_t*>(j.scales) + int64_t{r} * j.row_bytes + sector * kSector);
  out[0] = {w[0], w[1], w[2], w[3]};
  if (sector * kSector + 16 < j.row_bytes) out[1] = {w[4], w[5], w[6], w[7]};
}

}  // namespace

cudaError_t arrange_scales(const ScaleRows* copies, int count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  ArrangeArgs a{};
  int64_t warps = 0;
  for (int i = 0; i < count; ++i) {
    a.copies[i] = copies[i];
    warps = std::max(warps, ceil_div(copies[i].R, 32) * ceil_div(copies[i].row_bytes, kSector));
  }
  const dim3 grid(static_cast<unsigned>(ceil_div(warps, kThreads / 32)), static_cast<unsigned>(count));
  const DependentLaunch launch(grid, kThreads, stream, true);
  return cudaLaunchKernelEx(&launch.config, arrange_kernel, a);
}

}  // namespace halftone::device
