#pragma once
#include "halftone/ops/operand.h"

namespace halftone {

// Slopes of the forward quantiser of an e2m1 weight w[N, K], fp32 [N, K]; dW is multiplied by them (numerics.md section 6). `forward`
// holds its quantisation scales; the slope is evaluated at w / scale before rounding.
at::Tensor dge_slopes(const at::Tensor& w_nk, const Operand& forward);

}  // namespace halftone
