#pragma once
#include "halftone/formats/bf16_round.h"
#include "halftone/formats/int_spec.h"
#include "halftone/formats/scale_pair.h"

namespace halftone {

// Integer scales (numerics.md 3.7); eps keeps the scale of an all-zero group positive.
inline constexpr float kIntScaleFloor = 1e-12f, kBitnetScaleFloor = 1e-5f;  // 1e-5: bitnet's activations and weight

namespace detail {
constexpr ScalePair with_floor(float scale, float eps) {
  scale = max_of(scale, eps == 0 ? kIntScaleFloor : eps);
  return {scale, 1.0f / scale};
}
}  // namespace detail

// eps = 0 means 1e-12, as in OperandSpec::scale_floor.
constexpr ScalePair int8_scale(uint32_t amax_bits, float eps = 0) {
  if (poisoned(amax_bits)) return {quiet_nan(), quiet_nan()};
  return detail::with_floor(std::bit_cast<float>(amax_bits) / 127.0f, eps);
}

// int4 -8..7: pos and neg are the integer maxima of bits32(|x|) over elements without and with the sign bit; 0 if there are none.
constexpr ScalePair int4_scale(uint32_t pos_bits, uint32_t neg_bits, float eps = 0) {
  if (poisoned(pos_bits) || poisoned(neg_bits)) return {quiet_nan(), quiet_nan()};
  return detail::with_floor(max_of(std::bit_cast<float>(pos_bits) / 7.0f, std::bit_cast<float>(neg_bits) / 8.0f), eps);
}

// Maps fp32 to integers of the same order (-0 below +0), so that minima and maxima do not depend on evaluation order.
constexpr int32_t order_key(float x) {
  const auto bits = std::bit_cast<int32_t>(x);
  return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}
constexpr float from_order_key(int32_t key) { return std::bit_cast<float>(key ^ ((key >> 31) & 0x7FFFFFFF)); }

// uint4 groups: value = zero + q * scale, q = round((x - zero) * inv). All NaN if poisoned or if max - min overflows.
struct AffineScale {
  float zero, scale, inv;
};
// amax_bits of the group; smallest and largest element by order_key. bf16_storage: zero is rounded down and scale up to bf16, so that no
// element is clipped; inv is computed from the stored scale.
constexpr AffineScale uint4_scale(uint32_t amax_bits, float smallest, float largest, bool bf16_storage) {
  const AffineScale bad{quiet_nan(), quiet_nan(), quiet_nan()};
  if (poisoned(amax_bits)) return bad;
  const float zero = bf16_storage ? bf16_down(smallest) : smallest, range = largest - zero;
  if (poisoned(std::bit_cast<uint32_t>(zero) & 0x7FFFFFFFu) || poisoned(std::bit_cast<uint32_t>(range) & 0x7FFFFFFFu)) return bad;
  float scale = max_of(range / 15.0f, kIntScaleFloor);
  if (bf16_storage) scale = bf16_up(scale);
  return {zero, scale, 1.0f / scale};
}

// bitnet weight: sum of |W| in fp64 by pairwise_sum over the full tensor of n elements. NaN or infinite sums poison it.
constexpr ScalePair ternary_scale(double sum, int64_t n) {
  const float mean = n == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(n));
  if (poisoned(std::bit_cast<uint32_t>(mean) & 0x7FFFFFFFu)) return {quiet_nan(), quiet_nan()};
  return detail::with_floor(mean, kBitnetScaleFloor);
}

static_assert(int8_scale(std::bit_cast<uint32_t>(254.0f)).scale == 2 && int8_scale(0).scale == 1e-12f &&
              int8_scale(0, 1e-5f).scale == 1e-5f);
static_assert(int4_scale(std::bit_cast<uint32_t>(7.0f), std::bit_cast<uint32_t>(16.0f)).scale == 2);
static_assert(order_key(-0.0f) < order_key(0.0f) && order_key(-1) < order_key(-0.5f) && from_order_key(order_key(-3.5f)) == -3.5f);
static_assert(uint4_scale(std::bit_cast<uint32_t>(14.0f), -1, 14, true).scale == 1 && uint4_scale(0, 0, 0, false).scale == 1e-12f);
static_assert(ternary_scale(6, 3).scale == 2 && ternary_scale(0, 0).scale == 1e-5f);

}  // namespace halftone
