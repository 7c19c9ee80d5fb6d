#pragma once
#include "halftone/fused/kernels.h"
#include "halftone/fused/simd.h"

namespace halftone::HALFTONE_SIMD {

// The row stays in cache between the two reads, so an online softmax would only add work.
[[gnu::flatten]] inline SoftmaxSum softmax_sum(const void* logits, DType dtype, int64_t vocab, float* exponentials) {
  SoftmaxSum result{};
  with_float(dtype, [&](auto type) {
    const auto* z = static_cast<const typename decltype(type)::type*>(logits);
    const Vec lowest = set1(-__builtin_inff());
    Vec top[4] = {lowest, lowest, lowest, lowest};
    each_vector_slots(vocab, [&](int64_t i, auto lanes, int slot) { top[slot] = max(keep(load(z + i, lanes), lanes, lowest), top[slot]); });
    result.max = reduce_max(max(max(top[0], top[1]), max(top[2], top[3])));
    const Vec shift = set1(result.max);
    Vec sum[4] = {zero(), zero(), zero(), zero()};
    each_vector_slots(vocab, [&](int64_t i, auto lanes, int slot) {
      const Vec e = exp(load(z + i, lanes) - shift);
      if (exponentials) store(exponentials + i, e, lanes);
      sum[slot] = sum[slot] + keep(e, lanes, zero());
    });
    result.sum = reduce_add((sum[0] + sum[1]) + (sum[2] + sum[3]));
  });
  return result;
}

[[gnu::flatten]] inline void scaled_copy(const float* x, int64_t n, float factor, void* y, DType dtype) {
  with_float(dtype, [&](auto type) {
    auto* out = static_cast<typename decltype(type)::type*>(y);
    const Vec scale = set1(factor);
    each_vector(0, n, [&](int64_t i, auto lanes) { store(out + i, load(x + i, lanes) * scale, lanes); });
  });
}

}  // namespace halftone::HALFTONE_SIMD
