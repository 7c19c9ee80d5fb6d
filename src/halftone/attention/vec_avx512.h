#pragma once
// g++ 12 warns inside its own header about the undefined value that unmasked AVX-512 intrinsics start from.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstdint>

// Included by files compiled for AVX-512 only. Everything is local to the including file (unnamed namespace): two files
// with different instruction sets must never share the code of an inline function.
namespace halftone::attention {
namespace {

// Sixteen fp32 lanes and the same width in dwords.
struct Vec512 {
  using F = __m512;
  using U = __m512i;
  static constexpr int kLanes = 16;

  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F zero() { return _mm512_setzero_ps(); }
  static U load_u(const void* p) { return _mm512_loadu_si512(p); }
  static void store_u(void* p, U x) { _mm512_storeu_si512(p, x); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F fms(F a, F b, F c) { return _mm512_fmsub_ps(a, b, c); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }  // b where either is NaN
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  // Largest magnitude seen so far; unlike max it keeps a NaN.
  static F max_abs(F most, F x) { return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(most), _mm512_castps_si512(abs(x)))); }
  static F abs(F a) { return _mm512_abs_ps(a); }
  static float sum(F a) { return _mm512_reduce_add_ps(a); }
  static float max_of(F a) { return _mm512_reduce_max_ps(a); }
  static bool any_less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ) != 0; }
  static bool any_not_finite(F a) { return _mm512_fpclass_ps_mask(a, 0x99) != 0; }

  // x where lo[lane] <= key <= hi[lane], else `other`.
  static F keep(F x, F other, int key, const int32_t* lo, const int32_t* hi) {
    const U k = _mm512_set1_epi32(key);
    const __mmask16 seen = _mm512_cmple_epi32_mask(load_u(lo), k) & _mm512_cmple_epi32_mask(k, load_u(hi));
    return _mm512_mask_mov_ps(other, seen, x);
  }

  // value * 2^n, n held in the low bits of `magic_sum` (see exp2).
  static F add_exponent(F value, F magic_sum) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(value), _mm512_slli_epi32(_mm512_castps_si512(magic_sum), 23)));
  }

  // x = mantissa * 2^exponent, mantissa in [sqrt(1/2), sqrt(2)), x positive and normal.
  static void split(F x, F& mantissa, F& exponent) {
    const U bits = _mm512_castps_si512(x), e = _mm512_srai_epi32(_mm512_sub_epi32(bits, _mm512_set1_epi32(0x3f3504f3)), 23);
    mantissa = _mm512_castsi512_ps(_mm512_sub_epi32(bits, _mm512_slli_epi32(e, 23)));
    exponent = _mm512_cvtepi32_ps(e);
  }

  // dst[c][r] = src[r][c] for a 16 x 16 block of dwords; strides in dwords.
  static void transpose(uint32_t* dst, int64_t dst_stride, const uint32_t* src, int64_t src_stride) {
    U r[16], t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) r[i] = load_u(src + i * src_stride);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
      t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {  // r[4i + j]: columns j, j + 4, j + 8, j + 12 (one per 128-bit lane) of rows 4i .. 4i + 3
      r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
      r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
      r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
      r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const U a = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88), b = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xdd);
      const U c = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88), d = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xdd);
      store_u(dst + j * dst_stride, _mm512_shuffle_i32x4(a, c, 0x88));
      store_u(dst + (j + 4) * dst_stride, _mm512_shuffle_i32x4(b, d, 0x88));
      store_u(dst + (j + 8) * dst_stride, _mm512_shuffle_i32x4(a, c, 0xdd));
      store_u(dst + (j + 12) * dst_stride, _mm512_shuffle_i32x4(b, d, 0xdd));
    }
  }

  static F widen(const uint16_t* bf16_bits) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bf16_bits))), 16));
  }
  // Nearest even, NaN kept quiet.
  static void narrow(uint16_t* bf16_bits, F x) {
    const U u = _mm512_castps_si512(x);
    const U odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const U up = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF))), 16);
    const U quiet = _mm512_or_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
    const U bits = _mm512_mask_mov_epi32(up, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(bf16_bits), _mm512_cvtepi32_epi16(bits));
  }
};

}  // namespace
}  // namespace halftone::attention
