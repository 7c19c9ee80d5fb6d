#pragma once
#include "halftone/fused/norm_rope.h"
#include "halftone/fused/rows/rms_norm.h"
#include "halftone/fused/rows/rope.h"

namespace halftone::HALFTONE_SIMD {

inline float rstd_of(const Vec (&square)[4], const NormRope& p) {
  return 1.0f / __builtin_sqrtf(reduce_add(sum4(square)) / static_cast<float>(p.rope.head_dim) + p.eps);
}

// A head is normalised, or rotated back, into an fp32 stack buffer that stays in L1.
[[gnu::flatten]] inline void norm_rope_rows(const NormRope& p, int64_t begin, int64_t end) {
  with_float(p.rope.dtype, [&](auto type) {
    using X = typename decltype(type)::type;
    const auto* weight = static_cast<const X*>(p.weight);
    const int64_t heads = p.rope.heads, d = p.rope.head_dim;
    Rope one = p.rope;
    one.heads = 1, one.inverse = false;
    float normal[kMostNormRopeDim];
    for (int64_t t = begin; t < end; ++t) {
      const auto* x = static_cast<const X*>(p.rope.x) + t * p.rope.x_stride;
      auto* out = static_cast<X*>(p.rope.out) + t * p.rope.out_stride;
      const int64_t position = rope_position(p.rope, t);
      for (int64_t h = 0; h < heads; ++h, x += d, out += d) {
        Vec square[4] = {zero(), zero(), zero(), zero()};
        each_vector_slots(d, [&](int64_t i, auto lanes, int slot) {
          const Vec v = load(x + i, lanes);
          square[slot] = fma(v, v, square[slot]);
        });
        const Vec rstd = set1(rstd_of(square, p));
        each_vector(0, d, [&](int64_t i, auto lanes) { store(normal + i, load(x + i, lanes) * rstd * load(weight + i, lanes), lanes); });
        rope_token(one, normal, out, position);
      }
    }
  });
}

// dw [d] accumulates the tokens [begin, end).
[[gnu::flatten]] inline void norm_rope_backward_rows(const NormRopeBackward& p, int64_t begin, int64_t end, float* dw) {
  const Rope& r = p.norm.rope;
  with_float(r.dtype, [&](auto type) {
    using X = typename decltype(type)::type;
    const auto* weight = static_cast<const X*>(p.norm.weight);
    const int64_t heads = r.heads, d = r.head_dim;
    Rope one = r;
    one.heads = 1, one.inverse = true;
    float g[kMostNormRopeDim];
    for (int64_t t = begin; t < end; ++t) {
      const auto* x = static_cast<const X*>(p.x) + t * p.x_stride;
      const auto* dy = static_cast<const X*>(r.x) + t * r.x_stride;
      auto* dx = static_cast<X*>(r.out) + t * r.out_stride;
      const int64_t position = rope_position(r, t);
      for (int64_t h = 0; h < heads; ++h, x += d, dy += d, dx += d) {
        rope_token(one, dy, g, position);
        Vec square[4] = {zero(), zero(), zero(), zero()}, dot[4] = {zero(), zero(), zero(), zero()};
        each_vector_slots(d, [&](int64_t i, auto lanes, int slot) {
          const Vec v = load(x + i, lanes);
          square[slot] = fma(v, v, square[slot]);
          dot[slot] = fma(load(g + i, lanes) * v, load(weight + i, lanes), dot[slot]);
        });
        const float scale = rstd_of(square, p.norm);
        const Vec rstd = set1(scale), mean = set1(scale * reduce_add(sum4(dot)) / static_cast<float>(d));
        each_vector(0, d, [&](int64_t i, auto lanes) {
          const Vec v = load(x + i, lanes) * rstd, of_normal = load(g + i, lanes);
          store(dw + i, fma(of_normal, v, load(dw + i, lanes)), lanes);
          store(dx + i, rstd * neg_fma(v, mean, of_normal * load(weight + i, lanes)), lanes);
        });
      }
    }
  });
}

}  // namespace halftone::HALFTONE_SIMD
