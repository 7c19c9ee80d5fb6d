#include "halftone/attention/causal_backward_blocked.h"
#include "halftone/attention/causal_forward_blocked.h"
#include "halftone/base/simd.h"

namespace halftone::attention {
namespace {

using Fp32x16 = Fp32<Simd, 8>;

}  // namespace

void forward_avx512(const AttentionForward& p) {
  p.dtype == DType::f32 ? forward_blocked<Fp32x16, float>(p) : forward_blocked<Fp32x16, uint16_t>(p);
}
void backward_avx512(const AttentionBackward& p) {
  p.dtype == DType::f32 ? backward_blocked<Fp32x16, float>(p) : backward_blocked<Fp32x16, uint16_t>(p);
}

}  // namespace halftone::attention
