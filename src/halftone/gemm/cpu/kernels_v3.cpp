#include "halftone/gemm/cpu/avx2.inl.h"

namespace halftone::gemm {
namespace {

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

struct DotS16 : SumInt {
  static Acc dot(Acc acc, B a, B b) { return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b)); }
};

struct SplitBf16 {
  static __m256i low(__m256i v) { return _mm256_slli_epi32(v, 16); }
  static __m256i high(__m256i v) { return _mm256_and_si256(v, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))); }
};
struct SplitS8 {
  static __m256i low(__m256i v) { return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8); }
  static __m256i high(__m256i v) { return _mm256_srai_epi16(v, 8); }
};

// 8 x 8 units: rows of 32 bytes at `stride` to rows of 32 bytes 64 apart.
void transpose8(const std::byte* src, int64_t stride, std::byte* out) {
  __m256i r[8], t[8];
  for (int i = 0; i < 8; ++i) r[i] = Avx2::load_units(src + i * stride);
  for (int i = 0; i < 8; i += 2) t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]), t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
  for (int i = 0; i < 8; i += 4) {  // r[i + j]: columns j and j + 4 of rows i .. i + 3
    r[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]), r[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]), r[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int j = 0; j < 4; ++j) {
    Avx2::store_units(out + j * 64, _mm256_permute2x128_si256(r[j], r[4 + j], 0x20));
    Avx2::store_units(out + (j + 4) * 64, _mm256_permute2x128_si256(r[j], r[4 + j], 0x31));
  }
}
void transpose16(const std::byte* src, int64_t stride, std::byte* out) {
  for (int64_t i = 0; i < 16; i += 8)
    for (int64_t g = 0; g < 16; g += 8) transpose8(src + i * stride + g * 4, stride, out + g * 64 + i * 4);
}

}  // namespace

const Kernels& kernels_v3() {
  static constexpr Kernels table{.panels = 4,
                                 .amx = false,
                                 .chunk = 256,
                                 .s8 = register_tile<Avx2, DotS16>,
                                 .bf16 = register_tile<Avx2, DotF32>,
                                 .f32 = register_tile<Avx2, DotF32>,
                                 .widen_s8 = &kWiden<Avx2, SplitS8>,
                                 .widen_bf16 = &kWiden<Avx2, SplitBf16>,
                                 .epilogue = epilogue<Avx2>,
                                 .transpose = transpose16,
                                 .enter = nullptr,
                                 .leave = nullptr};
  return table;
}

}  // namespace halftone::gemm
