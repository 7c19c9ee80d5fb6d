#pragma once
#include <immintrin.h>

#include "halftone/base/dtype.h"

// Internal: vectors of one instruction set for the leaf loops. In an unnamed namespace: no instantiation over them is shared
// between files of different instruction sets.
namespace halftone::quantize {
namespace {

struct Avx512 {
  using F = __m512;
  using I = __m512i;
  static constexpr int64_t kLanes = 16, kBytes = 64;

  template <class T>
  struct Lane;

  static I zero() { return _mm512_setzero_si512(); }
  static F set(float x) { return _mm512_set1_ps(x); }
  static I seti(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  static I iota() { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
  static F loadf(const float* p) { return _mm512_loadu_ps(p); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load(const bf16* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
  }
  static F load_u16(const uint16_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
  }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F floor(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
  static F one_if_greater(F a, F b) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), set(1.0f)); }
  static I rint(F a) { return _mm512_cvtps_epi32(a); }
  static F from_int(I a) { return _mm512_cvtepi32_ps(a); }
  static I bits(F a) { return _mm512_castps_si512(a); }
  static F floats(I a) { return _mm512_castsi512_ps(a); }
  static I and_(I a, I b) { return _mm512_and_si512(a, b); }
  static I or_(I a, I b) { return _mm512_or_si512(a, b); }
  static I xor_(I a, I b) { return _mm512_xor_si512(a, b); }
  static I addi(I a, I b) { return _mm512_add_epi32(a, b); }
  static I subi(I a, I b) { return _mm512_sub_epi32(a, b); }
  template <int kBits>
  static I shr(I a) {
    return _mm512_srli_epi32(a, kBits);
  }
  static I less(I a, I b) { return _mm512_movm_epi32(_mm512_cmplt_epi32_mask(a, b)); }
  static I blend(I no, I yes, I mask) { return _mm512_ternarylogic_epi32(mask, yes, no, 0xCA); }

  // Four vectors of int32 in order to 64 bytes in order.
  static I bytes(__m512i a, __m512i b) {
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), _mm512_packs_epi16(a, b));
  }
  static void store_s8(int8_t* out, const I* q) {
    _mm512_storeu_si512(out, bytes(_mm512_packs_epi32(q[0], q[1]), _mm512_packs_epi32(q[2], q[3])));
  }
  static void store_u8(uint8_t* out, const I* q) {
    const I order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const I p = _mm512_packus_epi16(_mm512_packs_epi32(q[0], q[1]), _mm512_packs_epi32(q[2], q[3]));
    _mm512_storeu_si512(out, _mm512_permutexvar_epi32(order, p));
  }
  static void store_high(bf16* out, I v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi32_epi16(_mm512_srli_epi32(v, 16)));
  }
  static void store(void* out, I v) { _mm512_storeu_si512(out, v); }
  static void store_quads(void* out, const I* v) {
    const I low = seti(0xFF);
    const I a = _mm512_ternarylogic_epi32(_mm512_and_si512(v[0], low), _mm512_slli_epi32(_mm512_and_si512(v[1], low), 8),
                                          _mm512_slli_epi32(_mm512_and_si512(v[2], low), 16), 0xFE);
    _mm512_storeu_si512(out, _mm512_or_si512(a, _mm512_slli_epi32(v[3], 24)));
  }

