#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "halftone/base/error.h"
#include "halftone/base/parallel.h"
#include "halftone/gemm/cpu/kernels.h"

namespace halftone::gemm {
namespace {

__m128i load16(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
void store16(std::byte* p, __m128i v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v); }

// One group of 16 columns: interleaves G consecutive rows of src element by element.
void interleave_s8(const std::byte* src, int64_t ld, std::byte* out) {
  const __m128i a = load16(src), b = load16(src + ld), c = load16(src + 2 * ld), d = load16(src + 3 * ld);
  const __m128i ab_lo = _mm_unpacklo_epi8(a, b), ab_hi = _mm_unpackhi_epi8(a, b), cd_lo = _mm_unpacklo_epi8(c, d),
                cd_hi = _mm_unpackhi_epi8(c, d);
  store16(out, _mm_unpacklo_epi16(ab_lo, cd_lo));
  store16(out + 16, _mm_unpackhi_epi16(ab_lo, cd_lo));
  store16(out + 32, _mm_unpacklo_epi16(ab_hi, cd_hi));
  store16(out + 48, _mm_unpackhi_epi16(ab_hi, cd_hi));
}
void interleave_bf16(const std::byte* src, int64_t ld, std::byte* out) {
  for (int h = 0; h < 2; ++h) {
    const __m128i a = load16(src + 16 * h), b = load16(src + ld + 16 * h);
    store16(out + 32 * h, _mm_unpacklo_epi16(a, b));
    store16(out + 32 * h + 16, _mm_unpackhi_epi16(a, b));
  }
}
void interleave_f32(const std::byte* src, int64_t, std::byte* out) { std::memcpy(out, src, 64); }

void check_pack(DType type, int64_t k, int64_t n, int64_t ld, int64_t least, const void* src, const void* out) {
  check(type == DType::s8 || type == DType::bf16 || type == DType::f32, "packing: expected s8, bf16 or f32, found type {}",
        static_cast<int>(type));
  check(k >= 0 && n >= 0 && ld >= least, "packing: expected sizes >= 0 and a row stride >= {}, found k {}, n {}, stride {}", least, k, n,
        ld);
  check((src != nullptr && out != nullptr) || k * n == 0, "packing: no source or no buffer for {} x {}", k, n);
}

const Kernels& best() {
  const CpuFeatures& f = cpu_features();
  return f.avx512 ? kernels_avx512() : kernels_v3();
}

}  // namespace

void pack_rows(DType type, int64_t n, int64_t k, const void* src, int64_t ld, void* out) {
  check_pack(type, k, n, ld, n > 1 ? k : 0, src, out);
  const auto transpose = best().transpose;
  const auto size = static_cast<int64_t>(size_of(type));
  const int64_t row = k * size, stride = ld * size, bytes = panel_bytes(type, k);
  parallel_for(ceil_div(n, kPanelColumns), std::max<int64_t>(1, (1 << 16) / std::max<int64_t>(bytes, 1)), [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const auto* first = static_cast<const std::byte*>(src) + p * kPanelColumns * stride;
      auto* panel = static_cast<std::byte*>(out) + p * bytes;
      const int64_t rows = std::min(kPanelColumns, n - p * kPanelColumns);
      for (int64_t at = 0; at < row; at += 64) {
        if (rows == kPanelColumns && at + 64 <= row) {
          transpose(first + at, stride, panel + at * 16);
          continue;
        }
        std::byte tile[16 * 64] = {};
        for (int64_t r = 0; r < rows; ++r)
          std::memcpy(tile + r * 64, first + r * stride + at, static_cast<size_t>(std::min<int64_t>(64, row - at)));
        transpose(tile, 64, panel + at * 16);
      }
    }
  });
}

void pack_columns(DType type, int64_t k, int64_t n, const void* src, int64_t ld, void* out) {
  check_pack(type, k, n, ld, k > 1 ? n : 0, src, out);
  const auto size = static_cast<int64_t>(size_of(type)), g = group_size(type);
  const int64_t stride = ld * size, bytes = panel_bytes(type, k), width = kPanelColumns * size;
  const auto interleave = type == DType::s8 ? interleave_s8 : type == DType::bf16 ? interleave_bf16 : interleave_f32;
  const int64_t tiles = panel_groups(type, k) / kTileGroups;
  const int64_t grain = std::max<int64_t>(1, (1 << 16) / std::max<int64_t>(kTileGroups * kGroupBytes * ceil_div(n, kPanelColumns), 1));
  parallel_for(tiles, grain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t c = 0; c < n; c += kPanelColumns) {
        std::byte* group = static_cast<std::byte*>(out) + c / kPanelColumns * bytes + t * kTileGroups * kGroupBytes;
        const int64_t columns = std::min(kPanelColumns, n - c);
        for (int64_t q = t * kTileGroups; q < (t + 1) * kTileGroups; ++q, group += kGroupBytes) {
          const auto* from = static_cast<const std::byte*>(src) + q * g * stride + c * size;
          const int64_t rows = std::clamp<int64_t>(k - q * g, 0, g);
          if (rows == g && columns == kPanelColumns) {
            interleave(from, stride, group);
            continue;
          }
          std::byte edge[4 * 64] = {};
          for (int64_t r = 0; r < rows; ++r) std::memcpy(edge + r * width, from + r * stride, static_cast<size_t>(columns * size));
          interleave(edge, width, group);
        }
      }
    }
  });
}

}  // namespace halftone::gemm
