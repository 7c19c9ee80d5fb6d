#include "halftone/quantize/operand_kernels.inl.h"
#include "halftone/quantize/simd_avx512.h"

namespace halftone::quantize {

const OperandKernels& operand_kernels_avx512() {
  static constexpr OperandKernels table = OperandLeaf<Avx512>::table();
  return table;
}

}  // namespace halftone::quantize
