#pragma once
#include "halftone/ops/linear.h"

// `linear` for every recipe, from quantised operands (ops/operand.h) and their products (ops/product.h).
namespace halftone::scaled {

LinearCall linear_call(const at::Tensor& x_tk, LinearGroup& group, const LinearOptions& options);

}  // namespace halftone::scaled
