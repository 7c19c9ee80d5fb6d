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

template <class X, class Y>
void rope_neighbours(const Rope& p, const X* x, Y* out, const float* cos, const float* sin) {
  each_vector(0, rotated_of(p), [&](int64_t i, auto lanes) {
    const Vec c = load_twice(cos + i / 2, lanes), s = load_twice(sin + i / 2, lanes);
    for (int64_t h = 0; h < p.heads; ++h) {
      const Vec v = load(x + h * p.head_dim + i, lanes);
      const Vec crossed = swap_neighbours(v) * s;
      store(out + h * p.head_dim + i, p.inverse ? fma_add_sub(v, c, crossed) : fma_sub_add(v, c, crossed), lanes);
    }
  });
}

template <class X, class Y>
void rope_halves(const Rope& p, const X* x, Y* out, const float* cos, const float* sin) {
  const int64_t half = rotated_of(p) / 2;
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

inline int64_t rope_position(const Rope& p, int64_t t) { return p.positions ? p.positions[t] : t % p.seq_len + p.offset; }

// Rotates all heads of a token.
template <class X, class Y>
void rope_token(const Rope& p, const X* x, Y* out, int64_t position) {
  const int64_t rotated = rotated_of(p), row = position * (rotated / 2);
  if (p.pairing == RopePairing::neighbours) {
    rope_neighbours(p, x, out, p.cos + row, p.sin + row);
  } else {
    rope_halves(p, x, out, p.cos + row, p.sin + row);
  }
  if (rotated == p.head_dim || static_cast<const void*>(x) == out) return;
  for (int64_t first = 0; first < p.heads * p.head_dim; first += p.head_dim) {
    each_vector(first + rotated, first + p.head_dim, [&](int64_t i, auto lanes) { store(out + i, load(x + i, lanes), lanes); });
  }
}

[[gnu::flatten]] inline void rope_rows(const Rope& p, int64_t begin, int64_t end) {
  with_float(p.dtype, [&](auto type) {
    using X = typename decltype(type)::type;
    for (int64_t t = begin; t < end; ++t) {
      rope_token(p, static_cast<const X*>(p.x) + t * p.x_stride, static_cast<X*>(p.out) + t * p.out_stride, rope_position(p, t));
    }
  });
}

}  // namespace halftone::HALFTONE_SIMD
