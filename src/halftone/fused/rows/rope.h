#pragma once
#include "halftone/fused/rope.h"
#include "halftone/fused/simd.h"

namespace halftone::HALFTONE_SIMD {

inline Vec load_twice(const float* p, All) { return load_twice(p); }
inline Vec load_twice(const float* p, First lanes) {
  float pair[kLanes / 2] = {};
  for (int64_t i = 0; i < lanes.n / 2; ++i) pair[i] = p[i];
  return load_twice(pair);
}

template <class X>
void rope_neighbours(const Rope& p, const X* x, X* out, const float* cos, const float* sin) {
  each_vector(0, p.head_dim, [&](int64_t i, auto lanes) {
    const Vec c = load_twice(cos + i / 2, lanes), s = load_twice(sin + i / 2, lanes);
    for (int64_t h = 0; h < p.heads; ++h) {
      const Vec v = load(x + h * p.head_dim + i, lanes);
      const Vec crossed = swap_neighbours(v) * s;
      store(out + h * p.head_dim + i, p.inverse ? fma_add_sub(v, c, crossed) : fma_sub_add(v, c, crossed), lanes);
    }
  });
}

template <class X>
void rope_halves(const Rope& p, const X* x, X* out, const float* cos, const float* sin) {
  const int64_t half = p.head_dim / 2;
  const Vec sign = set1(p.inverse ? -1.0f : 1.0f);
  each_vector(0, half, [&](int64_t i, auto lanes) {
    const Vec c = load(cos + i, lanes), s = load(sin + i, lanes) * sign;
    for (int64_t h = 0; h < p.heads; ++h) {
      const int64_t first = h * p.head_dim + i, second = first + half;
      const Vec a = load(x + first, lanes), b = load(x + second, lanes);
      store(out + first, neg_fma(b, s, a * c), lanes);
      store(out + second, fma(a, s, b * c), lanes);
    }
  });
}

[[gnu::flatten]] inline void rope_rows(const Rope& p, int64_t begin, int64_t end) {
  with_float(p.dtype, [&](auto type) {
    using X = typename decltype(type)::type;
    const int64_t half = p.head_dim / 2;
    for (int64_t t = begin; t < end; ++t) {
      const int64_t position = p.positions ? p.positions[t] : t % p.seq_len + p.offset;
      const auto* x = static_cast<const X*>(p.x) + t * p.x_stride;
      auto* out = static_cast<X*>(p.out) + t * p.out_stride;
      const float *cos = p.cos + position * half, *sin = p.sin + position * half;
      if (p.pairing == RopePairing::neighbours) {
        rope_neighbours(p, x, out, cos, sin);
      } else {
        rope_halves(p, x, out, cos, sin);
      }
    }
  });
}

}  // namespace halftone::HALFTONE_SIMD
