#pragma once
#include <cuda_runtime.h>

#include <algorithm>

#include "halftone/device/launch.h"

namespace halftone::device {

// Division-free grid over a matrix whose rows hold `across` vectors: x runs along a row, y over rows. A block covers one row with
// 2^log_across threads, or several short rows; a thread keeps its column and advances by row_step() rows.
struct RowGrid {
  int log_across = 0;
  __device__ int64_t column() const { return (int64_t{blockIdx.x} << log_across) + (threadIdx.x & ((1u << log_across) - 1)); }
  __device__ int64_t row() const { return int64_t{blockIdx.y} * (blockDim.x >> log_across) + (threadIdx.x >> log_across); }
  __device__ int64_t row_step() const { return int64_t{gridDim.y} * (blockDim.x >> log_across); }
};
struct RowLaunch {
  RowGrid grid;
  dim3 blocks;
  int64_t row_step = 0;
};
// Requires rows, across >= 1 and `threads` (per block) a power of two; launches about `most` blocks at most.
inline RowLaunch row_launch(int64_t rows, int64_t across, int threads, int64_t most) {
  RowLaunch r;
  while ((1 << r.grid.log_across) < threads && (int64_t{1} << r.grid.log_across) < across) ++r.grid.log_across;
  const int64_t x = ceil_div(across, int64_t{1} << r.grid.log_across), of_block = threads >> r.grid.log_across;
  const int64_t y = std::min<int64_t>({ceil_div(rows, of_block), std::max<int64_t>(most / x, 1), 65535});
  r.blocks = dim3(static_cast<unsigned>(x), static_cast<unsigned>(y)), r.row_step = y * of_block;
  return r;
}

}  // namespace halftone::device
