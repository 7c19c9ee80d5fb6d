#pragma once
#include "halftone/fused/ref.h"
#include "halftone/fused/rope.h"

namespace halftone {

// [T, heads, d]
inline std::vector<double> rope_ref(const Rope& p) {
  std::vector<double> out(static_cast<size_t>(p.tokens * p.heads * p.head_dim));
  const int64_t half = p.head_dim / 2;
  for (int64_t t = 0; t < p.tokens; ++t) {
    const int64_t position = p.positions ? p.positions[t] : t % p.seq_len + p.offset;
    for (int64_t h = 0; h < p.heads; ++h) {
      for (int64_t j = 0; j < half; ++j) {
        const bool near = p.pairing == RopePairing::neighbours;
        const int64_t first = h * p.head_dim + (near ? 2 * j : j), second = first + (near ? 1 : half);
        const double a = element_at(p.x, p.dtype, t * p.x_stride + first), b = element_at(p.x, p.dtype, t * p.x_stride + second);
        const double c = p.cos[position * half + j], s = p.inverse ? -p.sin[position * half + j] : p.sin[position * half + j];
        out[static_cast<size_t>(t * p.heads * p.head_dim + first)] = a * c - b * s;
        out[static_cast<size_t>(t * p.heads * p.head_dim + second)] = b * c + a * s;
      }
    }
  }
  return out;
}

}  // namespace halftone
