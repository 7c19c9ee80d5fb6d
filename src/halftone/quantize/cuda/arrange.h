#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace halftone::device {

// A tile has 4 bytes of scales a vector. Written to their rows one by one, each is a part of a sector that the L2 cache takes
// as slowly as a whole one: up to a fifth of a kernel's time. So the tile kernels write the scales of a tile together,
// [tiles along R][tiles along C][kTile vectors], to stay in the L2 cache, and a second, small kernel brings them into rows.
struct ScaleRows {
  const void* tiles;
  void* scales;
  int R, tiles_c;
  int row_bytes;
};
// Whether rows of scales can be written so, in pieces of 16 bytes.
constexpr bool arranges(int64_t row_bytes) { return row_bytes % 16 == 0; }

// Up to two copies; starts while the tile kernel ends.
cudaError_t arrange_scales(const ScaleRows* copies, int count, cudaStream_t stream);

}  // namespace halftone::device
