#pragma once
#include "halftone/formats/float_code.h"
#include "halftone/formats/recipe.h"
#include "halftone/formats/scale_code.h"
#include "halftone/formats/scale_pair.h"

namespace halftone {

// MX block scales (numerics.md 3.2, 3.3, 3.5). Integer arithmetic and exact products only, so that all processors agree.

// fp32(1 / max finite): multiplier of `rceil`.
constexpr float reciprocal_max(Float f) {
  switch (f) {
    case Float::e4m3:
      return std::bit_cast<float>(0x3B124925u);
    case Float::e5m2:
      return std::bit_cast<float>(0x37924925u);
    case Float::e3m2:
      return std::bit_cast<float>(0x3D124925u);
    case Float::e2m3:
      return std::bit_cast<float>(0x3E088889u);
    case Float::e2m1:
      return std::bit_cast<float>(0x3E2AAAABu);
  }
  return 0;
}

// Element of an MX block as its scale rules see it: a float format, or int8, whose codes -127 to 127 have the largest exponent 6 and,
// there, 6 bits below the first.
struct MxElement {
  int max_exponent, mantissa_bits;
  float reciprocal;
  constexpr MxElement(Float f)
      : max_exponent(spec(f).max_exponent()), mantissa_bits(spec(f).mantissa_bits), reciprocal(reciprocal_max(f)) {}
  constexpr explicit MxElement(Element e)
      : MxElement(e == Element::int8 ? MxElement(6, 6, std::bit_cast<float>(0x3C010204u)) : float_of(e)) {}

