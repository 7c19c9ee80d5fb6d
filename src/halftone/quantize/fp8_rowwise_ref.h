#pragma once
#include "halftone/formats/float_code.h"
#include "halftone/formats/fp8_scale.h"
#include "halftone/quantize/fp8_rowwise.h"
#include "halftone/quantize/int8_ref.h"

namespace halftone::ref {

struct Fp8Scale {
  float scale, inv;  // inv = 0 in a poisoned group
};
inline Fp8Scale fp8_scale_pow2(uint32_t amax) {
  const ScalePair s = fp8_scale(Float::e4m3, true, amax);
  return {s.scale, poisoned(amax) ? 0.0f : s.inv};
}

// Scalar reference of halftone::fp8_rowwise.
inline void fp8_rowwise(const Fp8Rowwise& p) {
  const auto code = [&](int64_t r, int64_t c, Fp8Scale s) -> uint8_t {
    return std::isnan(s.scale) ? poison_code(Float::e4m3) : encode(Float::e4m3, element(p.x, p.type, r * p.ld + c) * s.inv);
  };
  const auto value = [](uint8_t code) { return bf16(decode(Float::e4m3, code)); };
  if (p.row_scale != nullptr) {
    for (int64_t r = 0; r < p.rows; ++r) {
      uint32_t amax = 0;
      for (int64_t c = 0; c < p.cols; ++c) amax = amax_bits(amax, element(p.x, p.type, r * p.ld + c));
      const Fp8Scale s = fp8_scale_pow2(amax);
      p.row_scale[r] = s.scale;
      for (int64_t c = 0; c < p.cols; ++c) {
        const uint8_t q = code(r, c, s);
        if (p.row_codes != nullptr) p.row_codes[r * p.cols + c] = q;
        if (p.row_values != nullptr) p.row_values[r * p.cols + c] = value(q);
      }
    }
  }
  if (p.col_scale != nullptr) {
    auto* out = static_cast<std::byte*>(p.col_panels);
    if (out != nullptr) std::memset(out, 0, static_cast<size_t>(panels_bytes(DType::bf16, p.rows, p.cols)));
    for (int64_t c = 0; c < p.cols; ++c) {
      uint32_t amax = 0;
      for (int64_t r = 0; r < p.rows; ++r) amax = amax_bits(amax, element(p.x, p.type, r * p.ld + c));
      const Fp8Scale s = fp8_scale_pow2(amax);
      p.col_scale[c] = s.scale;
      for (int64_t r = 0; r < p.rows; ++r) {
        const uint8_t q = code(r, c, s);
        if (p.col_codes != nullptr) p.col_codes[r * p.cols + c] = q;
        const bf16 v = value(q);
        if (out != nullptr) std::memcpy(out + panel_offset(DType::bf16, p.rows, r, c), &v, 2);
      }
    }
  }
}

}  // namespace halftone::ref
