#include <immintrin.h>

#include <cstring>

#include "halftone/gemm/cpu/epilogue.inl.h"
#include "halftone/gemm/cpu/register_block.inl.h"

namespace halftone::gemm {
namespace {

inline int unit(const std::byte* p) {
  int v;
  std::memcpy(&v, p, 4);
  return v;
}

struct Avx2 {
  static constexpr int kRows = 4, kPanels = 1, kParts = 2;
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
};

struct DotF32 {
  using Acc = __m256;
  using B = __m256;
  using Element = float;
  static Acc zero() { return _mm256_setzero_ps(); }
  static Acc load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Acc v) { _mm256_storeu_ps(p, v); }
  static B load_b(const std::byte* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
  static B broadcast(const std::byte* p) { return _mm256_broadcast_ss(reinterpret_cast<const float*>(p)); }
  static Acc dot(Acc acc, B a, B b) { return _mm256_fmadd_ps(a, b, acc); }
};

// Pairs as fp32, even element first.
struct DotBf16 : DotF32 {
  using B = __m256i;
  static B load_b(const std::byte* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static B broadcast(const std::byte* p) { return _mm256_set1_epi32(unit(p)); }
  static __m256 even(B v) { return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)); }
  static __m256 odd(B v) { return _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u)))); }
  static Acc dot(Acc acc, B a, B b) { return _mm256_fmadd_ps(odd(a), odd(b), _mm256_fmadd_ps(even(a), even(b), acc)); }
};

// |a| times b with a's sign: vpmaddubsw cannot saturate for codes in -127..127.
struct DotS8 {
  using Acc = __m256i;
  using B = __m256i;
  using Element = int32_t;
  static Acc zero() { return _mm256_setzero_si256(); }
  static Acc load(const int32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static void store(int32_t* p, Acc v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
  static B load_b(const std::byte* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static B broadcast(const std::byte* p) { return _mm256_set1_epi32(unit(p)); }
  static Acc dot(Acc acc, B a, B b) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(b, a));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
};

void transpose16(const std::byte* src, int64_t stride, std::byte* out) {
  for (int64_t i = 0; i < 16; ++i)
    for (int64_t g = 0; g < 16; ++g) std::memcpy(out + g * 64 + i * 4, src + i * stride + g * 4, 4);
}

}  // namespace

const Kernels& kernels_v3() {
  static constexpr Kernels table{.panels = 4,
                                 .amx = false,
                                 .chunk = 256,
                                 .s8 = register_tile<Avx2, DotS8>,
                                 .bf16 = register_tile<Avx2, DotBf16>,
                                 .f32 = register_tile<Avx2, DotF32>,
                                 .epilogue = epilogue<Avx2>,
                                 .transpose = transpose16,
                                 .enter = nullptr,
                                 .leave = nullptr};
  return table;
}

}  // namespace halftone::gemm
