#pragma once
#include <immintrin.h>

#include <cstring>

#include "halftone/base/dtype.h"

// Internal: vectors of the including file's instruction set: AVX-512 in *_avx512.cpp, *_vnni.cpp and *_amx.cpp, else AVX2 with FMA.
// Everything is local to that file (unnamed namespace), including all instantiations over Simd: files of different instruction sets must
// never share the code of an inline function.
#if defined(__AVX512F__)
#define HALFTONE_MM(name) _mm512_##name
#else
#define HALFTONE_MM(name) _mm256_##name
#endif

namespace halftone {
namespace {

struct Simd {
  // fp32 lanes, 32-bit integer lanes, a half-width register (16 bits per lane), a lane mask.
#if defined(__AVX512F__)
  using F = __m512;
  using I = __m512i;
  using H = __m256i;
  using M = __mmask16;
#else
  using F = __m256;
  using I = __m256i;
  using H = __m128i;
  using M = __m256i;
#endif
  static constexpr int kBytes = sizeof(F), kLanes = kBytes / 4;

  static F zero() { return F{}; }
  static F set(float x) { return HALFTONE_MM(set1_ps)(x); }
  static F add(F a, F b) { return a + b; }
  static F sub(F a, F b) { return a - b; }
  static F mul(F a, F b) { return a * b; }
  static F div(F a, F b) { return a / b; }
  static F fma(F a, F b, F c) { return HALFTONE_MM(fmadd_ps)(a, b, c); }
  static F neg_fma(F a, F b, F c) { return HALFTONE_MM(fnmadd_ps)(a, b, c); }        // c - a b
  static F fma_sub_add(F a, F b, F c) { return HALFTONE_MM(fmaddsub_ps)(a, b, c); }  // even: a b - c, odd: a b + c
  static F fma_add_sub(F a, F b, F c) { return HALFTONE_MM(fmsubadd_ps)(a, b, c); }  // even: a b + c, odd: a b - c
  static F sqrt(F a) { return HALFTONE_MM(sqrt_ps)(a); }
  static F min(F a, F b) { return HALFTONE_MM(min_ps)(a, b); }  // returns b if either is NaN
  static F max(F a, F b) { return HALFTONE_MM(max_ps)(a, b); }  // returns b if either is NaN
  static F floor(F a) { return HALFTONE_MM(floor_ps)(a); }
  static F abs(F a) { return floats(bits(a) & seti(0x7FFFFFFFu)); }
  // max(a, |b|) for a >= 0, compared as bits: NaN is the largest.
  static F max_abs(F a, F b) { return floats(maxu(bits(a), bits(abs(b)))); }
  static F swap_neighbours(F a) { return HALFTONE_MM(permute_ps)(a, 0xB1); }
  // Lane i is lane i ^ kDistance of a.
  template <int kDistance>
  static F swap(F a) {
    if constexpr (kDistance <= 2) return HALFTONE_MM(permute_ps)(a, kDistance == 1 ? 0xB1 : 0x4E);
#if defined(__AVX512F__)
    return _mm512_shuffle_f32x4(a, a, kDistance == 4 ? 0xB1 : 0x4E);
#else
    return _mm256_permute2f128_ps(a, a, 1);
#endif
  }

  static I bits(F a) { return (I)a; }
  static F floats(I a) { return (F)a; }
  static I rint(F a) { return HALFTONE_MM(cvtps_epi32)(a); }
  static F from_int(I a) { return HALFTONE_MM(cvtepi32_ps)(a); }

