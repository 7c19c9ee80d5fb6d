#pragma once
#include <bit>
#include <cstdint>
#include <limits>

#include "halftone/formats/float_spec.h"

namespace halftone {

// Scale formats (numerics.md section 2). e8m0: 2^(byte-127), 255 = NaN, no zero, no sign. ue5m3: 5 exponent and 3 mantissa bits, bias 15,
// 0x00 = 0, 0xFF = NaN, no infinity.
inline constexpr uint8_t kE8m0Nan = 255, kUe5m3Nan = 0xFF;
inline constexpr float kUe5m3Max = 114688.0f;

constexpr float decode_e8m0(uint8_t byte) {
  if (byte == kE8m0Nan) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(byte == 0 ? 0x00400000u : static_cast<uint32_t>(byte) << 23);
}

// Byte of 2^e; clamps e to [-127, 127].
constexpr uint8_t encode_e8m0(int e) { return static_cast<uint8_t>((e < -127 ? -127 : e > 127 ? 127 : e) + 127); }

constexpr float decode_ue5m3(uint8_t code) {
  if (code == kUe5m3Nan) return std::numeric_limits<float>::quiet_NaN();
  const int e = code >> 3, m = code & 7;
  return static_cast<float>(e == 0 ? m * 0x1p-17 : FloatSpec::pow2(e - 15) * (1.0 + m / 8.0));
}

// Nearest, ties to even; negative values give 0; values above 114688, infinity and NaN give NaN (numerics.md 3.6).
constexpr uint8_t encode_ue5m3(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return kUe5m3Nan;
  if ((bits >> 31) != 0) return 0;
  if (x > kUe5m3Max) return kUe5m3Nan;
  const int field = static_cast<int>(bits >> 23) - 127, e = field > -14 ? field : -14;
  const double q = static_cast<double>(x) / FloatSpec::pow2(e - 3);
  auto k = static_cast<int>(q);
  const double f = q - k;
  if (f > 0.5 || (f == 0.5 && (k & 1) != 0)) ++k;
  return static_cast<uint8_t>(((e + 14) << 3) + k);
}

static_assert(decode_e8m0(127) == 1 && decode_e8m0(0) == 0x1p-127f && decode_e8m0(254) == 0x1p127f);
static_assert(decode_ue5m3(0x78) == 1 && decode_ue5m3(0xFE) == kUe5m3Max && decode_ue5m3(0x08) == 0x1p-14f && decode_ue5m3(1) == 0x1p-17f);

}  // namespace halftone
