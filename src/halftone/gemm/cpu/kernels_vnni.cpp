#include "halftone/gemm/cpu/avx512.inl.h"

namespace halftone::gemm {
namespace {

struct DotBf16 {
  using Acc = __m512;
  using B = __m512bh;
  using Element = float;
  static Acc zero() { return _mm512_setzero_ps(); }
  static Acc load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Acc v) { _mm512_storeu_ps(p, v); }
  static B load_b(const std::byte* p) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p)); }
  static B broadcast(const std::byte* p) { return reinterpret_cast<__m512bh>(_mm512_set1_epi32(unit(p))); }
  static Acc dot(Acc acc, B a, B b) { return _mm512_dpbf16_ps(acc, a, b); }
};

struct DotS8 : SumInt {
  static B load_b(const std::byte* p) { return _mm512_xor_si512(_mm512_loadu_si512(p), offset()); }
  static Acc dot(Acc acc, B a, B b) { return _mm512_dpbusd_epi32(acc, b, a); }
  static B offset() { return _mm512_set1_epi8(static_cast<char>(0x80)); }
};

}  // namespace

const Kernels& kernels_vnni() {
  static constexpr Kernels table{.panels = Wide::kPanels,
                                 .amx = false,
                                 .chunk = 256,
                                 .s8 = offset_tile<Wide, DotS8>,
                                 .bf16 = register_tile<Wide, DotBf16>,
                                 .f32 = register_tile<Wide, DotF32>,
                                 .widen_s8 = nullptr,
                                 .widen_bf16 = nullptr,
                                 .epilogue = epilogue<Wide>,
                                 .transpose = transpose16,
                                 .enter = nullptr,
                                 .leave = nullptr};
  return table;
}

}  // namespace halftone::gemm
