#pragma once
#include <array>

#include "halftone/formats/fp4_scale.h"
#include "halftone/formats/mx_scale.h"
#include "halftone/formats/packing.h"
#include "halftone/quantize/check_operand.h"

namespace halftone::ref {

// Unpacks code i of row-major packed codes (QuantizedCopy::packed) to its form in QuantizedCopy::codes.
inline uint8_t unpacked_code(Element e, const uint8_t* packed, int64_t i) {
  uint8_t q = 0;
  if (bits_of(e) == 4) q = unpack4(packed[i / 2], static_cast<int>(i % 2));
  if (bits_of(e) == 2) q = unpack2(packed[i / 4], static_cast<int>(i % 4));
  if (bits_of(e) == 6) {
    const uint8_t* p = packed + i / 4 * 3;
    q = unpack6(p[0] | static_cast<uint32_t>(p[1]) << 8 | static_cast<uint32_t>(p[2]) << 16, static_cast<int>(i % 4));
  }
  if (e == Element::int4 || e == Element::ternary) return static_cast<uint8_t>(sign_extend(q, bits_of(e)));
  return q;
}

// Value of a code before scaling.
inline float code_value(Element e, uint8_t q) {
  static const auto table = [] {
    std::array<std::array<float, 256>, 5> t{};
    for (size_t f = 0; f < 5; ++f)
      for (size_t i = 0; i < 256; ++i) t[f][i] = decode(static_cast<Float>(f), static_cast<uint8_t>(i));
    return t;
  }();
  return is_float(e) ? table[static_cast<size_t>(float_of(e))][q] : static_cast<float>(static_cast<int8_t>(q));
}

// Fully dequantised element (r, c) of a copy [R, C], from its codes and scales: code * scale * outer / inv_macro * 4/3 (static clip), or
// zero + code * scale. Rotations are not undone.
inline double dequantized(const QuantizedCopy& q, int64_t R, int64_t C, int64_t r, int64_t c) {
  const OperandSpec& s = q.spec;
  const BlockShape b = block_shape(s, R, C);
  const bool grouped = s.granularity == Granularity::block || s.granularity == Granularity::tile;
  const int64_t at = s.granularity == Granularity::tensor ? 0 : grouped ? r / b.rows * ((C + b.cols - 1) / b.cols) + c / b.cols : r;
  const uint8_t code = q.codes != nullptr ? q.codes[r * C + c] : unpacked_code(s.element, q.packed, r * C + c);
  double v = code_value(s.element, code);
  v *= has_byte_scales(s.scale) ? decode_block_scale(s.scale, static_cast<const uint8_t*>(q.scales)[at])
                                : static_cast<const float*>(q.scales)[at];
  if (s.element == Element::uint4) v += q.zeros[at];
  if (s.two_level == TwoLevel::tensor) v *= q.outer[0];
  if (s.two_level == TwoLevel::macro) {
    const int64_t high = s.granularity == Granularity::tile ? 128 : 1;
    v /= inv_macro(q.macro[r / high * ((C + 127) / 128) + c / 128]);
  }
  return s.clip == Clip::fixed ? v * 4 / 3 : v;
}

}  // namespace halftone::ref
