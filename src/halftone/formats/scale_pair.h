#pragma once
#include <bit>
#include <cstdint>
#include <limits>

namespace halftone {

// amax is kept as bits32(|x|) and compared as an integer, so that NaN > Inf > finite (numerics.md section 1). A group whose amax is NaN or
// Inf is poisoned (2.2).
inline constexpr uint32_t kInfinityBits = 0x7F800000u;
constexpr bool poisoned(uint32_t amax_bits) { return amax_bits >= kInfinityBits; }

// The only NaN that quantisers write as a scale, zero point or value: 0x7FC00000 (0x7FC0 as bf16). Never a computed NaN, whose bits depend
// on the processor.
constexpr float quiet_nan() { return std::bit_cast<float>(0x7FC00000u); }

// x ~ q * scale; q = round(x * inv). Both are NaN in a poisoned group: x * NaN encodes to the poison code (e4m3 and e5m2 0x7F, all others
// 0), so no branch is needed.
struct ScalePair {
  float scale, inv;
};

constexpr float max_of(float a, float b) { return a > b ? a : b; }
constexpr float min_of(float a, float b) { return a < b ? a : b; }

}  // namespace halftone
