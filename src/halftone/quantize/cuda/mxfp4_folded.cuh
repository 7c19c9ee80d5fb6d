#pragma once
#include "halftone/quantize/cuda/pair.cuh"

namespace halftone::device {

// MXFP4 codes with stochastic rounding on their way into e4m3.

// A block: the factor that takes its elements to their positions (Stochastic; 0: it is poisoned, or another one of its row; negative: with
// elements times kLowered, because their own is no fp32), and the bytes that its codes fold into.
//
// Codes are counted down from 8, so that saturation needs no minimum: byte n of first and second is that of code 8 - n, and of code 7 for
// n = 0. Code 0 makes a selector of 8, which asks for the sign of byte 0: zeros.
struct FoldedBlock {
  float factor;
  uint32_t first, second;
};
inline constexpr uint32_t kFirst = 0x74787C7Cu, kSecond = 0x60686C70u;  // where the block is its row's largest
inline constexpr uint32_t kDeepest = 11;                                // binades below it down to which all bytes are normal numbers
__device__ __forceinline__ FoldedBlock folded_block(uint32_t byte, uint32_t reference, bool poison) {
  using Rule = Stochastic<Float::e2m1>;
  FoldedBlock b{};
  const bool lift = byte > kLargestFactor;
  const float inverse = __uint_as_float((254u - (lift ? byte - kLoweredBits : byte)) << 23) * Rule::kToPosition;
  b.factor = poison ? 0.0f : lift ? -inverse : inverse;
  uint32_t low, high;
  fold_table<Float::e4m3>(byte, reference, low, high);
  b.first = __byte_perm(low, high, 0x5677), b.second = __byte_perm(low, high, 0x1234);
  return b;
}
// What goes around a draw: byte 0 below it, half a step less what makes the difference round up instead of down; byte 1 above it.
inline constexpr uint32_t kOver = 8u << 8 | (Stochastic<Float::e2m1>::kHalf - 1);
static_assert(Stochastic<Float::e2m1>::kHalf - 1 == 131);

}  // namespace halftone::device
