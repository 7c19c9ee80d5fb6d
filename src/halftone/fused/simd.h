#pragma once
#include <immintrin.h>

#include <cstdint>

#include "halftone/base/dtype.h"

// Sixteen fp32 lanes: one 512-bit register, or two of 256 bits under AVX2. The row kernels are written once with it and
// compiled twice, in the namespace of their instruction set. Both variants perform the same operations in the same order,
// so a result does not depend on the machine.
#if defined(__AVX512F__)
#define HALFTONE_SIMD avx512
// g++ 12 reports the deliberately undefined operands inside its own AVX-512 intrinsics.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#else
#define HALFTONE_SIMD v3
#endif

// Vectors are several registers wide: a call that is not inlined passes them through memory.
#define HALFTONE_INLINE [[gnu::always_inline]] inline

namespace halftone::HALFTONE_SIMD {

inline constexpr int64_t kLanes = 16;

#if defined(__AVX512F__)

struct Vec {
  __m512 v;
};
HALFTONE_INLINE Vec set1(float x) { return {_mm512_set1_ps(x)}; }
HALFTONE_INLINE Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
HALFTONE_INLINE Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
HALFTONE_INLINE Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
HALFTONE_INLINE Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
HALFTONE_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
HALFTONE_INLINE Vec neg_fma(Vec a, Vec b, Vec c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }        // c - a b
HALFTONE_INLINE Vec fma_sub_add(Vec a, Vec b, Vec c) { return {_mm512_fmaddsub_ps(a.v, b.v, c.v)}; }  // even: a b - c, odd: a b + c
HALFTONE_INLINE Vec fma_add_sub(Vec a, Vec b, Vec c) { return {_mm512_fmsubadd_ps(a.v, b.v, c.v)}; }  // even: a b + c, odd: a b - c
HALFTONE_INLINE Vec sqrt(Vec a) { return {_mm512_sqrt_ps(a.v)}; }
HALFTONE_INLINE Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }  // b when either is NaN
// The larger of bits a and of the bits of |b| in every lane, as integers: NaN is above all.
HALFTONE_INLINE Vec max_magnitude(Vec a, Vec b) {
  const __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(b.v), _mm512_set1_epi32(0x7FFFFFFF));
  return {_mm512_castsi512_ps(_mm512_max_epu32(_mm512_castps_si512(a.v), magnitude))};
}
HALFTONE_INLINE Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
// a where !(x < limit), else 0; keeps NaN.
HALFTONE_INLINE Vec zero_below(Vec a, Vec x, Vec limit) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_NLT_UQ), a.v)};
}
// 2^(b - 127), b the low 8 bits of `magic`, whose bit 8 is 0.
HALFTONE_INLINE Vec power_of_two(Vec magic) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(magic.v), 23))}; }
HALFTONE_INLINE Vec swap_neighbours(Vec a) { return {_mm512_permute_ps(a.v, 0xB1)}; }
// a0 a0 a1 a1 .. a7 a7
HALFTONE_INLINE Vec load_twice(const float* p) {
  const __m512i index = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  return {_mm512_permutexvar_ps(index, _mm512_castps256_ps512(_mm256_loadu_ps(p)))};
}
HALFTONE_INLINE Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
HALFTONE_INLINE Vec load(const bf16* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
HALFTONE_INLINE __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }
HALFTONE_INLINE Vec load(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
HALFTONE_INLINE Vec load(const bf16* p, int64_t n) {
  const __m256i half = _mm256_maskz_loadu_epi16(first_lanes(n), p);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
HALFTONE_INLINE __m256i to_bf16_bits(Vec a) {
  const __m512i u = _mm512_castps_si512(a.v);
  const __mmask16 odd = _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000));
  const __m512i down = _mm512_add_epi32(u, _mm512_set1_epi32(0x7FFF));
  const __m512i rounded = _mm512_mask_add_epi32(down, odd, u, _mm512_set1_epi32(0x8000));
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  const __m512i result = _mm512_mask_or_epi32(rounded, nan, u, _mm512_set1_epi32(0x400000));
  return _mm512_maskz_cvtepi32_epi16(0xFFFF, _mm512_srli_epi32(result, 16));
}
// a in the first n lanes, `fill` in the others.
HALFTONE_INLINE Vec keep(Vec a, int64_t n, Vec fill) { return {_mm512_mask_mov_ps(fill.v, first_lanes(n), a.v)}; }
HALFTONE_INLINE void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
HALFTONE_INLINE void store(bf16* p, Vec a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16_bits(a)); }
HALFTONE_INLINE void store(float* p, Vec a, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }
HALFTONE_INLINE void store(bf16* p, Vec a, int64_t n) { _mm256_mask_storeu_epi16(p, first_lanes(n), to_bf16_bits(a)); }
// Lane l and l + 8 first, then 4, 2, 1 apart.
HALFTONE_INLINE __m256 upper_half(Vec a) { return _mm512_extractf32x8_ps(a.v, 1); }
HALFTONE_INLINE __m256 lower_half(Vec a) { return _mm512_castps512_ps256(a.v); }

