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

// A matrix as kernels read it, elements of a row beside each other and rows that share none: a copy of views that are not so (transposed
// ones, expanded ones, windows).
inline at::Tensor row_major(const at::Tensor& x) {
  const bool rows = x.size(0) <= 1 || x.stride(0) >= x.size(1), elements = x.size(1) <= 1 || x.stride(1) == 1;
  return rows && elements ? x : x.contiguous();
}
// From one row of such a matrix to the next, in elements; the stride of a dimension of one element may be anything.
inline int64_t row_stride(const at::Tensor& x) { return x.size(0) <= 1 ? x.size(1) : x.stride(0); }

inline at::ScalarType scalar_type(DType t) { return t == DType::f32 ? at::kFloat : at::kBFloat16; }

}  // namespace halftone
