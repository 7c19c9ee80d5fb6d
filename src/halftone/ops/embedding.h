#pragma once
#include <ATen/core/Tensor.h>

#include "halftone/ops/weight.h"

namespace halftone {

// Rows of table[V, D] for tokens[T] (int64, each in [0, V), checked), in the table's compute dtype. Backward adds to the
// table's fp32 gradient in an order that does not depend on the thread count.
at::Tensor embedding(const at::Tensor& tokens_t, Weight& table_vd);

}  // namespace halftone
