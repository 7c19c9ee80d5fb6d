#pragma once
#include "halftone/formats/float_code.h"
#include "halftone/formats/scale_pair.h"

namespace halftone {

// MS-EDEN (numerics.md 4.1, arXiv:2601.22813): NVFP4 blocks of 16 of rotated elements, codes rounded to nearest. A factor per rotation
// group, which makes the group's codes an unbiased estimate over rotations, multiplies the block scales, which are rounded stochastically.
inline constexpr int kEdenBlock = 16;
// Multiple of the block scale to which the block's amax is brought: the least mean square error of rotated blocks lies slightly above 6.
inline constexpr float kEdenTop = 6.0625f;

// The tensor's amax before the rotation over this is the outer scale: 1536 / n^(1/2). A rotated element is at most n^(1/2) times as large,
// so block scales are at most 1536 / 6.0625 = 253.4, and one raised by its group's factor fits e4m3.
constexpr float eden_range(int width) { return width == 128 ? 135.764511f : width == 64 ? 192.0f : width == 32 ? 271.529022f : 384.0f; }

// Outer scale, and what an amax is multiplied by to be a block scale. NaN when poisoned. Not below 2^-117: the reciprocal of the smallest
// block scale times it is finite.
constexpr ScalePair eden_outer(int width, uint32_t amax_bits) {
  if (poisoned(amax_bits)) return {quiet_nan(), quiet_nan()};
  const float outer = max_of(std::bit_cast<float>(amax_bits) / eden_range(width), 0x1p-117f);
  return {outer, 1.0f / (outer * kEdenTop)};
}

// Block scale from the amax of the rotated block, neither of which is poisoned. Not below the smallest e4m3 number, 2^-9.
constexpr uint8_t eden_block_scale(uint32_t amax_bits, ScalePair outer) {
  return encode(Float::e4m3, min_of(max_of(std::bit_cast<float>(amax_bits) * outer.inv, 0x1p-9f), 448.0f));
}
// The element's code is the nearest to element * factor.
constexpr float eden_factor(float block_scale, ScalePair outer) { return 1.0f / (block_scale * outer.scale); }

// Sums of a block, or of a rotation group: of y^2 and of y * code, y = element * factor.
struct EdenSums {
  float squares = 0, products = 0;
};
constexpr EdenSums operator+(EdenSums a, EdenSums b) { return {a.squares + b.squares, a.products + b.products}; }
// Neighbours first, as formats/pairwise_sum.h, in fp32; n: a power of two. Overwrites v.
constexpr EdenSums eden_sum(EdenSums* v, int n) {
  for (; n > 1; n /= 2)
    for (int i = 0; i < n / 2; ++i) v[i] = v[2 * i] + v[2 * i + 1];
  return v[0];
}
// The sums of a block in units of the group.
constexpr EdenSums eden_weighted(EdenSums block, float block_scale) {
  const float weight = block_scale * block_scale;  // exact
  return {weight * block.squares, weight * block.products};
}
// S = <x, x> / <Q(x), x>; 1 if all codes are 0.
constexpr float eden_correction(EdenSums group) { return group.products == 0 ? 1.0f : group.squares / group.products; }

// The stored block scale; u: the draw of the block.
constexpr uint8_t eden_rounded(float block_scale, float correction, uint16_t u) {
  return encode_sr(Float::e4m3, block_scale * correction, u);
}

static_assert(eden_block_scale(std::bit_cast<uint32_t>(24.25f), eden_outer(16, std::bit_cast<uint32_t>(384.0f))) ==
              0x48);  // 24.25 / 6.0625 = 4
static_assert(eden_outer(64, 0).scale == 0x1p-117f && eden_outer(64, 0x7F800000u).inv != eden_outer(64, 0x7F800000u).inv);

}  // namespace halftone