// Sixteen fp64 lanes, for sums of many terms.
struct Vec64 {
  __m512d lo, hi;
};
HALFTONE_INLINE Vec64 zero64() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
// sum + x * x; the product is exact in fp64.
HALFTONE_INLINE Vec64 add_square(Vec64 sum, Vec x) {
  const __m512d lo = _mm512_cvtps_pd(lower_half(x)), hi = _mm512_cvtps_pd(upper_half(x));
  return {_mm512_fmadd_pd(lo, lo, sum.lo), _mm512_fmadd_pd(hi, hi, sum.hi)};
}
HALFTONE_INLINE void store(double* p, Vec64 a) {
  _mm512_storeu_pd(p, a.lo);
  _mm512_storeu_pd(p + 8, a.hi);
}

#else

struct Vec {
  __m256 lo, hi;
};
HALFTONE_INLINE Vec set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
HALFTONE_INLINE Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
HALFTONE_INLINE Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
HALFTONE_INLINE Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
HALFTONE_INLINE Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
HALFTONE_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
HALFTONE_INLINE Vec neg_fma(Vec a, Vec b, Vec c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}  // c - a b
// even: a b - c, odd: a b + c
HALFTONE_INLINE Vec fma_sub_add(Vec a, Vec b, Vec c) {
  return {_mm256_fmaddsub_ps(a.lo, b.lo, c.lo), _mm256_fmaddsub_ps(a.hi, b.hi, c.hi)};
}
// even: a b + c, odd: a b - c
HALFTONE_INLINE Vec fma_add_sub(Vec a, Vec b, Vec c) {
  return {_mm256_fmsubadd_ps(a.lo, b.lo, c.lo), _mm256_fmsubadd_ps(a.hi, b.hi, c.hi)};
}
HALFTONE_INLINE Vec sqrt(Vec a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
HALFTONE_INLINE Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }  // b when either is NaN
HALFTONE_INLINE __m256 max_magnitude(__m256 a, __m256 b) {
  const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(b), _mm256_set1_epi32(0x7FFFFFFF));
  return _mm256_castsi256_ps(_mm256_max_epu32(_mm256_castps_si256(a), magnitude));
}
// The larger of bits a and of the bits of |b| in every lane, as integers: NaN is above all.
HALFTONE_INLINE Vec max_magnitude(Vec a, Vec b) { return {max_magnitude(a.lo, b.lo), max_magnitude(a.hi, b.hi)}; }
HALFTONE_INLINE Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
// a where !(x < limit), else 0; keeps NaN.
HALFTONE_INLINE Vec zero_below(Vec a, Vec x, Vec limit) {
  return {_mm256_and_ps(a.lo, _mm256_cmp_ps(x.lo, limit.lo, _CMP_NLT_UQ)), _mm256_and_ps(a.hi, _mm256_cmp_ps(x.hi, limit.hi, _CMP_NLT_UQ))};
}
HALFTONE_INLINE __m256 power_of_two(__m256 magic) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(magic), 23)); }
// 2^(b - 127), b the low 8 bits of `magic`, whose bit 8 is 0.
HALFTONE_INLINE Vec power_of_two(Vec magic) { return {power_of_two(magic.lo), power_of_two(magic.hi)}; }
HALFTONE_INLINE Vec swap_neighbours(Vec a) { return {_mm256_permute_ps(a.lo, 0xB1), _mm256_permute_ps(a.hi, 0xB1)}; }
// a0 a0 a1 a1 .. a7 a7
HALFTONE_INLINE Vec load_twice(const float* p) {
  const __m256i low = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3), high = _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7);
  const __m256 a = _mm256_loadu_ps(p);
  return {_mm256_permutevar8x32_ps(a, low), _mm256_permutevar8x32_ps(a, high)};
}
HALFTONE_INLINE Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
HALFTONE_INLINE __m256 widen(__m128i half) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16)); }
HALFTONE_INLINE Vec load(const bf16* p) {
  return {widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
template <class T>
Vec load(const T* p, int64_t n) {
  alignas(32) T lanes[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
HALFTONE_INLINE __m256i rounded_bits(__m256 a) {
  const __m256i u = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7FFF)), odd);
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}
HALFTONE_INLINE __m256i to_bf16_bits(Vec a) {
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded_bits(a.lo), rounded_bits(a.hi)), 0xD8);
}
// a in the first n lanes, `fill` in the others.
HALFTONE_INLINE Vec keep(Vec a, int64_t n, Vec fill) {
  const __m256 count = _mm256_set1_ps(static_cast<float>(n));
  const __m256 low = _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7), high = _mm256_setr_ps(8, 9, 10, 11, 12, 13, 14, 15);
  return {_mm256_blendv_ps(fill.lo, a.lo, _mm256_cmp_ps(low, count, _CMP_LT_OQ)),
          _mm256_blendv_ps(fill.hi, a.hi, _mm256_cmp_ps(high, count, _CMP_LT_OQ))};
}
HALFTONE_INLINE void store(float* p, Vec a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
HALFTONE_INLINE void store(bf16* p, Vec a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16_bits(a)); }
template <class T>
void store(T* p, Vec a, int64_t n) {
  alignas(32) T lanes[kLanes];
  store(lanes, a);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}
