#pragma once
#include <ATen/core/Tensor.h>

#include "halftone/ops/weight.h"

namespace halftone {

// y[T, N] = x[T, N] * s[N] in x's dtype; backward adds ds to the weight's fp32 gradient.
at::Tensor scale_columns(const at::Tensor& x_tn, Weight& scale_n);

}  // namespace halftone
