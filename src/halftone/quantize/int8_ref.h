#pragma once
#include <cmath>
#include <cstring>
#include <limits>

#include "halftone/formats/int_scale.h"
#include "halftone/quantize/int8.h"

namespace halftone::ref {

inline float element(const void* x, DType type, int64_t i) {
  return type == DType::f32 ? static_cast<const float*>(x)[i] : static_cast<float>(static_cast<const bf16*>(x)[i]);
}

// amax as an integer maximum, so that NaN > Inf > finite (numerics.md section 1).
inline uint32_t amax_bits(uint32_t a, float x) { return std::max(a, std::bit_cast<uint32_t>(x) & 0x7FFFFFFFu); }

struct Int8Scale {
  float scale, inv;  // inv = 0 in a poisoned group
};
inline Int8Scale int8_scale(uint32_t amax) {
  const ScalePair s = halftone::int8_scale(amax);
  return {s.scale, poisoned(amax) ? 0.0f : s.inv};
}

// Scalar reference of halftone::int8_quantize.
inline void int8_quantize(const Int8Quantize& p) {
  const auto code = [&](int64_t r, int64_t c, Int8Scale s, const Rounding& how) -> int8_t {
    if (std::isnan(s.scale)) return 0;
    const float y = element(p.x, p.type, r * p.ld + c) * s.inv;
    return static_cast<int8_t>(how.stochastic ? encode_sr(Int::int8, y, sr_bits16(how, how.index(r, c, p.cols))) : encode(Int::int8, y));
  };
  if (p.row_codes != nullptr) {
    const int64_t ld = p.row_codes_ld == 0 ? p.cols : p.row_codes_ld;
    for (int64_t r = 0; r < p.rows; ++r) {
      uint32_t amax = 0;
      for (int64_t c = 0; c < p.cols; ++c) amax = amax_bits(amax, element(p.x, p.type, r * p.ld + c));
      const Int8Scale s = int8_scale(amax);
      p.row_scale[r] = s.scale;
      for (int64_t c = 0; c < p.cols; ++c) p.row_codes[r * ld + c] = code(r, c, s, p.row_rounding);
    }
  }
  if (p.col_panels != nullptr) {
    auto* out = static_cast<int8_t*>(p.col_panels);
    std::memset(out, 0, static_cast<size_t>(panels_bytes(DType::s8, p.rows, p.cols)));
    for (int64_t c = 0; c < p.cols; ++c) {
      uint32_t amax = 0;
      for (int64_t r = 0; r < p.rows; ++r) amax = amax_bits(amax, element(p.x, p.type, r * p.ld + c));
      const Int8Scale s = int8_scale(amax);
      p.col_scale[c] = s.scale;
      for (int64_t r = 0; r < p.rows; ++r) out[panel_offset(DType::s8, p.rows, r, c)] = code(r, c, s, p.col_rounding);
    }
  }
}

}  // namespace halftone::ref
