#pragma once
#include "halftone/fused/kernels.h"
#include "halftone/fused/simd.h"

namespace halftone::HALFTONE_SIMD {

#if defined(__AVX512F__)
// The upper halves of bits + (0xFFFF - noise): goes up when noise < the lower half. Exponent 255: only truncated.
inline __m256i round_stochastic(Vec a, const uint16_t* noise) {
  const __m512i u = _mm512_castps_si512(a.v), exponent = _mm512_set1_epi32(0x7F800000);
  const __m512i draw = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(noise)));
  const __mmask16 special = _mm512_cmpeq_epi32_mask(_mm512_and_si512(u, exponent), exponent);
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  const __m512i up = _mm512_add_epi32(u, _mm512_sub_epi32(_mm512_set1_epi32(0xFFFF), draw));
  const __m512i kept = _mm512_mask_or_epi32(u, nan, u, _mm512_set1_epi32(0x400000));
  return _mm512_maskz_cvtepi32_epi16(0xFFFF, _mm512_srli_epi32(_mm512_mask_mov_epi32(up, special, kept), 16));
}
#else
inline __m256i stochastic_bits(__m256 a, const uint16_t* noise) {
  const __m256i u = _mm256_castps_si256(a), exponent = _mm256_set1_epi32(0x7F800000);
  const __m256i draw = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(noise)));
  const __m256i special = _mm256_cmpeq_epi32(_mm256_and_si256(u, exponent), exponent);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  const __m256i up = _mm256_add_epi32(u, _mm256_sub_epi32(_mm256_set1_epi32(0xFFFF), draw));
  const __m256i kept = _mm256_or_si256(u, _mm256_and_si256(nan, _mm256_set1_epi32(0x400000)));
  return _mm256_srli_epi32(_mm256_blendv_epi8(up, kept, special), 16);
}
// The upper halves of bits + (0xFFFF - noise): goes up when noise < the lower half. Exponent 255: only truncated.
inline __m256i round_stochastic(Vec a, const uint16_t* noise) {
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(stochastic_bits(a.lo, noise), stochastic_bits(a.hi, noise + 8)), 0xD8);
}
#endif

inline void store_stochastic(bf16* p, Vec a, const uint16_t* noise, All) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), round_stochastic(a, noise));
}
inline void store_stochastic(bf16* p, Vec a, const uint16_t* noise, First lanes) {
  alignas(32) uint16_t bits[kLanes];
  _mm256_store_si256(reinterpret_cast<__m256i*>(bits), round_stochastic(a, noise));
  for (int64_t i = 0; i < lanes.n; ++i) p[i].bits = bits[i];
}
inline void store_stochastic(float* p, Vec a, const uint16_t*, All) { store(p, a); }
inline void store_stochastic(float* p, Vec a, const uint16_t*, First lanes) { store(p, a, lanes.n); }

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
