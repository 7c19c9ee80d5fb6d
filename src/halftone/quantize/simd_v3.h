#pragma once
#include <immintrin.h>

#include "halftone/base/dtype.h"

// Internal: vectors of one instruction set for the leaf loops. In an unnamed namespace: no instantiation over them is shared
// between files of different instruction sets.
namespace halftone::quantize {
namespace {

struct Avx2 {
  using F = __m256;
  using I = __m256i;
  static constexpr int64_t kLanes = 8, kBytes = 32;

  template <class T>
  struct Lane;

  static I raw(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static __m128i half(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
  static I zero() { return _mm256_setzero_si256(); }
  static F set(float x) { return _mm256_set1_ps(x); }
  static I seti(uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
  static I iota() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
  static F loadf(const float* p) { return _mm256_loadu_ps(p); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static F load(const bf16* p) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half(p)), 16)); }
  static F load_u16(const uint16_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(half(p))); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F floor(F a) { return _mm256_floor_ps(a); }
  static F one_if_greater(F a, F b) { return _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ), set(1.0f)); }
  static I rint(F a) { return _mm256_cvtps_epi32(a); }
  static F from_int(I a) { return _mm256_cvtepi32_ps(a); }
  static I bits(F a) { return _mm256_castps_si256(a); }
  static F floats(I a) { return _mm256_castsi256_ps(a); }
  static I and_(I a, I b) { return _mm256_and_si256(a, b); }
  static I or_(I a, I b) { return _mm256_or_si256(a, b); }
  static I xor_(I a, I b) { return _mm256_xor_si256(a, b); }
  static I addi(I a, I b) { return _mm256_add_epi32(a, b); }
  static I subi(I a, I b) { return _mm256_sub_epi32(a, b); }
  template <int kBits>
  static I shr(I a) {
    return _mm256_srli_epi32(a, kBits);
  }
  static I less(I a, I b) { return _mm256_cmpgt_epi32(b, a); }  // both are non-negative here
  static I blend(I no, I yes, I mask) { return _mm256_blendv_epi8(no, yes, mask); }

