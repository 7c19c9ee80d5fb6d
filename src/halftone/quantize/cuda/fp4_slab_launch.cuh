#pragma once
#include "halftone/quantize/cuda/fp4_slab.cuh"

namespace halftone::device {

// The kernels of a chain: what products read (bf16, packed), what layers keep of X beside (packed columns), rotated by the chain's
// width or not.
template <class T, Step kStep, int kWidth>
SlabLaunch slab_launch_of(bool stochastic, Copies copies, Form row, Form transposed, int width) {
  constexpr Form kBf16 = Form::bf16, kPacked = Form::packed;
  if (copies == Copies::row) {
    if (row == kBf16)
      return stochastic ? launch_slab<T, kStep, true, kBf16, kBf16, Copies::row, 0>
                        : launch_slab<T, kStep, false, kBf16, kBf16, Copies::row, 0>;
    if (row != kPacked) return nullptr;
    return stochastic ? launch_slab<T, kStep, true, kPacked, kBf16, Copies::row, 0>
                      : launch_slab<T, kStep, false, kPacked, kBf16, Copies::row, 0>;
  }
  if (width != 0 && width != kWidth) return nullptr;
  if (copies == Copies::transposed) {
    if (transposed == kPacked && width == 0) {
      return stochastic ? launch_slab<T, kStep, true, kBf16, kPacked, Copies::transposed, 0>
                        : launch_slab<T, kStep, false, kBf16, kPacked, Copies::transposed, 0>;
    }
    if (transposed != kBf16) return nullptr;
    if (width == 0) {
      return stochastic ? launch_slab<T, kStep, true, kBf16, kBf16, Copies::transposed, 0>
                        : launch_slab<T, kStep, false, kBf16, kBf16, Copies::transposed, 0>;
    }
    return stochastic ? launch_slab<T, kStep, true, kBf16, kBf16, Copies::transposed, kWidth>
                      : launch_slab<T, kStep, false, kBf16, kBf16, Copies::transposed, kWidth>;
  }
  if (row == kPacked && transposed == kPacked && width == 0) {
    return stochastic ? launch_slab<T, kStep, true, kPacked, kPacked, Copies::both, 0>
                      : launch_slab<T, kStep, false, kPacked, kPacked, Copies::both, 0>;
  }
  if (row != kBf16) return nullptr;
  if (transposed == kBf16) {
    if (width == 0) {
      return stochastic ? launch_slab<T, kStep, true, kBf16, kBf16, Copies::both, 0>
                        : launch_slab<T, kStep, false, kBf16, kBf16, Copies::both, 0>;
    }
    return stochastic ? launch_slab<T, kStep, true, kBf16, kBf16, Copies::both, kWidth>
                      : launch_slab<T, kStep, false, kBf16, kBf16, Copies::both, kWidth>;
  }
  if (transposed != kPacked || stochastic) return nullptr;
  return width == 0 ? launch_slab<T, kStep, false, kBf16, kPacked, Copies::both, 0>
                    : launch_slab<T, kStep, false, kBf16, kPacked, Copies::both, kWidth>;
}

}  // namespace halftone::device
