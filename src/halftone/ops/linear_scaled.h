#pragma once
#include "halftone/ops/linear.h"

// `linear` for every recipe, from quantised operands (ops/operand.h) and their products (ops/product.h).
namespace halftone::scaled {

// `product` false: y is not formed, for a backward pass whose forward pass was another call.
LinearCall linear_call(const at::Tensor& x_tk, LinearGroup& group, const LinearOptions& options, bool product = true);

}  // namespace halftone::scaled
