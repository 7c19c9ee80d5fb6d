#include "halftone/gemm/cpu/avx512.inl.h"

namespace halftone::gemm {

const Kernels& kernels_avx512() {
  static constexpr Kernels table{.panels = Wide::kPanels,
                                 .amx = false,
                                 .chunk = 256,
                                 .s8 = register_tile<Wide, DotS8Sign>,
                                 .bf16 = register_tile<Wide, DotBf16Widened>,
                                 .f32 = register_tile<Wide, DotF32>,
                                 .epilogue = epilogue<Wide>,
                                 .transpose = transpose16,
                                 .enter = nullptr,
                                 .leave = nullptr};
  return table;
}

}  // namespace halftone::gemm
