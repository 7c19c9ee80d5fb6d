#pragma once
#include "halftone/attention/causal_operand.h"
#include "halftone/attention/vec_avx512.h"

namespace halftone::attention {
namespace {

// bf16 operands on AVX512-BF16: shared by the tile and the vdpbf16ps implementations.
struct Bf16Operand : Vec512 {
  using T = uint16_t;  // bf16 bits
  static constexpr int kPair = 2, kAlign = 32;
  static constexpr bool kPrecise = false;  // probabilities are rounded to bf16 anyway

  // Dword i: a[i] in the low half, b[i] in the high half.
  static U pair(F a, F b) {
    const U order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2,
                                     17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, row(a, b));
  }
  // Elements 0..15 from a, 16..31 from b.
  static U row(F a, F b) { return (U)_mm512_cvtne2ps_pbh(b, a); }

  // Rows r and r + 1 of a B operand, sixteen columns.
  static void store_pair(uint32_t* dst, int64_t /*ld*/, F row0, F row1) { store_u(dst, pair(row0, row1)); }
  static F load_operand(const T* p) { return widen(p); }
  // c + |q0| k[0] + |q1| k[1] for the pairs of sixteen columns.
  static F abs_dot(F c, const uint32_t* q, const float* k) {
    const U pairs = load_u(q);
    c = fma(abs(_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))), set1(k[0]), c);
    return fma(_mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(0x7FFF0000))), set1(k[1]), c);
  }

  // Dwords (row0[c], row1[c]) of 32 columns, in an order of the columns that costs nothing: see column_of.
  static void pair_rows(uint32_t* dst, U row0, U row1) {
    store_u(dst, _mm512_unpacklo_epi16(row0, row1));
    store_u(dst + 16, _mm512_unpackhi_epi16(row0, row1));
  }
  // Two rows of 32 columns as A rows; where `pairs` is given also as a B operand whose columns pair_rows orders.
  static void store_rows(T* dst, int64_t ld, const F (&x)[4], uint32_t* pairs) {
    const U row0 = row(x[0], x[1]), row1 = row(x[2], x[3]);
    store_u(dst, row0);
    store_u(dst + ld, row1);
    if (pairs != nullptr) pair_rows(pairs, row0, row1);
  }
  static constexpr int column_of(int place) { return place / 16 * 4 + place % 16 / 4 * 8 + place % 4; }

  // The same with the columns in order: 32 of them.
  static void interleave(uint32_t* dst, const T* row0, const T* row1) {
    const U a = load_u(row0), b = load_u(row1);
    const U lo = _mm512_unpacklo_epi16(a, b), hi = _mm512_unpackhi_epi16(a, b);
    store_u(dst, _mm512_permutex2var_epi64(lo, _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0), hi));
    store_u(dst + 16, _mm512_permutex2var_epi64(lo, _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4), hi));
  }
};

}  // namespace
}  // namespace halftone::attention
