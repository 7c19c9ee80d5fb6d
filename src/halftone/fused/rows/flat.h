#pragma once
#include "halftone/fused/simd.h"

namespace halftone::HALFTONE_SIMD {

[[gnu::flatten]] inline double square_block(const void* x, int64_t n, DType dtype) {
  double result = 0;
  with_float(dtype, [&](auto type) {
    const auto* values = static_cast<const typename decltype(type)::type*>(x);
    Vec64 sum;
    each_vector(0, n, [&](int64_t i, auto lanes) { sum = add_square(sum, load(values + i, lanes)); });
    result = reduce_add(sum);
  });
  return result;
}

[[gnu::flatten]] inline void scale_block(float* x, int64_t n, float factor) {
  each_vector(0, n, [&](int64_t i, auto lanes) { store(x + i, load(x + i, lanes) * set1(factor), lanes); });
}

[[gnu::flatten]] inline void convert_block(const void* x, DType from, void* y, DType to, int64_t n) {
  with_float(from, [&](auto a) {
    with_float(to, [&](auto b) {
      const auto* in = static_cast<const typename decltype(a)::type*>(x);
      auto* out = static_cast<typename decltype(b)::type*>(y);
      each_vector(0, n, [&](int64_t i, auto lanes) { store(out + i, load(in + i, lanes), lanes); });
    });
  });
}

[[gnu::flatten]] inline void accumulate_block(float* sum, const void* x, DType dtype, int64_t n) {
  with_float(dtype, [&](auto type) {
    const auto* in = static_cast<const typename decltype(type)::type*>(x);
    each_vector(0, n, [&](int64_t i, auto lanes) { store(sum + i, load(sum + i, lanes) + load(in + i, lanes), lanes); });
  });
}

}  // namespace halftone::HALFTONE_SIMD
