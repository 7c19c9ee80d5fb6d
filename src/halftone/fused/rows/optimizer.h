#pragma once
#include "halftone/fused/kernels.h"
#include "halftone/fused/simd.h"

namespace halftone::HALFTONE_SIMD {

// Upper halves of bits + (0xFFFF - noise): rounds up if noise < lower half. Exponent 255: truncated only, NaN made quiet.
HALFTONE_INLINE Simd::I stochastic_bits(Simd::F a, const uint16_t* noise) {
  const Simd::I u = Simd::bits(a), up = Simd::addi(u, Simd::subi(Simd::seti(0xFFFF), Simd::load_u16i(noise)));
  const Simd::I kept = Simd::or_where(Simd::is_nan(a), u, Simd::seti(0x400000), u);
  return Simd::shr<16>(Simd::select(Simd::lt(Simd::seti(0x7F7FFFFF), Simd::bits(Simd::abs(a))), kept, up));
}
template <std::same_as<Vec> V>
void store_stochastic(bf16* p, V a, const uint16_t* noise, All) {
  if constexpr (kParts == 1) {
    Simd::store_halves(p, stochastic_bits(a.lo, noise));
  } else {
    Simd::store_halves(p, stochastic_bits(a.lo, noise), stochastic_bits(a.hi, noise + 8));
  }
}
inline void store_stochastic(bf16* p, Vec a, const uint16_t* noise, First lanes) {
  bf16 rounded[kLanes];
  store_stochastic(rounded, a, noise, All{});
  for (int64_t i = 0; i < lanes.n; ++i) p[i] = rounded[i];
}
template <class Lanes>
void store_stochastic(float* p, Vec a, const uint16_t*, Lanes lanes) {
  store(p, a, lanes);
}

template <class P, class S, class G, OptimizerRule kRule>
void optimizer_typed(const OptimizerStep& p, const OptimizerBlock& b) {
  auto* param = static_cast<P*>(p.param) + b.offset;
  auto* grad = static_cast<G*>(p.grad) + b.offset;
  auto* m = p.m ? static_cast<S*>(p.m) + b.offset : nullptr;
  auto* v = p.v ? static_cast<S*>(p.v) + b.offset : nullptr;
  auto* copy = p.compute_copy ? p.compute_copy + b.offset : nullptr;
  const Vec factor = set1(b.grad_factor), decay = set1(b.decay), step_size = set1(b.step_size), eps = set1(b.eps);
  const Vec beta1 = set1(b.beta1), rest1 = set1(b.one_minus_beta1), beta2 = set1(b.beta2), rest2 = set1(b.one_minus_beta2);
  const Vec denominator_scale = set1(b.denominator_scale);
  each_vector(0, b.count, [&](int64_t i, auto lanes) {
    Vec g = load(grad + i, lanes) * factor, x = load(param + i, lanes);
    if constexpr (kRule == OptimizerRule::adamw) {
      x = neg_fma(decay, x, x);
    } else {
      g = fma(decay, x, g);
    }
    if constexpr (kRule == OptimizerRule::sgd) {
      if (m) {
        g = fma(beta1, load(m + i, lanes), g);
        store(m + i, g, lanes);
      }
      x = neg_fma(step_size, g, x);
    } else {
      const Vec first = fma(beta1, load(m + i, lanes), rest1 * g), second = fma(beta2, load(v + i, lanes), rest2 * g * g);
      store(m + i, first, lanes);
      store(v + i, second, lanes);
      x = neg_fma(step_size, first / fma(sqrt(second), denominator_scale, eps), x);
    }
    if (b.noise) {
      store_stochastic(param + i, x, b.noise + i, lanes);
    } else {
      store(param + i, x, lanes);
    }
    if (copy) store(copy + i, x, lanes);
    if (p.zero_grad) store(grad + i, zero(), lanes);
  });
}

[[gnu::flatten]] inline void optimizer_block(const OptimizerStep& p, const OptimizerBlock& b) {
  with_float(p.param_dtype, [&](auto param) {
    with_float(p.state_dtype, [&](auto state) {
      with_float(p.grad_dtype, [&](auto grad) {
        using P = typename decltype(param)::type;
        using S = typename decltype(state)::type;
        using G = typename decltype(grad)::type;
        switch (p.rule) {
          case OptimizerRule::adamw:
            return optimizer_typed<P, S, G, OptimizerRule::adamw>(p, b);
          case OptimizerRule::adam:
            return optimizer_typed<P, S, G, OptimizerRule::adam>(p, b);
          case OptimizerRule::sgd:
            return optimizer_typed<P, S, G, OptimizerRule::sgd>(p, b);
        }
      });
    });
  });
}

}  // namespace halftone::HALFTONE_SIMD
