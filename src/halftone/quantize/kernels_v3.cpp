#include "halftone/quantize/kernels.inl.h"
#include "halftone/quantize/simd_v3.h"

namespace halftone::quantize {

const Kernels& kernels_v3() {
  static constexpr Kernels table = Leaf<Avx2>::table();
  return table;
}

}  // namespace halftone::quantize
