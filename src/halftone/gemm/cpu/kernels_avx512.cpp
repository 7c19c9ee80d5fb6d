#include "halftone/gemm/cpu/simd.inl.h"

namespace halftone::gemm {

const Kernels& kernels_avx512() {
  static constexpr Kernels table = wide_kernels(Block::kPanels);
  return table;
}

}  // namespace halftone::gemm
