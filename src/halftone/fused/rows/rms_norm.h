#pragma once
#include "halftone/fused/rms_norm.h"
#include "halftone/fused/simd.h"

namespace halftone::HALFTONE_SIMD {

// Calls body(stream type, type): f32 with f32 or bf16, or both bf16.
template <class Body>
void with_stream(DType stream, DType type, Body body) {
  with_float(type, [&](auto x) {
    if (stream == DType::f32) {
      body(Type<float>{}, x);
    } else if constexpr (!std::is_same_v<typename decltype(x)::type, float>) {
      body(x, x);
    }
  });
}

template <class Body>
void with_bool(bool value, Body body) {
  if (value) {
    body(std::true_type{});
  } else {
    body(std::false_type{});
  }
}

inline Vec sum4(const Vec (&a)[4]) { return (a[0] + a[1]) + (a[2] + a[3]); }

template <class S, class X, class W, bool kBranch>
void rms_norm_forward_typed(const RmsNormForward& p, int64_t begin, int64_t end) {
  const auto* weight = static_cast<const W*>(p.weight);
  Vec largest = zero();
  for (int64_t t = begin; t < end; ++t) {
    const auto* x = static_cast<const S*>(p.x) + t * p.x_stride;
    auto* y = static_cast<X*>(p.y) + t * p.y_stride;
    Vec square[4] = {zero(), zero(), zero(), zero()};
    if constexpr (kBranch) {
      const auto* branch = static_cast<const X*>(p.branch) + t * p.branch_stride;
      auto* sum = static_cast<S*>(p.sum) + t * p.sum_stride;
      each_vector_slots(p.cols, [&](int64_t i, auto lanes, int slot) {
        store(sum + i, load(x + i, lanes) + load(branch + i, lanes), lanes);
        const Vec s = load(sum + i, lanes);  // rounded, as backward will read it
        square[slot] = fma(s, s, square[slot]);
      });
      x = sum;
    } else {
      each_vector_slots(p.cols, [&](int64_t i, auto lanes, int slot) {
        const Vec v = load(x + i, lanes);
        square[slot] = fma(v, v, square[slot]);
      });
    }
    const float rstd = 1.0f / __builtin_sqrtf(reduce_add(sum4(square)) / static_cast<float>(p.cols) + p.eps);
    if (p.rstd) p.rstd[t] = rstd;
    const Vec scale = set1(rstd);
    each_vector(0, p.cols, [&](int64_t i, auto lanes) { store(y + i, load(x + i, lanes) * scale * load(weight + i, lanes), lanes); });
    if (p.amax) each_vector(0, p.cols, [&](int64_t i, auto lanes) { largest = max_abs(largest, load(y + i, lanes)); });
  }
  if (p.amax) raise_to(p.amax, largest);
}

[[gnu::flatten]] inline void rms_norm_forward_rows(const RmsNormForward& p, int64_t begin, int64_t end) {
  with_stream(p.stream_dtype, p.dtype, [&](auto s, auto x) {
    with_float(p.weight_dtype, [&](auto w) {
      using S = typename decltype(s)::type;
      using X = typename decltype(x)::type;
      using W = typename decltype(w)::type;
      if (p.branch) {
        rms_norm_forward_typed<S, X, W, true>(p, begin, end);
      } else {
        rms_norm_forward_typed<S, X, W, false>(p, begin, end);
      }
    });
  });
}

// dw [D] accumulates the rows [begin, end).
template <class S, class X, class W, bool kSum, bool kBranch>
void rms_norm_backward_typed(const RmsNormBackward& p, int64_t begin, int64_t end, float* dw) {
  const auto* weight = static_cast<const W*>(p.weight);
  for (int64_t t = begin; t < end; ++t) {
    const auto* x = static_cast<const S*>(p.x) + t * p.x_stride;
    const auto* dy = static_cast<const X*>(p.dy) + t * p.dy_stride;
    auto* dx = static_cast<S*>(p.dx) + t * p.dx_stride;
    const Vec rstd = set1(p.rstd[t]);
    Vec dot[4] = {zero(), zero(), zero(), zero()};
    each_vector_slots(p.cols, [&](int64_t i, auto lanes, int slot) {
      const Vec product = load(dy + i, lanes) * (load(x + i, lanes) * rstd);
      dot[slot] = fma(product, load(weight + i, lanes), dot[slot]);
      store(dw + i, load(dw + i, lanes) + product, lanes);
    });
    const Vec mean = set1(reduce_add(sum4(dot)) / static_cast<float>(p.cols));
    each_vector(0, p.cols, [&](int64_t i, auto lanes) {
      const Vec g = load(dy + i, lanes) * load(weight + i, lanes);
      Vec result = rstd * neg_fma(load(x + i, lanes) * rstd, mean, g);
      if constexpr (kSum) result = result + load(static_cast<const S*>(p.d_sum) + t * p.d_sum_stride + i, lanes);
      store(dx + i, result, lanes);
      if constexpr (kBranch) store(static_cast<X*>(p.d_branch) + t * p.d_branch_stride + i, result, lanes);
    });
  }
}

[[gnu::flatten]] inline void rms_norm_backward_rows(const RmsNormBackward& p, int64_t begin, int64_t end, float* dw) {
  with_stream(p.stream_dtype, p.dtype, [&](auto s, auto x) {
    with_float(p.weight_dtype, [&](auto w) {
      with_bool(p.d_sum != nullptr, [&](auto sum) {
        with_bool(p.d_branch != nullptr, [&](auto branch) {
          rms_norm_backward_typed<typename decltype(s)::type, typename decltype(x)::type, typename decltype(w)::type, decltype(sum)::value,
                                  decltype(branch)::value>(p, begin, end, dw);
        });
      });
    });
  });
}

}  // namespace halftone::HALFTONE_SIMD
