#pragma once
#include "halftone/fused/simd.h"
#include "halftone/fused/swiglu.h"

namespace halftone::HALFTONE_SIMD {

[[gnu::flatten]] inline void swiglu_forward_rows(const SwigluForward& p, int64_t begin, int64_t end) {
  with_float(p.dtype, [&](auto type) {
    using X = typename decltype(type)::type;
    Vec largest = zero();
    for (int64_t t = begin; t < end; ++t) {
      const auto* g = static_cast<const X*>(p.g) + t * p.g_stride;
      const auto* u = static_cast<const X*>(p.u) + t * p.u_stride;
      auto* h = static_cast<X*>(p.h) + t * p.h_stride;
      each_vector(0, p.cols, [&](int64_t i, auto lanes) {
        const Vec gate = load(g + i, lanes);
        store(h + i, gate * sigmoid(gate) * load(u + i, lanes), lanes);
      });
      if (p.amax) each_vector(0, p.cols, [&](int64_t i, auto lanes) { largest = max_abs(largest, load(h + i, lanes)); });
    }
    if (p.amax) raise_to(p.amax, largest);
  });
}

[[gnu::flatten]] inline void swiglu_backward_rows(const SwigluBackward& p, int64_t begin, int64_t end) {
  with_float(p.dtype, [&](auto type) {
    using X = typename decltype(type)::type;
    const Vec one = set1(1.0f);
    Vec largest_g = zero(), largest_u = zero();
    for (int64_t t = begin; t < end; ++t) {
      const auto* g = static_cast<const X*>(p.g) + t * p.g_stride;
      const auto* u = static_cast<const X*>(p.u) + t * p.u_stride;
      const auto* dh = static_cast<const X*>(p.dh) + t * p.dh_stride;
      auto* dg = static_cast<X*>(p.dg) + t * p.dg_stride;
      auto* du = static_cast<X*>(p.du) + t * p.du_stride;
      auto* h = p.h ? static_cast<X*>(p.h) + t * p.h_stride : nullptr;
      each_vector(0, p.cols, [&](int64_t i, auto lanes) {
        const Vec gate = load(g + i, lanes), up = load(u + i, lanes), grad = load(dh + i, lanes);
        const Vec s = sigmoid(gate), silu = gate * s;
        store(dg + i, grad * up * (s * fma(gate, one - s, one)), lanes);
        store(du + i, grad * silu, lanes);
        if (h) store(h + i, silu * up, lanes);
      });
      if (!p.amax) continue;
      each_vector(0, p.cols, [&](int64_t i, auto lanes) {
        largest_g = max_abs(largest_g, load(dg + i, lanes)), largest_u = max_abs(largest_u, load(du + i, lanes));
      });
    }
    if (p.amax) raise_to(p.amax, largest_g), raise_to(p.amax + 1, largest_u);
  });
}

}  // namespace halftone::HALFTONE_SIMD
