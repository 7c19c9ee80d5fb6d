#pragma once
#include "halftone/quantize/cuda/rules.cuh"

namespace halftone::device {

// Scale of a tensor, row or 128-block in fp8 or integers. negative: int4's second maximum.
template <Coder kCoder>
__device__ __forceinline__ ScalePair group_rule(const CopyArgs& d, uint32_t amax, uint32_t negative) {
  if constexpr (kCoder == Coder::integer) {
    if (d.element == Element::int4) return int4_scale(amax, negative, d.scale_floor);
    return int8_scale(amax, d.scale_floor);
  }
  return fp8_scale(float_of(kCoder), d.pow2, amax);
}

}  // namespace halftone::device
