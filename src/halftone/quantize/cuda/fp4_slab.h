#pragma once
#include <cuda_runtime_api.h>

#include "halftone/quantize/cuda/kernels.h"

namespace halftone::device {

// The format of a block scale: what rounds a value to it.
struct BlockCode {
  float least, most, normal, unit;  // normal: smallest normal; unit: 2^23 times the subnormal quantum
  uint32_t bias, nan;
};

struct SlabArgs {
  TileArgs tile;
  BlockCode row, transposed;
};

// The kernel for bf16 elements in blocks of 16 that writes these copies, null where there is none (fp4_slab.cuh). Forms of copies
// that are not written do not matter; width: of the transposed copy's rotation.
using SlabLaunch = void (*)(const SlabArgs& a, TileGrid tiles, cudaStream_t stream);
SlabLaunch slab_launch_torchao(bool stochastic, Copies copies, Form row, Form transposed, int width);
SlabLaunch slab_launch_alto(bool stochastic, Copies copies, Form row, Form transposed, int width);
inline SlabLaunch slab_launch(Step step, bool stochastic, Copies copies, Form row, Form transposed, int width) {
  return (step == Step::divide ? slab_launch_alto : slab_launch_torchao)(stochastic, copies, row, transposed, width);
}
inline BlockCode block_code(bool wide, Fp4Chain chain) {
  const float least = chain == Fp4Chain::torchao ? 0.0f : wide ? 0x1p-17f : 0x1p-6f;
  return wide ? BlockCode{least, 114688.0f, 0x1p-14f, 0x1p6f, 112u << 3, 0xFFu} : BlockCode{least, 448.0f, 0x1p-6f, 0x1p14f, 120u << 3, 0x7Fu};
}
inline SlabArgs slab_args(const TileArgs& tile) {
  return {tile, block_code(tile.row.wide, tile.row.chain), block_code(tile.transposed.wide, tile.transposed.chain)};
}

}  // namespace halftone::device