 private:
  constexpr MxElement(int exponent, int bits, float by) : max_exponent(exponent), mantissa_bits(bits), reciprocal(by) {}
  static constexpr Float float_of(Element e) { return static_cast<Float>(static_cast<int>(e) - static_cast<int>(Element::e4m3)); }
};
static_assert(MxElement(Element::e2m1).reciprocal == reciprocal_max(Float::e2m1) && MxElement(Element::int8).reciprocal == 1.0f / 127);

namespace detail {
// Exponent of a after rounding to mb mantissa bits, halves up: E'(a) of mode `even`.
constexpr int rounded_exponent(int mantissa_bits, uint32_t bits) {
  return static_cast<int>((bits + (1u << (22 - mantissa_bits))) >> 23) - 127;
}
}  // namespace detail

// Exponent e of the block scale 2^e before clamping; amax is finite. `uos` is defined for e2m1 only.
constexpr int mx_exponent(MxElement s, ScaleMode mode, uint32_t amax_bits) {
  const int exponent = static_cast<int>(amax_bits >> 23) - 127;
  const uint32_t mantissa = amax_bits & 0x7FFFFFu;
  switch (mode) {
    case ScaleMode::ceil:
      return exponent + (mantissa != 0 ? 1 : 0) - s.max_exponent;
    case ScaleMode::rceil: {
      const uint32_t d = std::bit_cast<uint32_t>(std::bit_cast<float>(amax_bits) * s.reciprocal);
      const uint32_t field = d >> 23, rest = d & 0x7FFFFFu;
      return static_cast<int>(field) - 127 + (rest > (field == 0 ? 0x400000u : 0u) ? 1 : 0);
    }
    case ScaleMode::even:
    case ScaleMode::adaptive:
      return detail::rounded_exponent(s.mantissa_bits, amax_bits) - s.max_exponent;
    case ScaleMode::uos:  // ceil(log2(amax / 7.25))
      return static_cast<int>((amax_bits + 0x17FFFFu) >> 23) - 129;
    default:
      return exponent - s.max_exponent;
  }
}

// Lowest byte that the mode stores.
constexpr uint8_t mx_lowest_byte(ScaleMode mode) { return mode == ScaleMode::adaptive || mode == ScaleMode::uos ? 1 : 0; }

// Stored e8m0 byte of a block: 255 when poisoned.
constexpr uint8_t mx_scale_byte(MxElement f, ScaleMode mode, uint32_t amax_bits) {
  if (poisoned(amax_bits)) return kE8m0Nan;
  const uint8_t byte = encode_e8m0(mx_exponent(f, mode, amax_bits)), lowest = mx_lowest_byte(mode);
  return byte < lowest ? lowest : byte;
}

// 2^-e of a stored byte, which multiplies the elements; NaN for 255. `fixed_clip` applies 3/4 (static clipping, 3.3): x * (0.75 * 2^-e) has
// the code of 0.75 * (x * 2^-e), because both products are exact or far below the smallest code.
constexpr float mx_inverse(uint8_t byte, bool fixed_clip = false) {
  if (byte == kE8m0Nan) return quiet_nan();
  const float inv = decode_e8m0(static_cast<uint8_t>(254 - byte));
  return fixed_clip ? 0.75f * inv : inv;
}

// Dynamic clipping (3.3). sum and sum_of_squares are fp64 sums over the n elements of the block in pairwise order (pairwise_sum.h). The
// caller takes the IEEE fp64 square root of the variance and rounds it to fp32.
constexpr double clip_variance(double sum, double sum_of_squares, int n) {
  const double mean = sum / n, square = mean * mean, v = sum_of_squares / n - square;
  return v > 0 ? v : 0;
}
constexpr uint8_t clip_scale_byte(float sigma) {
  const float product = 0.48707977f * sigma, a = product + 1e-8f;
  const uint8_t byte = encode_e8m0(detail::rounded_exponent(spec(Float::e2m1).mantissa_bits, std::bit_cast<uint32_t>(a)));
  return byte < 1 ? 1 : byte;
}

// Macro blocks (3.5): the stored byte holds the upper 8 mantissa bits of 6 / amax, truncated; inv_macro = 1.m8 in [1, 2). A poisoned macro
// block stores 0 and poisons every block inside it.
constexpr uint8_t macro_byte(uint32_t amax_bits) {
  if (poisoned(amax_bits)) return 0;
  const float t = 6.0f / max_of(std::bit_cast<float>(amax_bits), 1e-12f);
  return static_cast<uint8_t>((std::bit_cast<uint32_t>(t) & 0x007F8000u) >> 15);
}
constexpr float inv_macro(uint8_t byte) { return std::bit_cast<float>((static_cast<uint32_t>(byte) << 15) + 0x3F800000u); }

// Folds e2m1 codes and their block scales into 8-bit codes (7.1c): code * 2^(e_block - e_ref + shift), nearest, ties to even; shift is the
// shift of the largest block. `changed` flags elements that lost bits or vanished.
constexpr int fold_shift(Float target) { return target == Float::e4m3 ? 6 : 13; }
struct FoldedCode {
  uint8_t code;
  bool changed;
};
constexpr FoldedCode fold_code(Float target, uint8_t e2m1_code, int e_block, int e_ref) {
  const int shift = e_block - e_ref + fold_shift(target);
  const float v = decode(Float::e2m1, e2m1_code);
  const double exact = static_cast<double>(v) * FloatSpec::pow2(shift);
  const uint8_t code = encode(target, static_cast<float>(exact));
  return {code, static_cast<double>(decode(target, code)) != exact};
}
// Scale of the folded codes: 2^(e_ref - shift), at least 2^-140.
constexpr float fold_scale(Float target, int e_ref) { return static_cast<float>(FloatSpec::pow2(e_ref - fold_shift(target))); }

// Scale byte of the largest block of a tensor from the tensor's amax: every mode is monotonic in amax. Dynamic clipping uses the bound
// sigma <= amax. 255 when poisoned.
constexpr uint8_t mx_reference_byte(Float f, ScaleMode mode, Clip clip, uint32_t amax_bits) {
  if (clip != Clip::dynamic || poisoned(amax_bits)) return mx_scale_byte(f, mode, amax_bits);
  return clip_scale_byte(std::bit_cast<float>(amax_bits));
}

namespace detail {
constexpr bool exact_reciprocals() {
  for (const Float f : {Float::e4m3, Float::e5m2, Float::e3m2, Float::e2m3, Float::e2m1}) {
    if (reciprocal_max(f) != static_cast<float>(1.0 / spec(f).max_finite())) return false;
  }
  return true;
}
// Whether amax is the last value with its byte.
constexpr bool bumps_above(Float f, ScaleMode mode, float amax) {
  const uint32_t a = std::bit_cast<uint32_t>(amax);
  return mx_scale_byte(f, mode, a + 1) == mx_scale_byte(f, mode, a) + 1 && mx_scale_byte(f, mode, a) == mx_scale_byte(f, mode, a - 1);
}
// Whether amax is the first value with its byte.
constexpr bool starts_at(Float f, ScaleMode mode, float amax) {
  const uint32_t a = std::bit_cast<uint32_t>(amax);
  return mx_scale_byte(f, mode, a) == mx_scale_byte(f, mode, a - 1) + 1 && mx_scale_byte(f, mode, a) == mx_scale_byte(f, mode, a + 1);
}
constexpr uint8_t mx_byte_of(Float f, ScaleMode mode, float amax) { return mx_scale_byte(f, mode, std::bit_cast<uint32_t>(amax)); }
}  // namespace detail
static_assert(detail::exact_reciprocals());
// Thresholds from the table in 3.2.
static_assert(detail::bumps_above(Float::e2m1, ScaleMode::rceil, 1.5f) && detail::bumps_above(Float::e4m3, ScaleMode::rceil, 1.75f));
static_assert(detail::bumps_above(Float::e2m1, ScaleMode::uos, 1.8125f));
static_assert(detail::starts_at(Float::e2m1, ScaleMode::even, 1.75f) && detail::starts_at(Float::e2m3, ScaleMode::even, 1.9375f) &&
              detail::starts_at(Float::e4m3, ScaleMode::even, 1.9375f) && detail::starts_at(Float::e3m2, ScaleMode::even, 1.875f) &&
              detail::starts_at(Float::e5m2, ScaleMode::adaptive, 1.875f));
static_assert(detail::mx_byte_of(Float::e4m3, ScaleMode::floor, 448) == 127 &&
              detail::mx_byte_of(Float::e4m3, ScaleMode::rceil, 480) == 128);
static_assert(detail::mx_byte_of(Float::e2m1, ScaleMode::uos, 7.25f) == 127 &&
              detail::mx_byte_of(Float::e2m1, ScaleMode::adaptive, 0) == 1);
static_assert(mx_inverse(127) == 1 && mx_inverse(254) == 0x1p-127f && mx_inverse(0) == 0x1p127f);
static_assert(fold_code(Float::e4m3, 7, 0, 0).code == 0x7C && fold_code(Float::e5m2, 7, 5, 5).code == 0x7A);  // 384, 49152
static_assert(!fold_code(Float::e4m3, 1, -14, 0).changed && fold_code(Float::e4m3, 1, -15, 0).changed);
static_assert(!fold_code(Float::e5m2, 1, -28, 0).changed && fold_code(Float::e5m2, 1, -29, 0).changed);
static_assert(inv_macro(macro_byte(std::bit_cast<uint32_t>(5.0f))) * 5 == 5.99609375f &&
              inv_macro(macro_byte(std::bit_cast<uint32_t>(6.5f))) * 6.5f == 11.984375f);

}  // namespace halftone
