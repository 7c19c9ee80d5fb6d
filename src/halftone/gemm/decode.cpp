#include "halftone/gemm/decode.h"

#include <algorithm>
#include <array>

#include "halftone/base/error.h"
#include "halftone/base/parallel.h"
#include "halftone/quantize/panels.h"

namespace halftone::gemm {
namespace {

void store(float v, float& out, bool) { out = v; }
// Exact values need no rounding; the NaN of a poisoned block keeps its upper half.
void store(float v, bf16& out, bool exact) {
  if (exact) {
    out.bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(v) >> 16);
  } else {
    out = bf16(v);
  }
}
void store(float v, int8_t& out, bool) { out = static_cast<int8_t>(v); }

template <class T>
void decode_rows(const DecodeCopy& p, T* out) {
  const QuantizedCopy& c = p.copy;
  const OperandSpec& s = c.spec;
  std::array<float, 256> values, scales;
  for (int i = 0; i < 256; ++i) {
    values[i] = code_value(s.element, static_cast<uint8_t>(i));
    scales[i] = has_byte_scales(s.scale) ? decode_block_scale(s.scale, static_cast<uint8_t>(i)) : 1.0f;
  }
  const bool full = p.what == Decode::everything, uint4 = s.element == Element::uint4, exact = !full && !uint4;
  const int64_t cols = p.cols, width = s.block > 0 ? s.block : std::max<int64_t>(cols, 1);
  parallel_for(p.rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(cols, 1)), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      T* row = out + r * cols;
      for (int64_t b = 0; b * width < cols; ++b) {
        const int64_t c0 = b * width, c1 = std::min(cols, c0 + width), at = scale_index(s, cols, r, b);
        const float byte = has_byte_scales(s.scale) ? scales[static_cast<const uint8_t*>(c.scales)[at]] : 1.0f;
        const float factor = code_factor(c, full, cols, r, b, byte), zero = uint4 ? c.zeros[at] : -0.0f;
        if (c.codes != nullptr) {
          const uint8_t* codes = c.codes + r * cols;
          for (int64_t j = c0; j < c1; ++j) store(zero + values[codes[j]] * factor, row[j], exact);
        } else {
          const uint8_t* packed = c.packed + r * (cols / 2);
          for (int64_t j = c0; j < c1; ++j) store(zero + values[packed[j / 2] >> (j % 2 * 4) & 0xF] * factor, row[j], exact);
        }
      }
    }
  });
}

}  // namespace

void decode(const DecodeCopy& p) {
  const Element e = p.copy.spec.element;
  check(p.copy.codes != nullptr || p.copy.packed != nullptr, "decode: the copy has neither codes nor packed codes");
  switch (p.type) {
    case DType::f32:
      return decode_rows(p, static_cast<float*>(p.out));
    case DType::bf16:
      return decode_rows(p, static_cast<bf16*>(p.out));
    default:
      check(p.type == DType::s8 && !is_float(e) && e != Element::uint4 && p.what == Decode::values,
            "decode: expected values in bf16 or f32, or signed integer codes in s8");
      return decode_rows(p, static_cast<int8_t*>(p.out));
  }
}

void block_scales(const QuantizedCopy& copy, int64_t rows, int64_t cols, float* out) {
  const OperandSpec& s = copy.spec;
  const bool macro = s.two_level == TwoLevel::macro;
  check(macro || s.block == kScaleBlock, "products take outside scales per 128 elements, found blocks of {}", s.block);
  for (int64_t b = 0; b < ceil_div(cols, kScaleBlock); ++b) {
    for (int64_t r = 0; r < rows; ++r) {
      out[b * rows + r] = macro ? 1.0f / inv_macro(copy.macro[macro_index(s, cols, r, b)])
                                : static_cast<const float*>(copy.scales)[scale_index(s, cols, r, b)];
    }
  }
}

}  // namespace halftone::gemm
