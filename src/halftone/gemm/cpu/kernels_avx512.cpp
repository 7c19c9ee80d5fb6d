#include "halftone/gemm/cpu/avx512.inl.h"

namespace halftone::gemm {
namespace {

struct DotS16 : SumInt {
  static Acc dot(Acc acc, B a, B b) { return _mm512_add_epi32(acc, _mm512_madd_epi16(a, b)); }
};
struct SplitBf16 {
  static __m512i low(__m512i v) { return _mm512_slli_epi32(v, 16); }
  static __m512i high(__m512i v) { return _mm512_and_si512(v, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))); }
};
struct SplitS8 {
  static __m512i low(__m512i v) { return _mm512_srai_epi16(_mm512_slli_epi16(v, 8), 8); }
  static __m512i high(__m512i v) { return _mm512_srai_epi16(v, 8); }
};

}  // namespace

const Kernels& kernels_avx512() {
  static constexpr Kernels table{.panels = Wide::kPanels,
                                 .amx = false,
                                 .chunk = 256,
                                 .s8 = register_tile<Wide, DotS16>,
                                 .bf16 = register_tile<Wide, DotF32>,
                                 .f32 = register_tile<Wide, DotF32>,
                                 .widen_s8 = &kWiden<Wide, SplitS8>,
                                 .widen_bf16 = &kWiden<Wide, SplitBf16>,
                                 .epilogue = epilogue<Wide>,
                                 .transpose = transpose16,
                                 .enter = nullptr,
                                 .leave = nullptr};
  return table;
}

}  // namespace halftone::gemm