  static I zeroi() { return I{}; }
  static I seti(uint32_t x) { return HALFTONE_MM(set1_epi32)(static_cast<int>(x)); }
  static I and_(I a, I b) { return a & b; }
  static I or_(I a, I b) { return a | b; }
  static I xor_(I a, I b) { return a ^ b; }
  static I addi(I a, I b) { return HALFTONE_MM(add_epi32)(a, b); }
  static I subi(I a, I b) { return HALFTONE_MM(sub_epi32)(a, b); }
  static I mini(I a, I b) { return HALFTONE_MM(min_epi32)(a, b); }
  static I maxi(I a, I b) { return HALFTONE_MM(max_epi32)(a, b); }
  static I maxu(I a, I b) { return HALFTONE_MM(max_epu32)(a, b); }
  static I maxu16(I a, I b) { return HALFTONE_MM(max_epu16)(a, b); }
  static I madd16(I a, I b) { return HALFTONE_MM(madd_epi16)(a, b); }
  template <int kBits>
  static I shl(I a) {
    return HALFTONE_MM(slli_epi32)(a, kBits);
  }
  template <int kBits>
  static I shr(I a) {
    return HALFTONE_MM(srli_epi32)(a, kBits);
  }
  template <int kBits>
  static I sar(I a) {
    return HALFTONE_MM(srai_epi32)(a, kBits);
  }
  // Upper or lower 8 bits of each 16-bit half, sign-extended.
  static I upper_s8(I a) { return HALFTONE_MM(srai_epi16)(a, 8); }
  static I lower_s8(I a) { return upper_s8(HALFTONE_MM(slli_epi16)(a, 8)); }
  static I interleave_low(I a, I b) { return HALFTONE_MM(unpacklo_epi8)(a, b); }  // bytes, within 128-bit parts
  static I interleave_high(I a, I b) { return HALFTONE_MM(unpackhi_epi8)(a, b); }
  static void mul_wide(I a, uint32_t factor, I& lo, I& hi) {
    const I m = seti(factor), even = HALFTONE_MM(mul_epu32)(a, m), odd = HALFTONE_MM(mul_epu32)(HALFTONE_MM(srli_epi64)(a, 32), m);
    lo = even_odd(even, HALFTONE_MM(slli_epi64)(odd, 32));
    hi = even_odd(HALFTONE_MM(srli_epi64)(even, 32), odd);
  }

  static M gt(F a, F b) { return compare<_CMP_GT_OQ>(a, b); }
  static M not_less(F a, F b) { return compare<_CMP_NLT_UQ>(a, b); }
  static M is_nan(F a) { return compare<_CMP_UNORD_Q>(a, a); }
  static bool any_less(F a, F b) { return any(gt(b, a)); }
  static bool any_not_finite(F a) { return any(compare<_CMP_NEQ_UQ>(a - a, zero())); }

  static F load(const float* p) { return HALFTONE_MM(loadu_ps)(p); }
  static F load(const bf16* p) { return widen(p); }
  static I load_u16i(const uint16_t* p) { return HALFTONE_MM(cvtepu16_epi32)(half(p)); }
  static I load_u8i(const uint8_t* p) { return HALFTONE_MM(cvtepu8_epi32)(quarter(p)); }
  static I load_s8i(const uint8_t* p) { return HALFTONE_MM(cvtepi8_epi32)(quarter(p)); }
  static F load_u16(const uint16_t* p) { return from_int(load_u16i(p)); }
  static void store(float* p, F a) { HALFTONE_MM(storeu_ps)(p, a); }
  static void store(bf16* p, F a) { narrow(p, a); }
  static void store_two(float* p, F a, F b) { store(p, a), store(p + kLanes, b); }

  // bf16 bits to fp32 and back: round to nearest even, NaN made quiet.
  static F widen(H h) { return floats(shl<16>(HALFTONE_MM(cvtepu16_epi32)(h))); }
  static F widen(const void* p) { return widen(half(p)); }
  static void narrow(void* p, F a) { store_halves(p, shr<16>(rounded(a))); }
  static void store_two(bf16* p, F a, F b) {
#if defined(__AVX512BF16__)
    // VCVTNE2PS2BF16 flushes subnormals, so they take the slow path.
    constexpr int kSubnormal = 0x20;
    if (_kortestz_mask16_u8(_mm512_fpclass_ps_mask(a, kSubnormal), _mm512_fpclass_ps_mask(b, kSubnormal))) [[likely]] {
      store(p, (I)_mm512_cvtne2ps_pbh(b, a));
      return;
    }
#endif
    store_halves(p, shr<16>(rounded(a)), shr<16>(rounded(b)));
  }
  static void store_high(void* p, I a) { store_halves(p, shr<16>(a)); }  // the upper 16 bits of each lane

  // Stores four integer vectors as bytes: in order and saturated, or per lane (the low byte of each).
  static void store_s8(int8_t* p, const I* q) { store(p, in_order(HALFTONE_MM(packs_epi16)(packed(q), packed(q + 2)))); }
  static void store_u8(uint8_t* p, const I* q) { store(p, in_order(HALFTONE_MM(packus_epi16)(packed(q), packed(q + 2)))); }
  static void store_quads(void* p, const I* v) {
    const I low = seti(0xFF);
    store(p, or3(v[0] & low, shl<8>(v[1] & low), shl<16>(v[2] & low)) | shl<24>(v[3]));
  }
  // Stores the 16-byte parts of v to p, p + step, ...
  template <class X>
  static void store_parts(uint8_t* p, int64_t step, X v) {
    if constexpr (sizeof(X) == 16) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v);
    } else {
      constexpr int64_t kHalf = sizeof(X) / 32;
      store_parts(p, step, lower(v)), store_parts(p + kHalf * step, step, upper(v));
    }
  }
  // Stores the 32-bit words c[0] .. c[3] lane by lane.
  static void store_transposed(void* p, const I* c) {
    I a[4], r[4];
    unpack32(c, a, 4), unpack64(a, r, 4);
    for (int j = 0; j < 4; ++j) store_parts(static_cast<uint8_t*>(p) + 16 * j, 64, r[j]);
  }

