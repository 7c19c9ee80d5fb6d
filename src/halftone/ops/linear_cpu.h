#pragma once
#include "halftone/ops/linear.h"

// `linear` in int8, fp8_rowwise and unquantised products on our CPU kernels, the hot path of a CPU run: operands go from
// the quantiser straight into the panels of the product, weights are packed once per version.
namespace halftone::cpu {

// True for groups that this path computes; the others take ops/linear_scaled.h.
bool takes(const at::Tensor& x_tk, const LinearGroup& group);
// `product` false: y is not formed, for a backward pass whose forward pass was another call.
LinearCall linear_call(const at::Tensor& x_tk, LinearGroup& group, const LinearOptions& options, bool product = true);

}  // namespace halftone::cpu
