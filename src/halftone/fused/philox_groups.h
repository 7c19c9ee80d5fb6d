#pragma once
#include <immintrin.h>

#include <cstdint>

#include "halftone/base/philox.h"

namespace halftone {

// words[4 i + k] = philox(key, first + i, step)[k] for i < groups, four groups at a time in AVX2's 64-bit lanes; groups is a multiple of 4.
// The upper lane halves hold garbage that no operation reads.
inline void philox_groups(PhiloxKey key, uint64_t first, uint32_t step, int64_t groups, uint32_t* words) {
  const __m256i m0 = _mm256_set1_epi64x(0xD2511F53), m1 = _mm256_set1_epi64x(0xCD9E8D57), low = _mm256_set1_epi64x(0xFFFFFFFF);
  for (int64_t i = 0; i < groups; i += 4) {
    __m256i c0 = _mm256_add_epi64(_mm256_set1_epi64x(static_cast<int64_t>(first) + i), _mm256_setr_epi64x(0, 1, 2, 3));
    __m256i c1 = _mm256_srli_epi64(c0, 32), c2 = _mm256_set1_epi64x(step), c3 = _mm256_setzero_si256();
    PhiloxKey k = key;
    for (int round = 0; round < 10; ++round) {
      const __m256i a = _mm256_mul_epu32(c0, m0), b = _mm256_mul_epu32(c2, m1);
      c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(b, 32), c1), _mm256_set1_epi64x(k.lo));
      c2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(a, 32), c3), _mm256_set1_epi64x(k.hi));
      c1 = b;
      c3 = a;
      k.lo += 0x9E3779B9u;
      k.hi += 0xBB67AE85u;
    }
    const __m256i front = _mm256_or_si256(_mm256_and_si256(c0, low), _mm256_slli_epi64(c1, 32));
    const __m256i back = _mm256_or_si256(_mm256_and_si256(c2, low), _mm256_slli_epi64(c3, 32));
    const __m256i even = _mm256_unpacklo_epi64(front, back), odd = _mm256_unpackhi_epi64(front, back);  // groups 0 2, groups 1 3
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + 4 * i), _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + 4 * i + 8), _mm256_permute2x128_si256(even, odd, 0x31));
  }
}

}  // namespace halftone
