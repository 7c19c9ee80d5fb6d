#include "halftone/quantize/kernels.inl.h"

namespace halftone::quantize {

const Kernels& kernels_avx512() {
  static constexpr Kernels table = Leaf<Simd>::table();
  return table;
}

}  // namespace halftone::quantize
