#pragma once
#include <bit>
#include <cstdint>

namespace halftone {

// fp32 to bf16 bits (the upper half of an fp32), nearest, ties to even; NaN stays NaN.
constexpr uint16_t bf16_bits(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((u >> 16) | 0x40);
  return static_cast<uint16_t>((u + 0x7FFF + ((u >> 16) & 1)) >> 16);
}
constexpr float bf16_value(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
constexpr float bf16_nearest(float x) { return bf16_value(bf16_bits(x)); }

// Neighbours in bf16 of a finite x: smallest >= x and largest <= x.
constexpr float bf16_up(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>(((u >> 31) != 0 ? u : u + 0xFFFFu) & 0xFFFF0000u);
}
constexpr float bf16_down(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>(((u >> 31) != 0 ? u + 0xFFFFu : u) & 0xFFFF0000u);
}

static_assert(bf16_nearest(1.00390625f) == 1 && bf16_up(1.00390625f) == 1.0078125f && bf16_down(1.00390625f) == 1);
static_assert(bf16_up(-1.00390625f) == -1 && bf16_down(-1.00390625f) == -1.0078125f && bf16_down(-2) == -2 && bf16_up(2) == 2);

}  // namespace halftone
