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

// A matrix as kernels read it, with unit column stride and rows that do not overlap: other views (transposed, expanded, sliding windows)
// are copied.
inline at::Tensor row_major(const at::Tensor& x) {
  const bool rows = x.size(0) <= 1 || x.stride(0) >= x.size(1), elements = x.size(1) <= 1 || x.stride(1) == 1;
  return rows && elements ? x : x.contiguous();
}
// Distance between consecutive rows of such a matrix, in elements; a dimension of size 1 may have any stride.
inline int64_t row_stride(const at::Tensor& x) { return x.size(0) <= 1 ? x.size(1) : x.stride(0); }

inline at::ScalarType scalar_type(DType t) { return t == DType::f32 ? at::kFloat : at::kBFloat16; }

}  // namespace halftone
