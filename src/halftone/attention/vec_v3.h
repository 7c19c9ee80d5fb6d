#pragma once
#include <immintrin.h>

#include <cstdint>

namespace halftone::attention {
namespace {

// Eight fp32 lanes (AVX2 and FMA); the same members as Vec512.
struct Vec256 {
  using F = __m256;
  using U = __m256i;
  static constexpr int kLanes = 8;

  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static F zero() { return _mm256_setzero_ps(); }
  static U load_u(const void* p) { return _mm256_loadu_si256(static_cast<const U*>(p)); }
  static void store_u(void* p, U x) { _mm256_storeu_si256(static_cast<U*>(p), x); }
  static F set1(float x) { return _mm256_set1_ps(x); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F fms(F a, F b, F c) { return _mm256_fmsub_ps(a, b, c); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }  // b where either is NaN
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F max_abs(F most, F x) { return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(most), _mm256_castps_si256(abs(x)))); }
  static F abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  static float sum(F a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
  }
  static float max_of(F a) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
  }
  static bool any_less(F a, F b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ)) != 0; }
  static bool any_not_finite(F a) {  // a - a is not zero
    return _mm256_movemask_ps(_mm256_cmp_ps(_mm256_sub_ps(a, a), _mm256_setzero_ps(), _CMP_NEQ_UQ)) != 0;
  }

  static F keep(F x, F other, int key, const int32_t* lo, const int32_t* hi) {
    const U k = _mm256_set1_epi32(key);
    const U hidden = _mm256_or_si256(_mm256_cmpgt_epi32(load_u(lo), k), _mm256_cmpgt_epi32(k, load_u(hi)));
    return _mm256_blendv_ps(x, other, _mm256_castsi256_ps(hidden));
  }

  static F add_exponent(F value, F magic_sum) {
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(value), _mm256_slli_epi32(_mm256_castps_si256(magic_sum), 23)));
  }

  static void split(F x, F& mantissa, F& exponent) {
    const U bits = _mm256_castps_si256(x), e = _mm256_srai_epi32(_mm256_sub_epi32(bits, _mm256_set1_epi32(0x3f3504f3)), 23);
    mantissa = _mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_slli_epi32(e, 23)));
    exponent = _mm256_cvtepi32_ps(e);
  }

  static void transpose(uint32_t* dst, int64_t dst_stride, const uint32_t* src, int64_t src_stride) {
    U r[8], t[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) r[i] = load_u(src + i * src_stride);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      t[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
      t[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {  // r[4i + j]: columns j and j + 4 of rows 4i .. 4i + 3
      r[4 * i] = _mm256_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
      r[4 * i + 1] = _mm256_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
      r[4 * i + 2] = _mm256_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
      r[4 * i + 3] = _mm256_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      store_u(dst + j * dst_stride, _mm256_permute2x128_si256(r[j], r[4 + j], 0x20));
      store_u(dst + (j + 4) * dst_stride, _mm256_permute2x128_si256(r[j], r[4 + j], 0x31));
    }
  }

  static F widen(const uint16_t* bf16_bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bf16_bits))), 16));
  }
  static void narrow(uint16_t* bf16_bits, F x) {
    const U u = _mm256_castps_si256(x), high = _mm256_srli_epi32(u, 16);
    const U odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const U up = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF))), 16);
    const U quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const U bits = _mm256_blendv_epi8(up, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
    const U packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(bits, bits), 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bf16_bits), _mm256_castsi256_si128(packed));
  }
};

}  // namespace
}  // namespace halftone::attention
