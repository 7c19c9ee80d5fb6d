#pragma once
#include <bit>
#include <cstdint>

namespace halftone {

// Stochastic rounding decisions (numerics.md section 4): up <=> u + 1/2 < f * 2^L, with f in [0, 1) the position between the two
// neighbours. f is a double so that it is exact for every fp32 value (y - floor(y) of a tiny negative y is not exact in fp32). P(up) is f
// rounded to a multiple of 2^-L; f = 0 never rounds up.
constexpr bool sr_up16(double f, uint16_t u) { return u + 0.5 < f * 0x1p16; }
constexpr bool sr_up32(double f, uint32_t u) { return u + 0.5 < f * 0x1p32; }

// fp32 to bf16 bits: up is away from zero; infinities and NaN are truncated, not rounded. A NaN whose payload lies only in the lower half
// stays NaN.
constexpr uint16_t bf16_bits_sr(float x, uint16_t u) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7F800000u) == 0x7F800000u) {
    const bool nan = (bits & 0x007FFFFFu) != 0;
    return static_cast<uint16_t>((bits >> 16) | (nan ? 0x40 : 0));
  }
  if (sr_up16((bits & 0xFFFFu) * 0x1p-16, u)) bits += 0x10000u;
  return static_cast<uint16_t>(bits >> 16);
}

}  // namespace halftone
