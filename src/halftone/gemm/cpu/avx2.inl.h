// AVX2 parts shared by the v3 and avxvnni files (each instantiates its own copy in an unnamed namespace).
#pragma once
#include <immintrin.h>

#include <cstring>

#include "halftone/gemm/cpu/epilogue.inl.h"
#include "halftone/gemm/cpu/register_block.inl.h"

namespace halftone::gemm {
namespace {

struct Avx2 {
  static constexpr int kRows = 6, kPanels = 1, kParts = 2;
  static constexpr int64_t kLanes = 8;

  static __m256i mask(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n < 8 ? n : 8)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static int count(__m256i m) { return __builtin_popcount(static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(m)))); }
  static __m256 set(float x) { return _mm256_set1_ps(x); }
  static __m256 load(const float* p) { return _mm256_loadu_ps(p); }
  static __m256 load(const float* p, __m256i m) { return _mm256_maskload_ps(p, m); }
  static __m256 widen(__m128i v) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16)); }
  static __m256 load(const bf16* p) { return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static __m256 load(const bf16* p, __m256i m) {
    __m128i v = _mm_setzero_si128();
    std::memcpy(&v, p, static_cast<size_t>(count(m)) * 2);
    return widen(v);
  }
  static __m256 load_int(const float* p) { return _mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static __m256 mul(__m256 a, __m256 b) { return _mm256_mul_ps(a, b); }
  static __m256 add(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
  static void store(float* p, __m256i m, __m256 v) { _mm256_maskstore_ps(p, m, v); }
  static void store_two(float* p, __m256 a, __m256 b) {
    _mm256_storeu_ps(p, a);
    _mm256_storeu_ps(p + 8, b);
  }

  // bf16 bits in the low halves of the lanes.
  static __m256i narrow(__m256 v) {
    const __m256i u = _mm256_castps_si256(v), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i r = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7FFF)), odd), 16);
    const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40));
    return _mm256_blendv_epi8(r, quiet, _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
  }
  static void store_two(bf16* p, __m256 a, __m256 b) {
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(narrow(a), narrow(b)), 0xD8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), packed);
  }
  static void store(bf16* p, __m256i m, __m256 v) {
    const __m256i x = narrow(v);
    const __m128i half = _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(x, x), 0x08));
    std::memcpy(static_cast<void*>(p), &half, static_cast<size_t>(count(m)) * 2);
  }

  using Units = __m256i;
  static Units load_units(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static void store_units(void* p, Units v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
  static Units broadcast_unit(const std::byte* p) {
    int v;
    std::memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
  }
  static Units subtract(Units v, int32_t x) { return _mm256_sub_epi32(v, _mm256_set1_epi32(x)); }
  static int32_t total(Units v) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_unpackhi_epi64(s, s));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 1)));
  }
  // a0 b0 a1 b1 ... a7 b7
  static void store_zipped(std::byte* p, Units a, Units b) {
    const Units low = _mm256_unpacklo_epi32(a, b), high = _mm256_unpackhi_epi32(a, b);
    store_units(p, _mm256_permute2x128_si256(low, high, 0x20));
    store_units(p + 32, _mm256_permute2x128_si256(low, high, 0x31));
  }
};

// int32 sums; a derived type has the product.
struct SumInt {
  using Acc = __m256i;
  using B = __m256i;
  using Element = int32_t;
  static Acc zero() { return _mm256_setzero_si256(); }
  static Acc load(const int32_t* p) { return Avx2::load_units(p); }
  static void store(int32_t* p, Acc v) { Avx2::store_units(p, v); }
  static B load_b(const std::byte* p) { return Avx2::load_units(p); }
  static B broadcast(const std::byte* p) { return Avx2::broadcast_unit(p); }
};

}  // namespace
}  // namespace halftone::gemm
