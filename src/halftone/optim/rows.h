#pragma once
#include "halftone/fused/simd.h"
#include "halftone/optim/step.h"

namespace halftone {

// Piece of an optimizer segment.
struct OptimizerBlock {
  const OptimizerSegment* segment;
  int64_t begin, count;  // elements, from the segment's first
  float grad_factor = 1;
  const uint16_t* noise = nullptr;  // [count rounded up to 16] draws for stochastic rounding, or null
};

}  // namespace halftone

// Included once per instruction set.
namespace halftone::HALFTONE_SIMD {

// A rule's arithmetic with coefficients.
HALFTONE_INLINE Vec operator*(float a, Vec b) { return set1(a) * b; }
HALFTONE_INLINE Vec fma(float a, Vec b, Vec c) { return fma(set1(a), b, c); }
HALFTONE_INLINE Vec fma(Vec a, float b, float c) { return fma(a, set1(b), set1(c)); }
HALFTONE_INLINE Vec neg_fma(float a, Vec b, Vec c) { return neg_fma(set1(a), b, c); }

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

template <class P, class S, class G, class Rule>
void optimizer_typed(const OptimizerStep& p, const OptimizerBlock& b, const Rule rule) {
  constexpr size_t kStates = Rule::kStates.size();
  const int64_t offset = b.segment->offset + b.begin;
  auto* param = static_cast<P*>(p.param) + offset;
  auto* grad = static_cast<G*>(p.grad) + offset;
  auto* copy = p.compute_copy ? p.compute_copy + offset : nullptr;
  S* states[kStates];
  for (size_t k = 0; k < kStates; ++k) states[k] = p.states[k] ? static_cast<S*>(p.states[k]) + offset : nullptr;
  const Vec factor = set1(b.grad_factor);
  each_vector(0, b.count, [&](int64_t i, auto lanes) {
    const Vec g = load(grad + i, lanes) * factor;
    Vec x = load(param + i, lanes), s[kStates];
    for (size_t k = 0; k < kStates; ++k) s[k] = states[k] ? load(states[k] + i, lanes) : zero();
    rule.update(x, g, s);
    for (size_t k = 0; k < kStates; ++k)
      if (states[k]) store(states[k] + i, s[k], lanes);
    if (b.noise) {
      store_stochastic(param + i, x, b.noise + i, lanes);
    } else {
      store(param + i, x, lanes);
    }
    if (copy) store(copy + i, x, lanes);
    if (p.zero_grad) store(grad + i, zero(), lanes);
  });
}

[[gnu::flatten]] void optimizer_block(const OptimizerStep& p, const OptimizerBlock& b) {
  with_float(p.param_dtype, [&](auto param) {
    with_float(p.state_dtype, [&](auto state) {
      with_float(p.grad_dtype, [&](auto grad) {
        optim::Optimizers::with(p.optimizer, [&]<class Rule>(std::type_identity<Rule>) {
          using P = typename decltype(param)::type;
          using S = typename decltype(state)::type;
          using G = typename decltype(grad)::type;
          optimizer_typed<P, S, G>(p, b, Rule::at(p.options, b.segment->lr, b.segment->weight_decay, static_cast<double>(p.step)));
        });
      });
    });
  });
}

}  // namespace halftone::HALFTONE_SIMD
