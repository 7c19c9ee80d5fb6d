#pragma once
#include "halftone/formats/mx_scale.h"

namespace halftone::device {

// Branch-free form of every mode in formats/mx_scale.h: byte = clamp(((bits(amax * by) + add) >> 23) - below, lowest, 254).
struct MxRule {
  float by;
  uint32_t add, smallest;  // amax * by up to `smallest` stays at byte 0 (rceil)
  int below, lowest;
};
inline MxRule mx_rule(MxElement s, ScaleMode mode) {
  MxRule r{1, 0, 0, s.max_exponent, mx_lowest_byte(mode)};
  if (mode == ScaleMode::ceil) r.add = 0x7FFFFF;
  if (mode == ScaleMode::rceil) r = {s.reciprocal, 0x7FFFFF, 0x400000, 0, 0};
  if (mode == ScaleMode::even || mode == ScaleMode::adaptive) r.add = 1u << (22 - s.mantissa_bits);
  if (mode == ScaleMode::uos) r.add = 0x17FFFF, r.below = 2;
  return r;
}
}  // namespace halftone::device
