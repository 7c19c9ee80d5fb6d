#include "halftone/quantize/kernels.inl.h"

namespace halftone::quantize {

const Kernels& kernels_v3() {
  static constexpr Kernels table = Leaf<Simd>::table();
  return table;
}

}  // namespace halftone::quantize
