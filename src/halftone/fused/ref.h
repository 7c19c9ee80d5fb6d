#pragma once
#include <cstdint>
#include <vector>

#include "halftone/base/dtype.h"

// Scalar fp64 references: take the kernels' parameters and return the expected output, unrounded.
namespace halftone {

inline double element_at(const void* x, DType type, int64_t i) {
  return type == DType::bf16 ? to_float(static_cast<const bf16*>(x)[i]) : static_cast<const float*>(x)[i];
}
inline int64_t integer_at(const void* x, DType type, int64_t i) {
  return type == DType::s64 ? static_cast<const int64_t*>(x)[i] : static_cast<const int32_t*>(x)[i];
}

}  // namespace halftone
