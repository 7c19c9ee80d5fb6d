#include "halftone/quantize/operand_kernels.inl.h"

namespace halftone::quantize {

const OperandKernels& operand_kernels_avx512() {
  static constexpr OperandKernels table = OperandLeaf<Simd>::table();
  return table;
}

}  // namespace halftone::quantize