// Lane l and l + 8 first, then 4, 2, 1 apart.
HALFTONE_INLINE __m256 upper_half(Vec a) { return a.hi; }
HALFTONE_INLINE __m256 lower_half(Vec a) { return a.lo; }

// Sixteen fp64 lanes, for sums of many terms.
struct Vec64 {
  __m256d v[4];
};
HALFTONE_INLINE Vec64 zero64() { return {{_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()}}; }
// sum + x * x; the product is exact in fp64.
HALFTONE_INLINE Vec64 add_square(Vec64 sum, Vec x) {
  const __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(x.lo)), b = _mm256_cvtps_pd(_mm256_extractf128_ps(x.lo, 1));
  const __m256d c = _mm256_cvtps_pd(_mm256_castps256_ps128(x.hi)), d = _mm256_cvtps_pd(_mm256_extractf128_ps(x.hi, 1));
  return {
      {_mm256_fmadd_pd(a, a, sum.v[0]), _mm256_fmadd_pd(b, b, sum.v[1]), _mm256_fmadd_pd(c, c, sum.v[2]), _mm256_fmadd_pd(d, d, sum.v[3])}};
}
HALFTONE_INLINE void store(double* p, Vec64 a) {
  for (int i = 0; i < 4; ++i) _mm256_storeu_pd(p + 4 * i, a.v[i]);
}

#endif

HALFTONE_INLINE Vec zero() { return set1(0.0f); }

template <class T>
struct Type {
  using type = T;
};
// Calls f(Type<T>{}) with the element type of an activation, bf16 or f32 (the callers have checked).
template <class F>
void with_float(DType t, F&& f) {
  if (t == DType::bf16) {
    f(Type<bf16>{});
  } else {
    f(Type<float>{});
  }
}

// Which lanes of a vector take part: all, or the first n at the end of a row.
struct All {};
struct First {
  int64_t n;
};
template <class T>
Vec load(const T* p, All) {
  return load(p);
}
template <class T>
Vec load(const T* p, First lanes) {
  return load(p, lanes.n);
}
template <class T>
void store(T* p, Vec a, All) {
  store(p, a);
}
template <class T>
void store(T* p, Vec a, First lanes) {
  store(p, a, lanes.n);
}