  static I in_order(I packed) { return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)); }
  static void store(void* out, I v) { _mm256_storeu_si256(static_cast<__m256i*>(out), v); }
  static void store_s8(int8_t* out, const I* q) {
    store(out, in_order(_mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]))));
  }
  static void store_u8(uint8_t* out, const I* q) {
    store(out, in_order(_mm256_packus_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]))));
  }
  static void store_high(bf16* out, I v) {
    const I s = _mm256_srli_epi32(v, 16), p = _mm256_permute4x64_epi64(_mm256_packus_epi32(s, s), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(p));
  }
  static void store_quads(void* out, const I* v) {
    const I low = seti(0xFF);
    const I a = or_(and_(v[0], low), _mm256_slli_epi32(and_(v[1], low), 8));
    store(out, or_(or_(a, _mm256_slli_epi32(and_(v[2], low), 16)), _mm256_slli_epi32(v[3], 24)));
  }

  // Decisions as masks, chosen by.
  using M = __m256i;
  static M lt(I a, I b) { return _mm256_cmpgt_epi32(b, a); }  // signed
  static M gt(F a, F b) { return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_GT_OQ)); }
  static I select(M m, I yes, I no) { return _mm256_blendv_epi8(no, yes, m); }
  static F selectf(M m, F yes, F no) { return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(m)); }
  static I one_if(M m) { return _mm256_srli_epi32(m, 31); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static I maxi(I a, I b) { return _mm256_max_epi32(a, b); }
  static I mini(I a, I b) { return _mm256_min_epi32(a, b); }
  template <int kBits>
  static I shl(I a) {
    return _mm256_slli_epi32(a, kBits);
  }
  static I loadi(const void* p) { return raw(p); }
  static I load_u16i(const uint16_t* p) { return _mm256_cvtepu16_epi32(half(p)); }
  static I load_u8i(const uint8_t* p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))); }
  static I load_s8i(const uint8_t* p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))); }
  static void storef(float* p, F a) { _mm256_storeu_ps(p, a); }
  static I or_masked(I a, I b, I mask) { return or_(a, and_(b, mask)); }
  // Lane i: the largest lane of v[i]; kLanes vectors.
  static I max_of_each(const I* v) {
    I a[4], b[2];
    for (int i = 0; i < 4; ++i) a[i] = maxi(_mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]), _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
    for (int i = 0; i < 2; ++i) b[i] = maxi(_mm256_unpacklo_epi64(a[2 * i], a[2 * i + 1]), _mm256_unpackhi_epi64(a[2 * i], a[2 * i + 1]));
    return maxi(_mm256_permute2x128_si256(b[0], b[1], 0x20), _mm256_permute2x128_si256(b[0], b[1], 0x31));
  }
  static I interleave_low(I a, I b) { return _mm256_unpacklo_epi8(a, b); }
  static I interleave_high(I a, I b) { return _mm256_unpackhi_epi8(a, b); }
  // 16-byte lanes of v to out, out + step, ...
  static void store_lanes(uint8_t* out, int64_t step, I v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(v));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + step), _mm256_extracti128_si256(v, 1));
  }

  static void mul_wide(I a, uint32_t factor, I& lo, I& hi) {
    const I m = seti(factor);
    const I even = _mm256_mul_epu32(a, m), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), m);
    lo = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
    hi = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
  }
  static void store_transposed(uint16_t* out, const I* c) {
    const I ab_lo = _mm256_unpacklo_epi32(c[0], c[1]), ab_hi = _mm256_unpackhi_epi32(c[0], c[1]);
    const I cd_lo = _mm256_unpacklo_epi32(c[2], c[3]), cd_hi = _mm256_unpackhi_epi32(c[2], c[3]);
    // Half h of r[j] holds the words of counter 4 h + j.
    const I r[4] = {_mm256_unpacklo_epi64(ab_lo, cd_lo), _mm256_unpackhi_epi64(ab_lo, cd_lo), _mm256_unpacklo_epi64(ab_hi, cd_hi),
                    _mm256_unpackhi_epi64(ab_hi, cd_hi)};
    auto* p = reinterpret_cast<__m128i*>(out);
    for (int j = 0; j < 4; ++j) {
      _mm_storeu_si128(p + j, _mm256_castsi256_si128(r[j]));
      _mm_storeu_si128(p + 4 + j, _mm256_extracti128_si256(r[j], 1));
    }
  }
};

template <>
struct Avx2::Lane<float> {
  static __m256i abs_bits(const float* p) { return and_(raw(p), seti(0x7FFFFFFFu)); }
  static __m256i max(__m256i a, __m256i b) { return _mm256_max_epu32(a, b); }
  static void max_into(uint32_t* p, __m256i a) { store(p, _mm256_max_epu32(raw(p), a)); }
  static uint32_t reduce(__m256i a) {
    alignas(32) uint32_t lane[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lane), a);
    uint32_t m = 0;
    for (const uint32_t x : lane) m = x > m ? x : m;
    return m;
  }
};

template <>
struct Avx2::Lane<bf16> {
  static __m256i abs_bits(const bf16* p) { return and_(raw(p), _mm256_set1_epi16(0x7FFF)); }
  static __m256i max(__m256i a, __m256i b) { return _mm256_max_epu16(a, b); }
  static void max_into(uint32_t* p, __m256i a) {
    Lane<float>::max_into(p, _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(a)), 16));
    Lane<float>::max_into(p + 8, _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_extracti128_si256(a, 1)), 16));
  }
  static uint32_t reduce(__m256i a) { return Lane<float>::reduce(_mm256_max_epu32(and_(a, seti(0xFFFF)), _mm256_srli_epi32(a, 16))); }
};

}  // namespace
}  // namespace halftone::quantize
