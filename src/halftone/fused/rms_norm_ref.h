#pragma once
#include <cmath>

#include "halftone/fused/ref.h"
#include "halftone/fused/rms_norm.h"

namespace halftone {

struct RmsNormForwardRef {
  std::vector<double> sum, y, rstd;  // [T, D], [T, D], [T]
};
inline RmsNormForwardRef rms_norm_forward_ref(const RmsNormForward& p) {
  RmsNormForwardRef out;
  for (int64_t t = 0; t < p.rows; ++t) {
    double square = 0;
    std::vector<double> row;
    for (int64_t i = 0; i < p.cols; ++i) {
      double v = element_at(p.x, p.stream_dtype, t * p.x_stride + i);
      if (p.branch) {
        const float s = static_cast<float>(v + element_at(p.branch, p.dtype, t * p.branch_stride + i));
        v = p.stream_dtype == DType::bf16 ? to_float(bf16(s)) : s;
      }
      row.push_back(v);
      square += v * v;
    }
    const double rstd = 1 / std::sqrt(square / static_cast<double>(p.cols) + p.eps);
    out.rstd.push_back(rstd);
    for (int64_t i = 0; i < p.cols; ++i) out.y.push_back(row[static_cast<size_t>(i)] * rstd * element_at(p.weight, p.weight_dtype, i));
    out.sum.insert(out.sum.end(), row.begin(), row.end());
  }
  return out;
}

struct RmsNormBackwardRef {
  std::vector<double> dx, dw;  // [T, D], [D]: the gradient only, without the previous contents of dw
};
inline RmsNormBackwardRef rms_norm_backward_ref(const RmsNormBackward& p) {
  RmsNormBackwardRef out{{}, std::vector<double>(static_cast<size_t>(p.cols))};
  for (int64_t t = 0; t < p.rows; ++t) {
    const auto x = [&](int64_t i) { return element_at(p.x, p.stream_dtype, t * p.x_stride + i) * p.rstd[t]; };
    const auto dy = [&](int64_t i) { return element_at(p.dy, p.dtype, t * p.dy_stride + i); };
    const auto g = [&](int64_t i) { return dy(i) * element_at(p.weight, p.weight_dtype, i); };
    double dot = 0;
    for (int64_t i = 0; i < p.cols; ++i) {
      dot += g(i) * x(i);
      out.dw[static_cast<size_t>(i)] += dy(i) * x(i);
    }
    for (int64_t i = 0; i < p.cols; ++i) {
      const double before = p.d_sum ? element_at(p.d_sum, p.stream_dtype, t * p.d_sum_stride + i) : 0;
      out.dx.push_back(before + p.rstd[t] * (g(i) - x(i) * dot / static_cast<double>(p.cols)));
    }
  }
  return out;
}

}  // namespace halftone
