#pragma once
#include <cmath>

#include "halftone/fused/norm_rope.h"
#include "halftone/fused/rope_ref.h"

namespace halftone {

// [T, heads, d]
inline std::vector<double> norm_rope_ref(const NormRope& p) {
  const Rope& r = p.rope;
  return rope_ref(r, [&](int64_t t, int64_t i) {
    const int64_t head = i / r.head_dim * r.head_dim;
    double square = 0;
    for (int64_t j = 0; j < r.head_dim; ++j) square += std::pow(element_at(r.x, r.dtype, t * r.x_stride + head + j), 2);
    const double rstd = 1 / std::sqrt(square / static_cast<double>(r.head_dim) + p.eps);
    return element_at(r.x, r.dtype, t * r.x_stride + i) * rstd * element_at(p.weight, r.dtype, i - head);
  });
}

struct NormRopeBackwardRef {
  std::vector<double> dx, dw;  // [T, heads, d], [d]: the gradient only, without the previous contents of dw
};
inline NormRopeBackwardRef norm_rope_backward_ref(const NormRopeBackward& p) {
  Rope r = p.norm.rope;
  r.inverse = true;
  const int64_t d = r.head_dim;
  NormRopeBackwardRef out{rope_ref(r), std::vector<double>(static_cast<size_t>(d))};
  for (int64_t row = 0; row < r.tokens * r.heads; ++row) {
    const auto w = [&](int64_t j) { return element_at(p.norm.weight, r.dtype, j); };
    const auto x = [&](int64_t j) { return element_at(p.x, r.dtype, row / r.heads * p.x_stride + row % r.heads * d + j); };
    double* g = &out.dx[static_cast<size_t>(row * d)];
    double square = 0, dot = 0;
    for (int64_t j = 0; j < d; ++j) square += x(j) * x(j), dot += g[j] * w(j) * x(j);
    const double rstd = 1 / std::sqrt(square / static_cast<double>(d) + p.norm.eps), mean = rstd * dot / static_cast<double>(d);
    for (int64_t j = 0; j < d; ++j) {
      out.dw[static_cast<size_t>(j)] += g[j] * x(j) * rstd;
      g[j] = rstd * (g[j] * w(j) - x(j) * rstd * mean);
    }
  }
  return out;
}

}  // namespace halftone
