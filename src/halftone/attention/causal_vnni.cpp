#include "halftone/attention/causal_backward_blocked.h"
#include "halftone/attention/causal_forward_blocked.h"
#include "halftone/attention/operand_bf16.h"

namespace halftone::attention {
namespace {

// bf16 with vdpbf16ps: two products and their fp32 sum per lane.
struct Bf16Dot : Bf16Operand {
  using B = I;
  static constexpr int kRows = 8;
  static B load_b(const uint32_t* p) { return loadi(p); }
  static B broadcast(const T* p) {
    int32_t pair;
    std::memcpy(&pair, p, 4);
    return _mm512_set1_epi32(pair);
  }
  static F multiply_add(F c, B a, B b) { return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b); }
  static void begin() {}
  static void end() {}
  template <Start kStart>
  static void gemm(int m, int n, int k, const T* a, int64_t lda, const uint32_t* b, int64_t ldb, float* c, int64_t ldc, const float* bias) {
    gemm_broadcast<Bf16Dot, kStart>(m, n, k, a, lda, b, ldb, c, ldc, bias);
  }
};

}  // namespace

void forward_vnni(const AttentionForward& p) { forward_blocked<Bf16Dot, uint16_t>(p); }
void backward_vnni(const AttentionBackward& p) { backward_blocked<Bf16Dot, uint16_t>(p); }

}  // namespace halftone::attention
