#include "halftone/quantize/kernels.inl.h"
#include "halftone/quantize/simd_avx512.h"

namespace halftone::quantize {

const Kernels& kernels_avx512() {
  static constexpr Kernels table = Leaf<Avx512>::table();
  return table;
}

}  // namespace halftone::quantize
