#pragma once
#include <algorithm>
#include <cstdint>

#include "halftone/base/dtype.h"
#include "halftone/base/error.h"

namespace halftone {

inline void check_float(const char* what, DType t) {
  check(t == DType::bf16 || t == DType::f32, "{}: expected bf16 or f32 elements, found type {}", what, static_cast<int>(t));
}

inline void check_shape(const char* what, int64_t rows, int64_t cols) {
  check(rows >= 0 && cols >= 0, "{}: expected sizes of at least 0, found {} x {}", what, rows, cols);
}

// Calls f.operator()<T>() with the element type.
template <class F>
void dispatch_float(DType t, F&& f) {
  t == DType::bf16 ? f.template operator()<bf16>() : f.template operator()<float>();
}

// Minimum rows per thread: about 8,192 elements.
inline int64_t row_grain(int64_t cols) { return std::max<int64_t>(1, 8192 / std::max<int64_t>(1, cols)); }

// Checks that ids [n] of type s32 or s64 are in [0, limit), or equal `also` if `also` is negative.
inline void check_ids(const char* what, const void* ids, DType type, int64_t n, int64_t limit, int64_t also) {
  check(type == DType::s32 || type == DType::s64, "{}: expected int32 or int64, found type {}", what, static_cast<int>(type));
  for (int64_t i = 0; i < n; ++i) {
    const int64_t id = type == DType::s64 ? static_cast<const int64_t*>(ids)[i] : static_cast<const int32_t*>(ids)[i];
    check((id >= 0 && id < limit) || (also < 0 && id == also), "{}: expected values below {}, found {} at position {}", what, limit, id, i);
  }
}

}  // namespace halftone