  // Decisions as masks, chosen by.
  using M = __mmask16;
  static M lt(I a, I b) { return _mm512_cmplt_epi32_mask(a, b); }  // signed
  static M gt(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
  static I select(M m, I yes, I no) { return _mm512_mask_blend_epi32(m, no, yes); }
  static F selectf(M m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }
  static I one_if(M m) { return _mm512_maskz_set1_epi32(m, 1); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static I maxi(I a, I b) { return _mm512_max_epi32(a, b); }
  static I mini(I a, I b) { return _mm512_min_epi32(a, b); }
  template <int kBits>
  static I shl(I a) {
    return _mm512_slli_epi32(a, kBits);
  }
  static I loadi(const void* p) { return _mm512_loadu_si512(p); }
  static I load_u16i(const uint16_t* p) { return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static I load_u8i(const uint8_t* p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static I load_s8i(const uint8_t* p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static void storef(float* p, F a) { _mm512_storeu_ps(p, a); }
  static I or_masked(I a, I b, I mask) { return _mm512_ternarylogic_epi32(a, b, mask, 0xF8); }  // a | (b & mask)
  // Lane i: the largest lane of v[i]; kLanes vectors.
  static I max_of_each(const I* v) {
    I a[8], b[4], c[2];
    for (int i = 0; i < 8; ++i) a[i] = maxi(_mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
    for (int i = 0; i < 4; ++i) b[i] = maxi(_mm512_unpacklo_epi64(a[2 * i], a[2 * i + 1]), _mm512_unpackhi_epi64(a[2 * i], a[2 * i + 1]));
    for (int i = 0; i < 2; ++i) {
      c[i] = maxi(_mm512_shuffle_i32x4(b[2 * i], b[2 * i + 1], 0x88), _mm512_shuffle_i32x4(b[2 * i], b[2 * i + 1], 0xDD));
    }
    return maxi(_mm512_shuffle_i32x4(c[0], c[1], 0x88), _mm512_shuffle_i32x4(c[0], c[1], 0xDD));
  }
  static I interleave_low(I a, I b) { return _mm512_unpacklo_epi8(a, b); }
  static I interleave_high(I a, I b) { return _mm512_unpackhi_epi8(a, b); }
  // 16-byte lanes of v to out, out + step, ...
  static void store_lanes(uint8_t* out, int64_t step, I v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_castsi512_si128(v));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + step), _mm512_extracti32x4_epi32(v, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 2 * step), _mm512_extracti32x4_epi32(v, 2));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 3 * step), _mm512_extracti32x4_epi32(v, 3));
  }

  static void mul_wide(I a, uint32_t factor, I& lo, I& hi) {
    const I m = seti(factor);
    const I even = _mm512_mul_epu32(a, m), odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), m);
    lo = _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
    hi = _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
  }
  static void store_transposed(uint16_t* out, const I* c) {
    const I ab_lo = _mm512_unpacklo_epi32(c[0], c[1]), ab_hi = _mm512_unpackhi_epi32(c[0], c[1]);
    const I cd_lo = _mm512_unpacklo_epi32(c[2], c[3]), cd_hi = _mm512_unpackhi_epi32(c[2], c[3]);
    // Lane l of r[j] holds the words of counter 4 l + j.
    const I r[4] = {_mm512_unpacklo_epi64(ab_lo, cd_lo), _mm512_unpackhi_epi64(ab_lo, cd_lo), _mm512_unpacklo_epi64(ab_hi, cd_hi),
                    _mm512_unpackhi_epi64(ab_hi, cd_hi)};
    auto* p = reinterpret_cast<__m128i*>(out);
    for (int j = 0; j < 4; ++j) {
      _mm_storeu_si128(p + j, _mm512_extracti32x4_epi32(r[j], 0));
      _mm_storeu_si128(p + 4 + j, _mm512_extracti32x4_epi32(r[j], 1));
      _mm_storeu_si128(p + 8 + j, _mm512_extracti32x4_epi32(r[j], 2));
      _mm_storeu_si128(p + 12 + j, _mm512_extracti32x4_epi32(r[j], 3));
    }
  }
};

template <>
struct Avx512::Lane<float> {
  static __m512i abs_bits(const float* p) { return _mm512_and_si512(_mm512_loadu_si512(p), seti(0x7FFFFFFFu)); }
  static __m512i max(__m512i a, __m512i b) { return _mm512_max_epu32(a, b); }
  static void max_into(uint32_t* p, __m512i a) { _mm512_storeu_si512(p, _mm512_max_epu32(_mm512_loadu_si512(p), a)); }
  static uint32_t reduce(__m512i a) { return _mm512_reduce_max_epu32(a); }
};

template <>
struct Avx512::Lane<bf16> {
  static __m512i abs_bits(const bf16* p) { return _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi16(0x7FFF)); }
  static __m512i max(__m512i a, __m512i b) { return _mm512_max_epu16(a, b); }
  static void max_into(uint32_t* p, __m512i a) {
    const __m512i lo = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(a)), 16);
    const __m512i hi = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(a, 1)), 16);
    Lane<float>::max_into(p, lo);
    Lane<float>::max_into(p + 16, hi);
  }
  static uint32_t reduce(__m512i a) {
    return _mm512_reduce_max_epu32(_mm512_max_epu32(_mm512_and_si512(a, seti(0xFFFF)), _mm512_srli_epi32(a, 16)));
  }
};

}  // namespace
}  // namespace halftone::quantize
