#include "halftone/gemm/cpu/simd.inl.h"

namespace halftone::gemm {

const Kernels& kernels_v3() {
  static constexpr Kernels table = wide_kernels(4);
  return table;
}

}  // namespace halftone::gemm
