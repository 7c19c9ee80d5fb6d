#pragma once
#include <array>

#include "halftone/attention/causal_operand.h"
#include "halftone/base/simd.h"

namespace halftone::attention {
namespace {

// round(128 (2^(f / 128) - 1)), f = 0 .. 127, by repeated multiplication in fp64: the nearest bf16 mantissas.
constexpr std::array<uint8_t, 128> mantissas() {
  std::array<uint8_t, 128> table{};
  double power = 1;
  for (int f = 0; f < 128; ++f, power *= 1.0054299011128028) table[static_cast<size_t>(f)] = static_cast<uint8_t>(128 * (power - 1) + 0.5);
  return table;
}
alignas(64) constexpr std::array<uint8_t, 128> kMantissa = mantissas();

// bf16 operands on AVX512-BF16 and AVX512-VBMI, shared by the tile and the vdpbf16ps implementations.
//
// bf16 exponentials cost little more than their rounding. Let x = 128 log2(y) + 128 * 127 (bias of the exponent field) +
// 1.5 * 2^23 (moves the integer part into the low bits of the fp32 sum). The low sixteen bits of x are then the bf16 number
// 2^n (1 + f / 128), n + f / 128 = log2 y to within 1/256; a 128-byte table maps f to the mantissa of 2^(f / 128).
// Both roundings together have an error of 0.22% rms (0.16% for rounding to bf16 alone) and no bias. FMA, max and
// conversion run at half rate beside active tiles; this scheme needs only one of them per exponential.
struct Bf16Operand : Simd {
  using T = uint16_t;  // bf16 bits
  static constexpr int kPair = 2, kAlign = 32;
  static constexpr float kMagic = 12582912.0f, kUnit = 128, kOne = kMagic + 127 * 128, kLowest = kMagic;
  static F whole(F x) { return sub(add(x, set(kMagic)), set(kMagic)); }

  static F load_operand(const T* p) { return widen(p); }
  static void narrow(uint16_t* bf16_bits, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(bf16_bits), (__m256i)_mm512_cvtneps_pbh(x));  // NaN stays quiet NaN here too
  }
  // c + |q0| k[0] + |q1| k[1] for the pairs of sixteen columns.
  static F abs_dot(F c, const uint32_t* q, const float* k) {
    const I pairs = loadi(q);
    c = fma(abs(low(pairs)), set(k[0]), c);
    return fma(abs(high(pairs)), set(k[1]), c);
  }

  // The two bf16 of each dword, as fp32.
  static F low(I pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
  static F high(I pairs) { return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000)))); }
  // Dwords (low half of a, low half of b), and of the high halves.
  static I join_low(F a, F b) {
    return _mm512_mask_shuffle_epi8(_mm512_castps_si512(a), 0xCCCCCCCCCCCCCCCC, _mm512_castps_si512(b),
                                    _mm512_set4_epi32(0x0D0C0D0C, 0x09080908, 0x05040504, 0x01000100));
  }
  static I join_high(F a, F b) {
    return _mm512_mask_shuffle_epi8(_mm512_castps_si512(b), 0x3333333333333333, _mm512_castps_si512(a),
                                    _mm512_set4_epi32(0x0F0E0F0E, 0x0B0A0B0A, 0x07060706, 0x03020302));
  }
  // Rounds to bf16 (ties away from zero) and joins.
  static I pair(F a, F b) {
    const I half = _mm512_set1_epi32(0x8000);
    return join_high(_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), half)),
                     _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(b), half)));
  }
  // bf16 powers of the exponents in the low halves of a and b.
  static I powers(F a, F b) {
    const I linear = join_low(a, b);
    const I mantissa = _mm512_permutex2var_epi8(loadi(kMantissa.data()), linear, loadi(kMantissa.data() + 64));
    return _mm512_ternarylogic_epi32(_mm512_set1_epi32(0x007F007F), mantissa, linear, 0xCA);  // mask ? mantissa : linear
  }

  template <bool kMasked>
  static void weights(uint32_t* dst, int64_t /*ld*/, const F (&x)[2], int key, const int32_t* lo, const int32_t* hi, F (&sums)[2]) {
    I y = powers(x[0], x[1]);
    if constexpr (kMasked) y = pair_keep(y, seen(key, lo, hi), seen(key + 1, lo, hi));
    store(dst, y);
    sums[0] = add(sums[0], low(y));
    sums[1] = add(sums[1], high(y));
  }

  // A rows join queries i and i + 16 of each 32; pack_rows is called accordingly (kApart = 16).
  template <bool kMasked>
  static void gradients(T* prob, T* ds, uint32_t* pairs, const F (&x)[4], const float* dp, int key, const int32_t* lo, const int32_t* hi) {
    I rows[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      I y = powers(x[2 * i], x[2 * i + 1]);
      if constexpr (kMasked) y = pair_keep(y, seen(key + i, lo, hi), seen(key + i, lo + 16, hi + 16));
      store(prob + i * kAlign, y);
      rows[i] = pair(mul(low(y), load(dp + i * kAlign)), mul(high(y), load(dp + i * kAlign + 16)));
      store(ds + i * kAlign, rows[i]);
    }
    store(pairs, _mm512_unpacklo_epi16(rows[0], rows[1]));
    store(pairs + 16, _mm512_unpackhi_epi16(rows[0], rows[1]));
  }
  // Query at a position in `pairs`.
  static constexpr int column_of(int place) { return place % 16 / 4 * 4 + place % 4 / 2 + place % 2 * 16 + place / 16 * 2; }

  // Dwords (a[c], b[c]) of 32 columns in order.
  static void interleave(uint32_t* dst, const T* row0, const T* row1) {
    const I a = loadi(row0), b = loadi(row1);
    const I lo = _mm512_unpacklo_epi16(a, b), hi = _mm512_unpackhi_epi16(a, b);
    store(dst, _mm512_permutex2var_epi64(lo, _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0), hi));
    store(dst + 16, _mm512_permutex2var_epi64(lo, _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4), hi));
  }

 private:
  static __mmask16 seen(int key, const int32_t* lo, const int32_t* hi) {
    const I k = _mm512_set1_epi32(key);
    return _mm512_cmple_epi32_mask(loadi(lo), k) & _mm512_cmple_epi32_mask(k, loadi(hi));
  }
  static I pair_keep(I pairs, __mmask16 low_seen, __mmask16 high_seen) {
    const I low_part = _mm512_maskz_mov_epi32(low_seen, pairs), high_part = _mm512_maskz_mov_epi32(high_seen, pairs);
    return _mm512_mask_blend_epi16(0xAAAAAAAA, low_part, high_part);
  }
};

}  // namespace
}  // namespace halftone::attention
