#pragma once
#include <ATen/core/Tensor.h>

#include "halftone/ops/weight.h"

namespace halftone {

// Rows of table[V, D] for tokens[T] (int64, each in [0, V), checked), widened to `dtype`, that of the residual stream. Backward adds to
// the table's fp32 gradient in an order that does not depend on the thread count.
at::Tensor embedding(const at::Tensor& tokens_t, Weight& table_vd, at::ScalarType dtype);

}  // namespace halftone
