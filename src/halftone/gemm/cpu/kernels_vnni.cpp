#include "halftone/gemm/cpu/simd.inl.h"

namespace halftone::gemm {
namespace {

struct DotBf16 : SumF32 {
  using B = __m512bh;
  static B load_b(const std::byte* p) { return (B)Simd::loadi(p); }
  static B broadcast(const std::byte* p) { return (B)Simd::seti(unit(p)); }
  static Acc dot(Acc acc, B a, B b) { return _mm512_dpbf16_ps(acc, a, b); }
};

struct DotS8 : OffsetS8 {
  static Acc dot(Acc acc, B a, B b) { return _mm512_dpbusd_epi32(acc, b, a); }
};

}  // namespace

const Kernels& kernels_vnni() {
  static constexpr Kernels table = [] {
    Kernels k = wide_kernels(Block::kPanels);
    k.s8 = offset_tile<Block, DotS8>, k.widen_s8 = nullptr;
    k.bf16 = register_tile<Block, DotBf16>, k.widen_bf16 = nullptr;
    return k;
  }();
  return table;
}

}  // namespace halftone::gemm
