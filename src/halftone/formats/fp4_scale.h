#pragma once
#include "halftone/formats/float_code.h"
#include "halftone/formats/recipe.h"
#include "halftone/formats/scale_code.h"
#include "halftone/formats/scale_pair.h"

namespace halftone {

// Two-level scales of NVFP4 and AMDFP4 (numerics.md 3.4, 3.6): value = code * block scale * outer. `format` is the block scale format:
// ScaleFormat::e4m3 or ue5m3. All divisions are IEEE; no contraction.

// Largest code of an element whose blocks have such scales: 6, of NVINT4 7.
constexpr float largest_code(Element e) { return e == Element::int4 ? 7.0f : 6.0f; }

// Largest block scale times the largest code: 448 * 6 or 114688 * 6. Where blocks choose between two scales, the smaller one is at most 256
// or 65536, so that 1.5 times as much is a number of the format.
constexpr float fp4_range(ScaleFormat format, ScaleChoice choice = ScaleChoice::amax, float most = 6) {
  const bool wide = format == ScaleFormat::ue5m3;
  return most * (choice == ScaleChoice::amax ? (wide ? kUe5m3Max : 448.0f) : (wide ? 65536.0f : 256.0f));
}
constexpr float fp4_range(const OperandSpec& s) { return fp4_range(s.scale, s.choice, largest_code(s.element)); }

// Outer (per-tensor) factor from the tensor amax A and fp4_range; {1, 1} without a second level, NaN when poisoned. Only chain torchao uses
// inv (there outer is its reciprocal).
constexpr ScalePair fp4_outer(Fp4Chain chain, float range, TwoLevel two_level, uint32_t amax_bits) {
  if (two_level != TwoLevel::tensor) return {1, 1};
  if (poisoned(amax_bits)) return {quiet_nan(), quiet_nan()};
  const float a = std::bit_cast<float>(amax_bits);
  if (chain == Fp4Chain::torchao) {
    const float kMax = std::numeric_limits<float>::max();
    // range / a overflows only for a below range / FLT_MAX.
    const float inv = a == 0 ? 1.0f : min_of(range / a, kMax);
    return {1.0f / inv, inv};
  }
  const float outer = max_of(a / range, 1e-30f);
  return {outer, 1.0f / outer};
}

// Unrounded block scale of amax / most; finite, >= 0 and in range. Chain torchao: most is 6.
constexpr float fp4_block_target(Fp4Chain chain, ScaleFormat format, uint32_t amax_bits, ScalePair outer, float most = 6) {
  const float a = std::bit_cast<float>(amax_bits);
  if (chain == Fp4Chain::torchao) return min_of(a * (outer.inv * std::bit_cast<float>(0x3E2AAAABu)), 448.0f);
  const bool wide = format == ScaleFormat::ue5m3;
  const float v = a / outer.scale / most;
  return min_of(max_of(v, wide ? 0x1p-17f : 0x1p-6f), wide ? kUe5m3Max : 448.0f);
}

constexpr uint8_t encode_block_scale(ScaleFormat format, float v) {
  return format == ScaleFormat::ue5m3 ? encode_ue5m3(v) : encode(Float::e4m3, v);
}
constexpr uint8_t block_scale_nan(ScaleFormat format) { return format == ScaleFormat::ue5m3 ? kUe5m3Nan : poison_code(Float::e4m3); }

// Decodes a stored block scale of any byte format.
constexpr float decode_block_scale(ScaleFormat format, uint8_t code) {
  return format == ScaleFormat::e8m0 ? decode_e8m0(code) : format == ScaleFormat::ue5m3 ? decode_ue5m3(code) : decode(Float::e4m3, code);
}

// Stored block scale; NaN if the block or the outer group is poisoned.
constexpr uint8_t fp4_block_scale(Fp4Chain chain, ScaleFormat format, uint32_t amax_bits, ScalePair outer, float most = 6) {
  if (poisoned(amax_bits) || outer.scale != outer.scale) return block_scale_nan(format);
  return encode_block_scale(format, fp4_block_target(chain, format, amax_bits, outer, most));
}

// Factor applied to the elements: clamp(x * factor, -6, 6) (torchao) or x / factor (alto). NaN when poisoned.
constexpr float fp4_factor(Fp4Chain chain, ScaleFormat format, uint8_t block_scale, ScalePair outer) {
  if (block_scale == block_scale_nan(format)) return quiet_nan();
  const float q = decode_block_scale(format, block_scale) * outer.scale;
  if (chain == Fp4Chain::alto) return q;
  const float kMax = std::numeric_limits<float>::max();
  return q == 0 ? kMax : min_of(1.0f / q, kMax);
}
// The clamp does more than saturate: if the block scale underflows to 0, x * factor may be infinite.
constexpr float fp4_scaled(Fp4Chain chain, float x, float factor) {
  if (chain == Fp4Chain::alto) return x / factor;
  const float y = x * factor;
  return y > 6.0f ? 6.0f : y < -6.0f ? -6.0f : y;
}

namespace detail {
constexpr uint8_t fp4_code_of(Fp4Chain chain, ScaleFormat format, TwoLevel level, float amax, float whole) {
  const ScalePair outer = fp4_outer(chain, fp4_range(format), level, std::bit_cast<uint32_t>(whole));
  return fp4_block_scale(chain, format, std::bit_cast<uint32_t>(amax), outer);
}
}  // namespace detail
static_assert(448.0f * 6 == 2688 && kUe5m3Max * 6 == 688128);
static_assert(detail::fp4_code_of(Fp4Chain::torchao, ScaleFormat::e4m3, TwoLevel::tensor, 5, 5) == 0x7E);
static_assert(detail::fp4_code_of(Fp4Chain::alto, ScaleFormat::e4m3, TwoLevel::tensor, 5, 5) == 0x7E);
static_assert(detail::fp4_code_of(Fp4Chain::torchao, ScaleFormat::e4m3, TwoLevel::tensor, 0, 5) == 0);   // no lower clamp
static_assert(detail::fp4_code_of(Fp4Chain::alto, ScaleFormat::e4m3, TwoLevel::tensor, 0, 5) == 0x08);   // 2^-6
static_assert(detail::fp4_code_of(Fp4Chain::alto, ScaleFormat::e4m3, TwoLevel::none, 6, 1e9f) == 0x38);  // 1
static_assert(detail::fp4_code_of(Fp4Chain::alto, ScaleFormat::ue5m3, TwoLevel::tensor, 5, 5) == 0xFE);
static_assert(detail::fp4_code_of(Fp4Chain::alto, ScaleFormat::ue5m3, TwoLevel::none, 0, 0) == 1);  // 2^-17

}  // namespace halftone
