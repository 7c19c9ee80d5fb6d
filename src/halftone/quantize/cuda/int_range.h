#pragma once
#include <cmath>

#include "halftone/formats/int_scale.h"
#include "halftone/quantize/operand_shape.h"

namespace halftone::device {

// Whether the codes of rows of int8 or int4 need no bounds, since the scale follows from the elements.
//
// Rounded to nearest, they do not where the inverse of the scale is finite. With stochastic rounding the largest quotient may be half a
// step of the draws above 127 or 7: no draw leads further. (Below -127 one does, to -128, which integer_pair takes back.)
inline constexpr double kHalfDraw = 0x1p-17;

constexpr bool draws_stay_within(uint32_t significand) {
  const uint32_t amax = 0x3F800000u | significand << 16;
  const float a = std::bit_cast<float>(amax);
  return a * int8_scale(amax).inv <= 127 + kHalfDraw && a * int4_scale(amax, 0).inv <= 7 + kHalfDraw &&
         a * int4_scale(0, amax).inv <= 8 + kHalfDraw;
}
constexpr bool all_draws_stay_within() {
  for (uint32_t i = 0; i < 128; ++i) {
    if (!draws_stay_within(i)) return false;
  }
  return true;
}
static_assert(all_draws_stay_within());  // of bf16, whose scales are their magnitude by 127, 7 or 8

// int8: the same where the scale is the floor.
inline bool floor_stays_within(float least) {
  float a = least * 127.0f;  // the largest magnitude whose scale that is
  while (a / 127.0f > least) a = std::nextafter(a, 0.0f);
  while (std::nextafter(a, INFINITY) / 127.0f <= least) a = std::nextafter(a, INFINITY);
  return a * (1.0f / least) <= 127 + kHalfDraw;
}

inline bool stays_in_range(const OperandSpec& s, DType elements) {
  if (s.granularity != Granularity::row || (s.scale_floor != 0 && s.scale_floor <= 1e-30f)) return false;
  if (!s.stochastic || is_float(s.element)) return true;
  if (elements != DType::bf16) return false;
  // A quotient by the floor of int4 is less than 2^-21 above 7.
  return s.element == Element::int4 || floor_stays_within(s.scale_floor == 0 ? kIntScaleFloor : s.scale_floor);
}

}  // namespace halftone::device
