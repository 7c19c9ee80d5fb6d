#include "halftone/gemm/cpu/avx512.inl.h"

namespace halftone::gemm {
namespace {

struct DotBf16 {
  using Acc = __m512;
  using B = __m512bh;
  using Element = float;
  static Acc zero() { return _mm512_setzero_ps(); }
  static Acc load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Acc v) { _mm512_storeu_ps(p, v); }
  static B load_b(const std::byte* p) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p)); }
  static B broadcast(const std::byte* p) { return reinterpret_cast<__m512bh>(_mm512_set1_epi32(unit(p))); }
  static Acc dot(Acc acc, B a, B b) { return _mm512_dpbf16_ps(acc, a, b); }
};

// vpdpbusd multiplies unsigned by signed: b + 128 by a, which adds 128 * sum(a) to every element of a row; int32
// arithmetic wraps, so subtracting it afterwards is exact.
struct DotS8 {
  using Acc = __m512i;
  using B = __m512i;
  using Element = int32_t;
  static Acc zero() { return _mm512_setzero_si512(); }
  static Acc load(const int32_t* p) { return _mm512_loadu_si512(p); }
  static void store(int32_t* p, Acc v) { _mm512_storeu_si512(p, v); }
  static B load_b(const std::byte* p) { return _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(static_cast<char>(0x80))); }
  static B broadcast(const std::byte* p) { return _mm512_set1_epi32(unit(p)); }
  static Acc dot(Acc acc, B a, B b) { return _mm512_dpbusd_epi32(acc, b, a); }
};

// -128 * sum(a) per row of the block.
void row_sums(const TileArgs& t, int32_t* sums) {
  for (int64_t h = 0; h * 16 < t.rows; ++h) {
    const std::byte* a = t.a.data + h * t.a.half;
    __m512i s = _mm512_setzero_si512();
    const __m512i offset = _mm512_set1_epi8(static_cast<char>(0x80));
    if (t.a.row == 4) {
      for (int64_t g = 0; g < t.groups; ++g) s = _mm512_dpbusd_epi32(s, offset, _mm512_loadu_si512(a + g * t.a.group));
      _mm512_storeu_si512(sums + h * 16, s);
    } else {
      for (int64_t r = 0; r < 16 && h * 16 + r < round_up(t.rows, Wide::kRows); ++r) {
        const std::byte* row = a + r * t.a.row;
        s = _mm512_setzero_si512();
        int64_t g = 0;
        for (; g + 16 <= t.groups; g += 16) s = _mm512_dpbusd_epi32(s, offset, _mm512_loadu_si512(row + g * 4));
        const auto m = static_cast<__mmask16>((1u << (t.groups - g)) - 1);
        s = _mm512_dpbusd_epi32(s, offset, _mm512_maskz_loadu_epi32(m, row + g * 4));
        sums[h * 16 + r] = _mm512_reduce_add_epi32(s);
      }
    }
  }
}

void tile_s8(const TileArgs& t) {
  alignas(64) int32_t sums[kBlockRows];
  row_sums(t, sums);
  auto* acc = static_cast<int32_t*>(t.acc);
  register_tile<Wide, DotS8>(t);
  for (int64_t r = 0; r < t.rows; ++r) {
    const __m512i s = _mm512_set1_epi32(sums[r]);
    for (int64_t c = 0; c < t.panels * 16; c += 16) {
      int32_t* p = acc + r * t.acc_ld + c;
      _mm512_storeu_si512(p, _mm512_sub_epi32(_mm512_loadu_si512(p), s));
    }
  }
}

}  // namespace

const Kernels& kernels_vnni() {
  static constexpr Kernels table{.panels = Wide::kPanels,
                                 .amx = false,
                                 .chunk = 256,
                                 .s8 = tile_s8,
                                 .bf16 = register_tile<Wide, DotBf16>,
                                 .f32 = register_tile<Wide, DotF32>,
                                 .epilogue = epilogue<Wide>,
                                 .transpose = transpose16,
                                 .enter = nullptr,
                                 .leave = nullptr};
  return table;
}

}  // namespace halftone::gemm
