#pragma once
#include <ATen/core/Tensor.h>

#include "halftone/ops/weight.h"

namespace halftone {

// y[T, N] = x[T, N] * s[N] in x's dtype; backward adds ds to the weight's fp32 gradient.
at::Tensor scale_columns(const at::Tensor& x_tn, Weight& scale_n);

// The same without autograd; backward returns dx in x's dtype and adds ds.
at::Tensor scaled_columns(const at::Tensor& x_tn, const Weight& scale_n);
at::Tensor scaled_columns_backward(const at::Tensor& dy_tn, const at::Tensor& x_tn, Weight& scale_n);

}  // namespace halftone
