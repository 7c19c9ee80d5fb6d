#include "halftone/gemm/cpu/simd.inl.h"

namespace halftone::gemm {
namespace {

struct DotS8 : OffsetS8 {
  static Acc dot(Acc acc, B a, B b) { return _mm256_dpbusd_avx_epi32(acc, b, a); }
};

}  // namespace

const Kernels& kernels_avxvnni() {
  static const Kernels table = [] {
    Kernels k = kernels_v3();
    k.s8 = offset_tile<Block, DotS8>, k.widen_s8 = nullptr;
    return k;
  }();
  return table;
}

}  // namespace halftone::gemm
