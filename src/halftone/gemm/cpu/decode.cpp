#include "halftone/gemm/cpu/decode.h"

#include <array>
#include <bit>

#include "halftone/base/error.h"
#include "halftone/base/parallel.h"
#include "halftone/formats/float_code.h"
#include "halftone/formats/scale_code.h"
#include "halftone/quantize/panels.h"

namespace halftone::gemm {
namespace {

using Table = std::array<float, 256>;

float code_value(Element e, uint8_t code) {
  switch (e) {
    case Element::e4m3:
      return decode(Float::e4m3, code);
    case Element::e5m2:
      return decode(Float::e5m2, code);
    case Element::e3m2:
      return decode(Float::e3m2, code & 0x3F);
    case Element::e2m3:
      return decode(Float::e2m3, code & 0x3F);
    case Element::e2m1:
      return decode(Float::e2m1, code & 0xF);
    case Element::int8:
    case Element::ternary:
      return static_cast<int8_t>(code);
    case Element::int4:  // the low nibble, so that packed and unpacked codes read alike
      return static_cast<int8_t>(code << 4) >> 4;
    case Element::uint4:
      return code & 0xF;
    default:
      fail("decode: an unquantised operand has no codes");
  }
}

Table code_table(Element e) {
  Table t;
  for (int c = 0; c < 256; ++c) t[c] = code_value(e, static_cast<uint8_t>(c));
  return t;
}

Table scale_table(ScaleFormat f) {
  Table t{};
  for (int c = 0; c < 256; ++c) {
    const auto byte = static_cast<uint8_t>(c);
    t[c] = f == ScaleFormat::e8m0 ? decode_e8m0(byte) : f == ScaleFormat::ue5m3 ? decode_ue5m3(byte) : decode(Float::e4m3, byte);
  }
  return t;
}

bool byte_scales(ScaleFormat f) { return f == ScaleFormat::e8m0 || f == ScaleFormat::e4m3 || f == ScaleFormat::ue5m3; }

// Factors 1 / inv_macro, inv_macro = 1.mmmmmmmm (numerics.md 3.5).
float macro_factor(uint8_t byte) { return 1.0f / std::bit_cast<float>((static_cast<uint32_t>(byte) << 15) + 0x3F800000u); }

struct Scales {
  const QuantizedCopy& c;
  Table bytes;
  int64_t cols, across;  // blocks along a row

  Scales(const QuantizedCopy& copy, int64_t columns) : c(copy), cols(columns) {
    if (byte_scales(c.spec.scale)) bytes = scale_table(c.spec.scale);
    across = c.spec.block > 0 ? ceil_div(cols, c.spec.block) : 1;
  }
  int64_t index(int64_t r, int64_t b) const {
    switch (c.spec.granularity) {
      case Granularity::tensor:
        return 0;
      case Granularity::row:
        return r;
      case Granularity::block:
        return r * across + b;
      default:
        return r / c.spec.block * across + b;
    }
  }
  float at(int64_t r, int64_t b) const {
    const int64_t i = index(r, b);
    return byte_scales(c.spec.scale) ? bytes[static_cast<const uint8_t*>(c.scales)[i]] : static_cast<const float*>(c.scales)[i];
  }
  float macro(int64_t r, int64_t b) const {
    const int64_t row = c.spec.granularity == Granularity::tile ? r / kScaleBlock : r;
    return macro_factor(c.macro[row * ceil_div(cols, kScaleBlock) + b]);
  }
};

void store(float v, float& out, bool) { out = v; }
// Exact values need no rounding; the NaN of a poisoned block keeps its upper half.
void store(float v, bf16& out, bool exact) {
  if (exact)
    out.bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(v) >> 16);
  else
    out = bf16(v);
}
void store(float v, int8_t& out, bool) { out = static_cast<int8_t>(v); }

template <class T> void decode_rows(const QuantizedCopy& c, int64_t rows, int64_t cols, Decode what, T* out) {
  const OperandSpec& spec = c.spec;
  const Table table = code_table(spec.element);
  const Scales scales(c, cols);
  const bool full = what == Decode::everything, uint4 = spec.element == Element::uint4;
  const bool folded = full || byte_scales(spec.scale) || uint4;
  const int64_t width = spec.block > 0 ? spec.block : std::max<int64_t>(cols, 1);
  const float outer = full && spec.two_level == TwoLevel::tensor ? c.outer[0] : 1.0f;
  const float clip = full && spec.clip == Clip::fixed ? 4.0f / 3.0f : 1.0f;
  parallel_for(rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(cols, 1)), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      T* row = out + r * cols;
      for (int64_t b = 0; b * width < cols; ++b) {
        const int64_t c0 = b * width, c1 = std::min(cols, c0 + width);
        float scale = folded ? scales.at(r, b) : 1.0f;
        const float zero = uint4 ? c.zeros[scales.index(r, b)] : 0.0f;
        if (full) {
          scale *= outer * clip;
          if (spec.two_level == TwoLevel::macro) scale *= scales.macro(r, c0 / kScaleBlock);
        }
        if (c.codes != nullptr) {
          const uint8_t* codes = c.codes + r * cols;
          for (int64_t j = c0; j < c1; ++j) store(zero + table[codes[j]] * scale, row[j], !uint4);
        } else {
          const uint8_t* packed = c.packed + r * (cols / 2);
          for (int64_t j = c0; j < c1; ++j) store(zero + table[packed[j / 2] >> (j % 2 * 4) & 0xF] * scale, row[j], !uint4);
        }
      }
    }
  });
}

}  // namespace

void decode(const QuantizedCopy& copy, int64_t rows, int64_t cols, Decode what, DType type, void* out) {
  check(copy.codes != nullptr || copy.packed != nullptr, "decode: the copy has neither codes nor packed codes");
  if (type == DType::f32) return decode_rows(copy, rows, cols, what, static_cast<float*>(out));
  if (type == DType::s8) {
    const Element e = copy.spec.element;
    check(e == Element::int8 || e == Element::int4 || e == Element::ternary, "decode: only signed integer codes are int8 values");
    return decode_rows(copy, rows, cols, Decode::values, static_cast<int8_t*>(out));
  }
  check(type == DType::bf16, "decode: expected bf16, f32 or s8 values, found type {}", static_cast<int>(type));
  decode_rows(copy, rows, cols, what, static_cast<bf16*>(out));
}

void block_scales(const QuantizedCopy& copy, int64_t rows, int64_t cols, float* out) {
  const Scales scales(copy, cols);
  const bool macro = copy.spec.two_level == TwoLevel::macro;
  check(macro || copy.spec.block == kScaleBlock, "products take outside scales per 128 elements, found blocks of {}", copy.spec.block);
  for (int64_t b = 0; b < ceil_div(cols, kScaleBlock); ++b) {
    for (int64_t r = 0; r < rows; ++r) out[b * rows + r] = macro ? scales.macro(r, b) : scales.at(r, b);
  }
}

}  // namespace halftone::gemm