  // dst[c][r] = src[r][c] for kLanes x kLanes units of 4 bytes; strides in bytes.
  static void transpose(void* dst, int64_t dst_stride, const void* src, int64_t src_stride) {
    auto* to = static_cast<std::byte*>(dst);
    I r[kLanes], t[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) r[i] = loadi(static_cast<const std::byte*>(src) + i * src_stride);
    unpack32(r, t, kLanes), unpack64(t, r, kLanes);
    // r[4 i + j]: columns j, j + 4, ... (one per 128 bits) of rows 4 i .. 4 i + 3.
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const I even = even_parts(r[j], r[4 + j]), odd = odd_parts(r[j], r[4 + j]);
      if constexpr (kLanes == 8) {
        store(to + j * dst_stride, even), store(to + (j + 4) * dst_stride, odd);
      } else {
        const I even2 = even_parts(r[8 + j], r[12 + j]), odd2 = odd_parts(r[8 + j], r[12 + j]);
        store(to + j * dst_stride, even_parts(even, even2)), store(to + (j + 4) * dst_stride, even_parts(odd, odd2));
        store(to + (j + 8) * dst_stride, odd_parts(even, even2)), store(to + (j + 12) * dst_stride, odd_parts(odd, odd2));
      }
    }
  }

  // Lane reductions: lanes 8 apart first, then 4, 2, 1.
  static float sum(F a) { return across<float>(a, plus); }
  static float max_of(F a) { return across<float>(a, larger); }
  static int32_t sum_of(I a) { return static_cast<int32_t>(across<uint32_t>((F)a, plus)); }
  static uint32_t max_of(I a) { return across<uint32_t>((F)a, larger); }  // unsigned
  // Lane i of the result is the largest lane of v[i]; kLanes vectors.
  static I max_of_each(const I* v) {
    I a[kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < kLanes / 2; ++i) {
      a[i] = maxi(HALFTONE_MM(unpacklo_epi32)(v[2 * i], v[2 * i + 1]), HALFTONE_MM(unpackhi_epi32)(v[2 * i], v[2 * i + 1]));
    }
#pragma GCC unroll 4
    for (int i = 0; i < kLanes / 4; ++i) {
      a[i] = maxi(HALFTONE_MM(unpacklo_epi64)(a[2 * i], a[2 * i + 1]), HALFTONE_MM(unpackhi_epi64)(a[2 * i], a[2 * i + 1]));
    }
#pragma GCC unroll 2
    for (int n = kLanes / 8; n > 0; n /= 2) {
#pragma GCC unroll 2
      for (int i = 0; i < n; ++i) a[i] = maxi(even_parts(a[2 * i], a[2 * i + 1]), odd_parts(a[2 * i], a[2 * i + 1]));
    }
    return a[0];
  }

  // fp64 halves of an fp32 register.
#if defined(__AVX512F__)
  using D = __m512d;
#else
  using D = __m256d;
#endif
  // sums[0], sums[1] += a * a; the product is exact.
  static void add_square(D* sums, F a) {
    const D lo = HALFTONE_MM(cvtps_pd)(lower(a)), hi = HALFTONE_MM(cvtps_pd)(upper(a));
    sums[0] = HALFTONE_MM(fmadd_pd)(lo, lo, sums[0]), sums[1] = HALFTONE_MM(fmadd_pd)(hi, hi, sums[1]);
  }

  static __m128 lower(__m256 a) { return _mm256_castps256_ps128(a); }
  static __m128 upper(__m256 a) { return _mm256_extractf128_ps(a, 1); }
  static __m128i lower(__m256i a) { return _mm256_castsi256_si128(a); }
  static __m128i upper(__m256i a) { return _mm256_extracti128_si256(a, 1); }

