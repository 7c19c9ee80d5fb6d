#pragma once
#include "halftone/fused/ref.h"
#include "halftone/fused/rope.h"

namespace halftone {

// [T, heads, d]; `x` returns column i of token t.
template <class X>
std::vector<double> rope_ref(const Rope& p, X&& x) {
  std::vector<double> out(static_cast<size_t>(p.tokens * p.heads * p.head_dim));
  const int64_t half = rotated_of(p) / 2;
  for (int64_t t = 0; t < p.tokens; ++t) {
    const int64_t position = p.positions ? p.positions[t] : t % p.seq_len + p.offset;
    double* row = &out[static_cast<size_t>(t * p.heads * p.head_dim)];
    for (int64_t i = 0; i < p.heads * p.head_dim; ++i) row[i] = x(t, i);
    for (int64_t h = 0; h < p.heads; ++h) {
      for (int64_t j = 0; j < half; ++j) {
        const bool near = p.pairing == RopePairing::neighbours;
        const int64_t first = h * p.head_dim + (near ? 2 * j : j), second = first + (near ? 1 : half);
        const double a = row[first], b = row[second];
        const double c = p.cos[position * half + j], s = p.inverse ? -p.sin[position * half + j] : p.sin[position * half + j];
        row[first] = a * c - b * s, row[second] = b * c + a * s;
      }
    }
  }
  return out;
}
inline std::vector<double> rope_ref(const Rope& p) {
  return rope_ref(p, [&](int64_t t, int64_t i) { return element_at(p.x, p.dtype, t * p.x_stride + i); });
}

}  // namespace halftone
