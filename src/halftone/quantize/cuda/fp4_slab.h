#pragma once
#include <cuda_runtime_api.h>

#include "halftone/quantize/cuda/kernels.h"

namespace halftone::device {

// The format of a block scale: least of the values that are rounded to it, largest, what is rounded to the largest without
// saturating (less than half a step above), smallest normal and half of it, code of NaN; wide: ue5m3.
// unit: added to the bits of a power of two makes of it what a scale of that binade is added to, to be rounded to the last place, with
// what the low byte of the sum lacks to be the code.
struct BlockCode {
  float least, most, limit, normal, half;
  uint32_t unit, nan;
  bool wide;
};

// Powers of two that the compiler does not see: shifts on the multipliers, since the units for shifts and logic are the busiest.
struct Shifts {
  uint32_t by2 = 1u << 2, by3 = 1u << 3, by6 = 1u << 6, by11 = 1u << 11, by16 = 1u << 16;
  uint32_t high = 0x3F800000u, zeros = 0x80000000u;  // pairs of bf16: 1 and 0; -0 and 0, which change no sum's sign
};
struct SlabArgs {
  TileArgs tile;
  BlockCode row, transposed;
  Shifts shifts;
  // Set by the launch: how many of the last columns of tiles of the last band have thread blocks for each copy (fp4_slab.cuh); bands of
  // tiles.
  unsigned split, bands;
};

// The kernel for elements in blocks of 16 that writes these copies, null where there is none (fp4_slab.cuh). Forms of copies
// that are not written do not matter; width: of the transposed copy's rotation.
using SlabLaunch = void (*)(const SlabArgs& a, TileGrid tiles, cudaStream_t stream);
SlabLaunch slab_launch_torchao(bool stochastic, Copies copies, Form row, Form transposed, int width);
SlabLaunch slab_launch_torchao_f32(bool stochastic, Copies copies, Form row, Form transposed, int width);
SlabLaunch slab_launch_alto(bool stochastic, Copies copies, Form row, Form transposed, int width);
SlabLaunch slab_launch_alto_f32(bool stochastic, Copies copies, Form row, Form transposed, int width);
inline SlabLaunch slab_launch(DType type, Step step, bool stochastic, Copies copies, Form row, Form transposed, int width) {
  const bool f32 = type == DType::f32;
  const auto launch = step == Step::divide ? f32 ? slab_launch_alto_f32 : slab_launch_alto
                      : f32                ? slab_launch_torchao_f32
                                           : slab_launch_torchao;
  return launch(stochastic, copies, row, transposed, width);
}
inline BlockCode block_code(bool wide, Fp4Chain chain) {
  const float least = chain == Fp4Chain::torchao ? 0.0f : wide ? 0x1p-17f : 0x1p-6f;
  constexpr uint32_t kBinades = 20u << 23;
  return wide ? BlockCode{least, 114688.0f, 116480.0f, 0x1p-14f, 0x1p-15f, kBinades + 120, 0xFFu, true}
              : BlockCode{least, 448.0f, 455.0f, 0x1p-6f, 0x1p-7f, kBinades + 56, 0x7Fu, false};
}
inline SlabArgs slab_args(const TileArgs& tile) {
  return {tile, block_code(tile.row.wide, tile.row.chain), block_code(tile.transposed.wide, tile.transposed.chain), {}, 0, 0};
}

}  // namespace halftone::device