#if defined(__AVX512F__)
  static __m256 lower(__m512 a) { return _mm512_castps512_ps256(a); }
  static __m256 upper(__m512 a) { return _mm512_extractf32x8_ps(a, 1); }
  static __m256i lower(__m512i a) { return _mm512_castsi512_si256(a); }
  static __m256i upper(__m512i a) { return _mm512_extracti64x4_epi64(a, 1); }
  static I loadi(const void* p) { return _mm512_loadu_si512(p); }
  static void store(void* p, I a) { _mm512_storeu_si512(p, a); }
  static I iota() { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }

  static M lt(I a, I b) { return _mm512_cmplt_epi32_mask(a, b); }  // signed
  static I select(M m, I yes, I no) { return _mm512_mask_blend_epi32(m, no, yes); }
  static F select(M m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }
  static F only(M m, F a) { return _mm512_maskz_mov_ps(m, a); }  // else 0
  static I or_where(M m, I a, I b, I no) { return _mm512_mask_or_epi32(no, m, a, b); }
  static I one_if(M m) { return _mm512_maskz_set1_epi32(m, 1); }
  static bool any(M m) { return m != 0; }
  static I or3(I a, I b, I c) { return _mm512_ternarylogic_epi32(a, b, c, 0xFE); }
  static I or_masked(I a, I b, I mask) { return _mm512_ternarylogic_epi32(a, b, mask, 0xF8); }  // a | (b & mask)

  // The first n lanes, n from 0 to beyond the lane count; the other lanes are 0.
  static M first(int64_t n) { return n >= 16 ? M{0xFFFF} : static_cast<M>((1u << n) - 1); }
  static F load(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static F load(const bf16* p, int64_t n) { return widen(_mm256_maskz_loadu_epi16(first(n), p)); }
  static void store(float* p, F a, int64_t n) { _mm512_mask_storeu_ps(p, first(n), a); }
  static void store(bf16* p, F a, int64_t n) { _mm256_mask_storeu_epi16(p, first(n), _mm512_cvtepi32_epi16(shr<16>(rounded(a)))); }

  // Low halves of the lanes.
  static void store_halves(void* p, I a) { _mm256_storeu_si256(static_cast<H*>(p), _mm512_cvtepi32_epi16(a)); }
  static void store_halves(void* p, I a, I b) {
    store(p, _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(a)), _mm512_cvtepi32_epi16(b), 1));
  }
  // a0 b0 a1 b1 ...
  static void store_zipped(std::byte* p, I a, I b) {
    const I order = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    store(p, _mm512_permutex2var_epi32(a, order, b));
    store(p + kBytes, _mm512_permutex2var_epi32(a, addi(order, seti(8)), b));
  }
  // p0 p0 p1 p1 ...
  static F load_twice(const float* p) {
    const I order = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(order, _mm512_castps256_ps512(_mm256_loadu_ps(p)));
  }

 private:
  template <int kHow>
  static M compare(F a, F b) {
    return _mm512_cmp_ps_mask(a, b, kHow);
  }
  static __m128i quarter(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
  static I even_odd(I even, I odd) { return _mm512_mask_blend_epi32(0xAAAA, even, odd); }
  static I even_parts(I a, I b) { return _mm512_shuffle_i32x4(a, b, 0x88); }  // 128-bit parts: a0 a2 b0 b2
  static I odd_parts(I a, I b) { return _mm512_shuffle_i32x4(a, b, 0xDD); }
  static I in_order(I packed) {
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), packed);
  }
  static I up(I u) { return _mm512_mask_add_epi32(addi(u, seti(0x7FFF)), _mm512_test_epi32_mask(u, seti(0x10000)), u, seti(0x8000)); }
