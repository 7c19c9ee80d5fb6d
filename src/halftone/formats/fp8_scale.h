#pragma once
#include "halftone/formats/float_spec.h"
#include "halftone/formats/scale_pair.h"

namespace halftone {

// fp8 amax rule (numerics.md 3.1), shared by tensor, row, 1x128, 128x128 and attention groups:
//   inv = amax < 1e-12 ? FMAX / 1e-12 : FMAX / amax, with pow2 rounded down to a power of two; scale = 1 / inv.
// f: e4m3 or e5m2.
constexpr ScalePair fp8_scale(Float f, bool pow2, uint32_t amax_bits) {
  if (poisoned(amax_bits)) return {quiet_nan(), quiet_nan()};
  const bool wide = f == Float::e5m2;
  const float a = std::bit_cast<float>(amax_bits);
  float inv = a < 1e-12f ? std::bit_cast<float>(wide ? 0x5B4BBA10u : 0x57CBBA10u) : (wide ? 57344.0f : 448.0f) / a;
  if (pow2) inv = std::bit_cast<float>(std::bit_cast<uint32_t>(inv) & 0xFF800000u);
  return {1.0f / inv, inv};
}

static_assert(spec(Float::e4m3).max_finite() == 448 && spec(Float::e5m2).max_finite() == 57344);
static_assert(std::bit_cast<uint32_t>(static_cast<float>(448 / 1e-12)) == 0x57CBBA10u);
static_assert(std::bit_cast<uint32_t>(static_cast<float>(57344 / 1e-12)) == 0x5B4BBA10u);
static_assert(fp8_scale(Float::e4m3, false, std::bit_cast<uint32_t>(448.0f)).inv == 1);
static_assert(fp8_scale(Float::e4m3, true, std::bit_cast<uint32_t>(449.0f)).inv == 0.5f);
static_assert(fp8_scale(Float::e5m2, false, std::bit_cast<uint32_t>(2.0f)).inv == 28672);
static_assert(fp8_scale(Float::e4m3, false, 0).inv == std::bit_cast<float>(0x57CBBA10u));

}  // namespace halftone
