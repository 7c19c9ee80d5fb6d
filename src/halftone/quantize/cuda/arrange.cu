#include "halftone/quantize/cuda/arrange.h"

#include <algorithm>

#include "halftone/device/launch.h"
#include "halftone/quantize/cuda/dependent.cuh"
#include "halftone/quantize/cuda/kernels.h"
#include "halftone/quantize/cuda/vec8.cuh"

namespace halftone::device {
namespace {

constexpr unsigned kThreads = 256, kTilesAtOnce = 16;

struct ArrangeArgs {
  ScaleRows copies[2];
};

__host__ __device__ constexpr unsigned pieces_of(const ScaleRows& j) {
  return (static_cast<unsigned>(j.tiles_c) + kTilesAtOnce - 1) / kTilesAtOnce;
}

// A warp brings the scales of 16 tiles and 32 vectors into rows, a lane those of 4 and 4: four lanes store two whole sectors of a row at
// once, and all that there is to load is under way together.
__global__ void __launch_bounds__(kThreads) arrange_kernel(const __grid_constant__ ArrangeArgs a) {
  const ScaleRows& j = a.copies[blockIdx.y];
  const unsigned pieces = pieces_of(j);
  const int r = static_cast<int>(blockIdx.x / pieces * kThreads + threadIdx.x / 4 * 4);
  const int first = static_cast<int>(blockIdx.x % pieces * kTilesAtOnce + threadIdx.x % 4 * 4);
  start_dependents();
  wait_for_primary();
  if (r >= j.R || first >= j.tiles_c) return;  // tiles_c is a multiple of 4
  const auto* tiles = static_cast<const uint32_t*>(j.tiles) + (int64_t{r / kTile} * j.tiles_c + first) * kTile + r % kTile;
  uint4 w[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = load_kept(tiles + i * kTile);
  uint8_t* out = static_cast<uint8_t*>(j.scales) + int64_t{r} * j.row_bytes + first * 4;
  const auto store = [&](int i, const uint4& v) {
    if (r + i < j.R) *reinterpret_cast<uint4*>(out + int64_t{j.row_bytes} * i) = v;
  };
  store(0, {w[0].x, w[1].x, w[2].x, w[3].x}), store(1, {w[0].y, w[1].y, w[2].y, w[3].y});
  store(2, {w[0].z, w[1].z, w[2].z, w[3].z}), store(3, {w[0].w, w[1].w, w[2].w, w[3].w});
}

}  // namespace

cudaError_t arrange_scales(const ScaleRows* copies, int count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  ArrangeArgs a{};
  dim3 grid(1, static_cast<unsigned>(count));
  for (int i = 0; i < count; ++i) {
    a.copies[i] = copies[i];
    grid.x = std::max(grid.x, static_cast<unsigned>(ceil_div(copies[i].R, kThreads)) * pieces_of(copies[i]));
  }
  const DependentLaunch launch(grid, kThreads, stream, true);
  return cudaLaunchKernelEx(&launch.config, arrange_kernel, a);
}

}  // namespace halftone::device