#else
  static I loadi(const void* p) { return _mm256_loadu_si256(static_cast<const I*>(p)); }
  static void store(void* p, I a) { _mm256_storeu_si256(static_cast<I*>(p), a); }
  static I iota() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }

  static M lt(I a, I b) { return _mm256_cmpgt_epi32(b, a); }  // signed
  static I select(M m, I yes, I no) { return _mm256_blendv_epi8(no, yes, m); }
  static F select(M m, F yes, F no) { return _mm256_blendv_ps(no, yes, (F)m); }
  static F only(M m, F a) { return floats(m & bits(a)); }  // else 0
  static I or_where(M m, I a, I b, I no) { return select(m, a | b, no); }
  static I one_if(M m) { return shr<31>(m); }
  static bool any(M m) { return _mm256_movemask_ps((F)m) != 0; }
  static I or3(I a, I b, I c) { return a | b | c; }
  static I or_masked(I a, I b, I mask) { return a | (b & mask); }

  // The first n lanes, n from 0 to beyond the lane count; the other lanes are 0.
  static int clamped(int64_t n) { return n < 0 ? 0 : n < kLanes ? static_cast<int>(n) : kLanes; }
  static M first(int64_t n) { return lt(iota(), _mm256_set1_epi32(clamped(n))); }
  static F load(const float* p, int64_t n) { return _mm256_maskload_ps(p, first(n)); }
  static F load(const bf16* p, int64_t n) {
    H h{};
    std::memcpy(&h, p, static_cast<size_t>(clamped(n)) * 2);
    return widen(h);
  }
  static void store(float* p, F a, int64_t n) { _mm256_maskstore_ps(p, first(n), a); }
  static void store(bf16* p, F a, int64_t n) {
    bf16 lanes[kLanes];
    narrow(lanes, a);
    std::memcpy(static_cast<void*>(p), lanes, static_cast<size_t>(clamped(n)) * 2);
  }

  // Low halves of the lanes; the upper halves are 0.
  static void store_halves(void* p, I a) {
    _mm_storeu_si128(static_cast<H*>(p), _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(a, a), 0x08)));
  }
  static void store_halves(void* p, I a, I b) { store(p, _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xD8)); }
  // a0 b0 a1 b1 ...
  static void store_zipped(std::byte* p, I a, I b) {
    const I low = _mm256_unpacklo_epi32(a, b), high = _mm256_unpackhi_epi32(a, b);
    store(p, even_parts(low, high)), store(p + kBytes, odd_parts(low, high));
  }
  // p0 p0 p1 p1 ...
  static F load_twice(const float* p) {
    return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
  }

 private:
  template <int kHow>
  static M compare(F a, F b) {
    return (M)_mm256_cmp_ps(a, b, kHow);
  }
  static __m128i quarter(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }
  static I even_odd(I even, I odd) { return _mm256_blend_epi32(even, odd, 0xAA); }
  static I even_parts(I a, I b) { return _mm256_permute2x128_si256(a, b, 0x20); }  // 128-bit parts: a0 b0
  static I odd_parts(I a, I b) { return _mm256_permute2x128_si256(a, b, 0x31); }
  static I in_order(I packed) { return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)); }
  static I up(I u) { return addi(addi(u, seti(0x7FFF)), shr<16>(u) & seti(1)); }
#endif

  static H half(const void* p) {
    H h;
    std::memcpy(&h, p, sizeof h);
    return h;
  }
  static I rounded(F a) { return or_where(is_nan(a), bits(a), seti(0x400000), up(bits(a))); }  // bf16 in the upper half of each lane
  static I packed(const I* q) { return HALFTONE_MM(packs_epi32)(q[0], q[1]); }

  // Two steps of a transpose within 128-bit parts.
  [[gnu::always_inline]] static void unpack32(const I* from, I* to, int n) {
#pragma GCC unroll 16
    for (int i = 0; i < n; i += 2) {
      to[i] = HALFTONE_MM(unpacklo_epi32)(from[i], from[i + 1]), to[i + 1] = HALFTONE_MM(unpackhi_epi32)(from[i], from[i + 1]);
    }
  }
  [[gnu::always_inline]] static void unpack64(const I* from, I* to, int n) {
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) {
      const I a = from[i / 4 * 4 + i % 4 / 2], b = from[i / 4 * 4 + i % 4 / 2 + 2];
      to[i] = i % 2 == 0 ? HALFTONE_MM(unpacklo_epi64)(a, b) : HALFTONE_MM(unpackhi_epi64)(a, b);
    }
  }

  static constexpr auto plus = [](auto a, auto b) { return a + b; };
  static constexpr auto larger = [](auto a, auto b) { return a > b ? a : b; };  // returns b if either is NaN
  template <class E, class X, class Op>
  static E across(X a, Op op) {
    typedef E Lanes __attribute__((vector_size(sizeof(X))));
    if constexpr (sizeof(X) == 16) {
      typedef int32_t Index __attribute__((vector_size(16)));
      const Lanes x = (Lanes)a, y = op(x, __builtin_shuffle(x, Index{2, 3, 0, 1}));
      return op(y[0], y[1]);
    } else {
      typedef E Half __attribute__((vector_size(sizeof(X) / 2)));
      return across<E>((decltype(lower(a)))op((Half)lower(a), (Half)upper(a)), op);
    }
  }
};

}  // namespace
}  // namespace halftone
#undef HALFTONE_MM
