#include "halftone/gemm/cpu/avx2.inl.h"

namespace halftone::gemm {
namespace {

struct DotS8 : SumInt {
  static B load_b(const std::byte* p) { return _mm256_xor_si256(Avx2::load_units(p), offset()); }
  static Acc dot(Acc acc, B a, B b) { return _mm256_dpbusd_avx_epi32(acc, b, a); }
  static B offset() { return _mm256_set1_epi8(static_cast<char>(0x80)); }
};

}  // namespace

const Kernels& kernels_avxvnni() {
  static const Kernels table = [] {
    Kernels k = kernels_v3();
    k.s8 = offset_tile<Avx2, DotS8>, k.widen_s8 = nullptr;
    return k;
  }();
  return table;
}

}  // namespace halftone::gemm
