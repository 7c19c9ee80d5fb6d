#include "halftone/attention/causal_backward_blocked.h"
#include "halftone/attention/causal_forward_blocked.h"
#include "halftone/base/simd.h"

namespace halftone::attention {
namespace {

using Fp32x8 = Fp32<Simd, 4>;

}  // namespace

void forward_v3(const AttentionForward& p) {
  p.dtype == DType::f32 ? forward_blocked<Fp32x8, float>(p) : forward_blocked<Fp32x8, uint16_t>(p);
}
void backward_v3(const AttentionBackward& p) {
  p.dtype == DType::f32 ? backward_blocked<Fp32x8, float>(p) : backward_blocked<Fp32x8, uint16_t>(p);
}

}  // namespace halftone::attention
