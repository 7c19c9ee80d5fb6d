#pragma once
#include <ATen/core/Tensor.h>
#include <fmt/ranges.h>

#include "halftone/base/dtype.h"
#include "halftone/base/error.h"

namespace halftone {

// Kernel dtype of a tensor that may be float32 or bfloat16.
inline DType kernel_dtype(const at::Tensor& t) {
  check(t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16, "expected a float32 or bfloat16 tensor, found {}",
        c10::toString(t.scalar_type()));
  return t.scalar_type() == at::kFloat ? DType::f32 : DType::bf16;
}

inline at::ScalarType scalar_type(DType t) { return t == DType::f32 ? at::kFloat : at::kBFloat16; }

}  // namespace halftone
