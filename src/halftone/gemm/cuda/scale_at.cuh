#pragma once
#include "halftone/gemm/cuda/scales.h"

namespace halftone::gemm {

// 1 / inv_macro; inv_macro is 1.m with the 8 bits of the byte (numerics.md 3.5).
__device__ inline float macro_factor(uint8_t byte) {
  return __fdiv_rn(1.0f, __uint_as_float((static_cast<uint32_t>(byte) << 15) + 0x3F800000u));
}

// Scale of one row's 128-block along k.
__device__ inline float scale_at(const ScaleJob& job, int64_t row, int64_t block) {
  const ProductOperand& x = job.from;
  float s = job.factor;
  if (x.outer) s *= *x.outer;
  switch (x.scales) {
    case Scales::none:
      break;
    case Scales::tensor:
      s *= *x.scale;
      break;
    case Scales::row:
      s *= x.scale[row];
      break;
    case Scales::block128:
      s *= x.scale[row * job.blocks + block];
      break;
    case Scales::tile128:
      s *= x.scale[row / 128 * job.blocks + block];
      break;
  }
  if (x.macro) s *= macro_factor(x.macro[(x.macro_tiles ? row / 128 : row) * job.blocks + block]);
  return s;
}

}  // namespace halftone::gemm
