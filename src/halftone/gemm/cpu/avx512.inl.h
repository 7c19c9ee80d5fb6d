// AVX-512 parts shared by the avx512, vnni and amx files (each instantiates its own copy in an unnamed namespace).
#pragma once
#include <immintrin.h>

#include "halftone/gemm/cpu/epilogue.inl.h"
#include "halftone/gemm/cpu/register_block.inl.h"

namespace halftone::gemm {
namespace {

struct Wide {
  static constexpr int kRows = 8, kPanels = 3, kParts = 1;
  static constexpr int64_t kLanes = 16;

  static __mmask16 mask(int64_t n) { return n >= 16 ? __mmask16{0xFFFF} : static_cast<__mmask16>((1u << n) - 1); }
  static __m512 set(float x) { return _mm512_set1_ps(x); }
  static __m512 load(const float* p) { return _mm512_loadu_ps(p); }
  static __m512 load(const float* p, __mmask16 m) { return _mm512_maskz_loadu_ps(m, p); }
  static __m512 widen(__m256i v) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16)); }
  static __m512 load(const bf16* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static __m512 load(const bf16* p, __mmask16 m) { return widen(_mm256_maskz_loadu_epi16(m, p)); }
  static __m512 load_int(const float* p) { return _mm512_cvtepi32_ps(_mm512_loadu_si512(p)); }
  static __m512 mul(__m512 a, __m512 b) { return _mm512_mul_ps(a, b); }
  static __m512 add(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
  static void store(float* p, __mmask16 m, __m512 v) { _mm512_mask_storeu_ps(p, m, v); }
  static void store_two(float* p, __m512 a, __m512 b) {
    _mm512_storeu_ps(p, a);
    _mm512_storeu_ps(p + 16, b);
  }

  using Units = __m512i;
  static Units load_units(const void* p) { return _mm512_loadu_si512(p); }
  static void store_units(void* p, Units v) { _mm512_storeu_si512(p, v); }
  static Units subtract(Units v, int32_t x) { return _mm512_sub_epi32(v, _mm512_set1_epi32(x)); }
  static int32_t total(Units v) { return _mm512_reduce_add_epi32(v); }
  // a0 b0 a1 b1 ... a15 b15
  static void store_zipped(std::byte* p, Units a, Units b) {
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    store_units(p, _mm512_permutex2var_epi32(a, first, b));
    store_units(p + 64, _mm512_permutex2var_epi32(a, second, b));
  }

  static __m256i narrow(__m512 v) {
    const __m512i u = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7FFF)), odd), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    r = _mm512_mask_or_epi32(r, nan, _mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(r);
  }
  static void store(bf16* p, __mmask16 m, __m512 v) { _mm256_mask_storeu_epi16(p, m, narrow(v)); }
  static void store_two(bf16* p, __m512 a, __m512 b) {
#ifdef __AVX512BF16__
    // VCVTNE2PS2BF16 flushes subnormals, so they take the long way.
    constexpr int kSubnormal = 0x20;
    if (_kortestz_mask16_u8(_mm512_fpclass_ps_mask(a, kSubnormal), _mm512_fpclass_ps_mask(b, kSubnormal))) [[likely]] {
      _mm512_storeu_si512(p, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a)));
      return;
    }
#endif
    _mm512_storeu_si512(p, _mm512_inserti64x4(_mm512_castsi256_si512(narrow(a)), narrow(b), 1));
  }
};

struct DotF32 {
  using Acc = __m512;
  using B = __m512;
  using Element = float;
  static Acc zero() { return _mm512_setzero_ps(); }
  static Acc load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Acc v) { _mm512_storeu_ps(p, v); }
  static B load_b(const std::byte* p) { return _mm512_loadu_ps(p); }
  static B broadcast(const std::byte* p) { return _mm512_set1_ps(*reinterpret_cast<const float*>(p)); }
  static Acc dot(Acc acc, B a, B b) { return _mm512_fmadd_ps(a, b, acc); }
};

inline int unit(const std::byte* p) {
  int v;
  __builtin_memcpy(&v, p, 4);
  return v;
}

// int32 sums; a derived type has the product.
struct SumInt {
  using Acc = __m512i;
  using B = __m512i;
  using Element = int32_t;
  static Acc zero() { return _mm512_setzero_si512(); }
  static Acc load(const int32_t* p) { return _mm512_loadu_si512(p); }
  static void store(int32_t* p, Acc v) { _mm512_storeu_si512(p, v); }
  static B load_b(const std::byte* p) { return _mm512_loadu_si512(p); }
  static B broadcast(const std::byte* p) { return _mm512_set1_epi32(unit(p)); }
};

// 16 x 16 transpose of 4-byte units: rows of 64 bytes at `stride` to 16 consecutive rows of 64 bytes.
inline void transpose16(const std::byte* src, int64_t stride, std::byte* out) {
  __m512i r[16], s[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_si512(src + i * stride);
  for (int i = 0; i < 16; i += 2) s[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]), s[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(s[i], s[i + 2]), r[i + 1] = _mm512_unpackhi_epi64(s[i], s[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(s[i + 1], s[i + 3]), r[i + 3] = _mm512_unpackhi_epi64(s[i + 1], s[i + 3]);
  }
  // r[4 b + j], lane l: rows 4 b .. 4 b + 3 of column 4 l + j.
  for (int j = 0; j < 4; ++j) {
    const __m512i lo01 = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88), hi01 = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xDD);
    const __m512i lo23 = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88), hi23 = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xDD);
    _mm512_storeu_si512(out + j * 64, _mm512_shuffle_i32x4(lo01, lo23, 0x88));
    _mm512_storeu_si512(out + (8 + j) * 64, _mm512_shuffle_i32x4(lo01, lo23, 0xDD));
    _mm512_storeu_si512(out + (4 + j) * 64, _mm512_shuffle_i32x4(hi01, hi23, 0x88));
    _mm512_storeu_si512(out + (12 + j) * 64, _mm512_shuffle_i32x4(hi01, hi23, 0xDD));
  }
}

}  // namespace
}  // namespace halftone::gemm
