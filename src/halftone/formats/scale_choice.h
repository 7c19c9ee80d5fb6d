#pragma once
#include "halftone/formats/fp4_scale.h"
#include "halftone/formats/int_spec.h"

namespace halftone {

// Four over six (numerics.md 3.4.1): an NVFP4 or AMDFP4 block is scaled by amax / 6 or by amax / 4, whichever has the smaller error. Errors
// are sums of integers, so that no order of evaluation changes the choice.
struct ScaleCandidates {
  uint8_t six, four;         // stored block scales of amax / 6 and amax / 4
  float per_scale = 0;       // |x| * per_scale: the element in 128ths of scale `six`
  float ratio = 1;           // scale six / scale four
  bool four_anyway = false;  // scale six is 0, or the block's largest element is beyond 895/128 of it
};

// 128 / (block scale * outer scale), decoded; 0 for a block scale of 0.
constexpr float per_scale_128(float scale, ScalePair outer) {
  return scale == 0 ? 0.0f : min_of(128.0f * (1.0f / (scale * outer.scale)), std::numeric_limits<float>::max());
}
// six / four by the reciprocal, rounded to 11 bits: at least 1/2.
constexpr float scale_ratio(float six, float four) {
  return four == 0 ? 1.0f : (six * (1.0f / four) * 2048.0f + 0x1p23f - 0x1p23f) / 2048.0f;
}
// Errors are measured up to 895/128 of a scale, where the code is still 6.
constexpr bool four_anyway(float six, uint32_t amax_bits, float per_scale) {
  return six == 0 || std::bit_cast<float>(amax_bits) * per_scale > 895.0f;
}

constexpr ScaleCandidates scale_candidates(Fp4Chain chain, ScaleFormat format, uint32_t amax_bits, ScalePair outer) {
  if (poisoned(amax_bits) || outer.scale != outer.scale) return {block_scale_nan(format), block_scale_nan(format)};
  const float target = fp4_block_target(chain, format, amax_bits, outer), most = format == ScaleFormat::ue5m3 ? kUe5m3Max : 448.0f;
  ScaleCandidates c{encode_block_scale(format, target), encode_block_scale(format, min_of(1.5f * target, most))};
  const float six = decode_block_scale(format, c.six);
  c.per_scale = per_scale_128(six, outer), c.ratio = scale_ratio(six, decode_block_scale(format, c.four));
  c.four_anyway = four_anyway(six, amax_bits, c.per_scale);
  return c;
}

namespace detail {
// rint of a product of at most 895, from the exact product.
constexpr int rounded_product(float a, float b) {
  const double y = static_cast<double>(a) * static_cast<double>(b), k = floor_small(y), rest = y - k;
  return static_cast<int>(k) + (rest > 0.5 || (rest == 0.5 && (static_cast<int>(k) & 1) != 0) ? 1 : 0);
}
}  // namespace detail

// k minus the nearest e2m1 value, both in 128ths, 0 <= k <= 895: at most 128.
constexpr int e2m1_error(int k) {
  const int quantum = k < 256 ? 64 : k < 512 ? 128 : 256, below = k / quantum, rest = k % quantum;
  return rest > quantum / 2 || (2 * rest == quantum && (below & 1) != 0) ? rest - quantum : rest;
}

// Errors of the elements of a block under both scales, in 128ths of them.
struct ChoiceErrors {
  int six = 0, four = 0;

  constexpr void add(ScaleChoice choice, const ScaleCandidates& c, float x) {
    const int k = detail::rounded_product(x < 0 ? -x : x, c.per_scale);
    six = sum(choice, six, e2m1_error(k));
    four = sum(choice, four, e2m1_error(detail::rounded_product(static_cast<float>(k), c.ratio)));
  }
  static constexpr int sum(ScaleChoice choice, int before, int error) {
    const int size = error < 0 ? -error : error;
    if (choice == ScaleChoice::largest) return before > size ? before : size;
    return before + (choice == ScaleChoice::squared ? size * size : size);
  }
};

// Whether a block with these errors takes amax / 4; of equal errors amax / 6. Scales are decoded.
constexpr bool takes_four(ScaleChoice choice, float six, float four, ChoiceErrors e) {
  const bool squared = choice == ScaleChoice::squared;
  return (squared ? four * four : four) * static_cast<float>(e.four) < (squared ? six * six : six) * static_cast<float>(e.six);
}

static_assert(e2m1_error(0) == 0 && e2m1_error(32) == 32 && e2m1_error(96) == -32 && e2m1_error(320) == 64 && e2m1_error(640) == 128);
static_assert(e2m1_error(895) == 127 && e2m1_error(448) == -64 && e2m1_error(160) == 32);

}  // namespace halftone
