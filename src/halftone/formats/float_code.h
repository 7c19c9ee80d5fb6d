#pragma once
#include <bit>
#include <cstdint>
#include <limits>

#include "halftone/formats/float_spec.h"
#include "halftone/formats/stochastic.h"

namespace halftone {

// Code of every element of a poisoned scale group (numerics.md 2.2): NaN in 8-bit formats that have one, else 0 (the scale then carries the
// NaN).
constexpr uint8_t poison_code(Float f) { return spec(f).specials == Specials::None ? 0 : 0x7F; }

namespace detail {

// |y| in units of the local quantum: k = floor, f = the remainder in [0, 1), both exact; |y| is capped at max finite.
struct FloatPosition {
  int64_t k;
  double f;
  int exponent;
};

constexpr FloatPosition position(FloatSpec s, double a) {
  if (a > s.max_finite()) a = s.max_finite();
  const auto field = static_cast<int>(std::bit_cast<uint64_t>(a) >> 52) - 1023;  // an fp32 is never subnormal as double
  const int e = field > 1 - s.bias ? field : 1 - s.bias;
  const double q = a / FloatSpec::pow2(e - s.mantissa_bits);
  const auto k = static_cast<int64_t>(q);
  return {k, q - static_cast<double>(k), e};
}

constexpr uint8_t assemble(FloatSpec s, FloatPosition p, int64_t k, bool negative) {
  // k runs from 2^mb to 2^(mb+1) in normal binades and from 0 in the subnormal one, so one sum covers both and carries.
  int64_t code = (static_cast<int64_t>(p.exponent + s.bias - 1) << s.mantissa_bits) + k;
  if (code > s.max_code()) code = s.max_code();
  return static_cast<uint8_t>(code | (negative ? s.sign_mask() : 0));
}

}  // namespace detail

// Encodes y (already multiplied by inv_scale): nearest, ties to even, saturating; the sign of zero is kept. A non-finite y gives the poison
// code. numerics.md 2.1.
constexpr uint8_t encode(Float f, float y) {
  const FloatSpec s = spec(f);
  const uint32_t bits = std::bit_cast<uint32_t>(y), magnitude = bits & 0x7FFFFFFFu;
  if (magnitude >= 0x7F800000u) return poison_code(f);
  const auto p = detail::position(s, static_cast<double>(std::bit_cast<float>(magnitude)));
  const bool up = p.f > 0.5 || (p.f == 0.5 && (p.k & 1) != 0);
  return detail::assemble(s, p, p.k + (up ? 1 : 0), (bits >> 31) != 0);
}

// Stochastic rounding; u16 is the element's draw of L = 16 bits (numerics.md section 4).
constexpr uint8_t encode_sr(Float f, float y, uint16_t u16) {
  const FloatSpec s = spec(f);
  const uint32_t bits = std::bit_cast<uint32_t>(y), magnitude = bits & 0x7FFFFFFFu;
  if (magnitude >= 0x7F800000u) return poison_code(f);
  const auto p = detail::position(s, static_cast<double>(std::bit_cast<float>(magnitude)));
  return detail::assemble(s, p, p.k + (sr_up16(p.f, u16) ? 1 : 0), (bits >> 31) != 0);
}

// Value of a code; bits above the format's width are ignored.
constexpr float decode(Float f, uint8_t code) {
  const FloatSpec s = spec(f);
  const int magnitude = code & (s.sign_mask() - 1);
  const bool negative = (code & s.sign_mask()) != 0;
  if (magnitude > s.max_code()) {
    const bool infinite = s.specials == Specials::Ieee && magnitude == s.max_code() + 1;
    if (!infinite) return std::numeric_limits<float>::quiet_NaN();
    return negative ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::infinity();
  }
  const int e = magnitude >> s.mantissa_bits, m = magnitude & ((1 << s.mantissa_bits) - 1);
  const double v = e == 0 ? m * s.min_subnormal() : FloatSpec::pow2(e - s.bias) * (1.0 + m * FloatSpec::pow2(-s.mantissa_bits));
  return static_cast<float>(negative ? -v : v);
}

static_assert(decode(Float::e4m3, 0x7E) == 448 && encode(Float::e4m3, 1e9f) == 0x7E && encode(Float::e2m1, -2.5f) == 0xC);

}  // namespace halftone