HALFTONE_INLINE Vec keep(Vec a, All, Vec) { return a; }
HALFTONE_INLINE Vec keep(Vec a, First lanes, Vec fill) { return keep(a, lanes.n, fill); }

// Calls f(i, lanes) for i = begin, begin + 16, ...; lanes is All, or First at the end.
template <class F>
void each_vector(int64_t begin, int64_t end, F&& f) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) f(i, All{});
  if (i < end) f(i, First{end - i});
}
// The same with a slot 0 .. 3 known at compile time: one accumulator each, so that additions do not wait for each other.
template <class F>
void each_vector_slots(int64_t n, F&& f) {
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    f(i, All{}, 0);
    f(i + kLanes, All{}, 1);
    f(i + 2 * kLanes, All{}, 2);
    f(i + 3 * kLanes, All{}, 3);
  }
  for (; i + kLanes <= n; i += kLanes) f(i, All{}, 0);
  if (i < n) f(i, First{n - i}, 1);
}

HALFTONE_INLINE float reduce_add(Vec a) {
  const __m256 eight = _mm256_add_ps(lower_half(a), upper_half(a));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
HALFTONE_INLINE float reduce_max(Vec a) {
  const __m256 eight = _mm256_max_ps(lower_half(a), upper_half(a));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
// Raises *to, which threads share, to the largest of the lanes' bits.
HALFTONE_INLINE void raise_to(uint32_t* to, Vec bits) {
  float lane[kLanes];
  store(lane, bits);
  uint32_t largest = 0, known = __atomic_load_n(to, __ATOMIC_RELAXED);
  for (const float x : lane) largest = largest > __builtin_bit_cast(uint32_t, x) ? largest : __builtin_bit_cast(uint32_t, x);
  while (known < largest && !__atomic_compare_exchange_n(to, &known, largest, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}
// The 16 lanes added in the order of reduce_add.
HALFTONE_INLINE double reduce_add(Vec64 a) {
  double lane[kLanes];
  store(lane, a);
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) lane[i] += lane[i + width];
  }
  return lane[0];
}

// e^x for x in [-87.3, 88.37], what is outside is moved to the bounds; NaN stays. x = n ln 2 + r with |r| <= ln 2 / 2,
// e^r = 1 + r + r^2 q(r) with q of degree 4 fitted for the least maximal relative error (3e-9); total error about 1 ulp.
// Adding 1.5 * 2^23 + 127 rounds x / ln 2 to the integer n and leaves n + 127, the exponent field of 2^n, in the low bits.
inline constexpr float kExpLow = -87.3f, kExpHigh = 88.37f;
HALFTONE_INLINE Vec exp_bounded(Vec x) {
  const Vec shift = set1(0x1.8p23f + 127), bounded = min(set1(kExpHigh), max(set1(kExpLow), x));
  const Vec magic = fma(bounded, set1(1.44269504f), shift), n = magic - shift;
  const Vec r = neg_fma(n, set1(-2.12194440e-4f), neg_fma(n, set1(0.693359375f), bounded));
  Vec e = set1(0x1.6a2352p-10f);
  e = fma(e, r, set1(0x1.123a6cp-7f));
  e = fma(e, r, set1(0x1.5558f4p-5f));
  e = fma(e, r, set1(0x1.55549p-3f));
  e = fma(e, r, set1(0x1.fffffcp-2f));
  e = fma(e, r, set1(1.0f));
  e = fma(e, r, set1(1.0f));
  return e * power_of_two(magic);
}
// The same, and 0 below the range.
HALFTONE_INLINE Vec exp(Vec x) { return zero_below(exp_bounded(x), x, set1(kExpLow)); }

// 1 / (1 + e^-x)
HALFTONE_INLINE Vec sigmoid(Vec x) { return set1(1.0f) / (set1(1.0f) + exp_bounded(zero() - x)); }

}  // namespace halftone::HALFTONE_SIMD
