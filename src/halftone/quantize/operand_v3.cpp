#include "halftone/quantize/operand_kernels.inl.h"
#include "halftone/quantize/simd_v3.h"

namespace halftone::quantize {

const OperandKernels& operand_kernels_v3() {
  static constexpr OperandKernels table = OperandLeaf<Avx2>::table();
  return table;
}

}  // namespace halftone::quantize
