#pragma once
#include <cmath>

#include "halftone/fused/ref.h"
#include "halftone/fused/swiglu.h"

namespace halftone {

// [T, F]
inline std::vector<double> swiglu_forward_ref(const SwigluForward& p) {
  std::vector<double> h;
  for (int64_t t = 0; t < p.rows; ++t) {
    for (int64_t i = 0; i < p.cols; ++i) {
      const double g = element_at(p.g, p.dtype, t * p.g_stride + i);
      h.push_back(g / (1 + std::exp(-g)) * element_at(p.u, p.dtype, t * p.u_stride + i));
    }
  }
  return h;
}

struct SwigluBackwardRef {
  std::vector<double> dg, du, h;  // [T, F]
};
inline SwigluBackwardRef swiglu_backward_ref(const SwigluBackward& p) {
  SwigluBackwardRef out;
  for (int64_t t = 0; t < p.rows; ++t) {
    for (int64_t i = 0; i < p.cols; ++i) {
      const double g = element_at(p.g, p.dtype, t * p.g_stride + i), u = element_at(p.u, p.dtype, t * p.u_stride + i);
      const double dh = element_at(p.dh, p.dtype, t * p.dh_stride + i), s = 1 / (1 + std::exp(-g));
      out.dg.push_back(dh * u * s * (1 + g * (1 - s)));
      out.du.push_back(dh * g * s);
      out.h.push_back(g * s * u);
    }
  }
  return out;
}

}  // namespace halftone
