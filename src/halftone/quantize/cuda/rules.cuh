#pragma once
#include "halftone/formats/fp4_scale.h"
#include "halftone/formats/fp8_scale.h"
#include "halftone/formats/int_scale.h"
#include "halftone/formats/mx_scale.h"

namespace halftone::device {

// Scale rules in the form that a kernel evaluates once a block: the functions of formats/, without branches on the mode and
// without fp64.

// Every mode of mx_scale.h: byte = clamp(((bits(amax * by) + add) >> 23) - below, lowest, 254).
struct MxRule {
  float by;
  uint32_t add, smallest;  // amax * by up to `smallest` stays at byte 0 (rceil)
  int below, lowest;
};
inline MxRule mx_rule(Float f, ScaleMode mode) {
  const FloatSpec s = spec(f);
  MxRule r{1, 0, 0, s.max_exponent(), mx_lowest_byte(mode)};
  if (mode == ScaleMode::ceil) r.add = 0x7FFFFF;
  if (mode == ScaleMode::rceil) r = {reciprocal_max(f), 0x7FFFFF, 0x400000, 0, 0};
  if (mode == ScaleMode::even || mode == ScaleMode::adaptive) r.add = 1u << (22 - s.mantissa_bits);
  if (mode == ScaleMode::uos) r.add = 0x17FFFF, r.below = 2;
  return r;
}
__device__ __forceinline__ uint32_t mx_byte(const MxRule& r, uint32_t amax) {
  const uint32_t d = __float_as_uint(__uint_as_float(amax) * r.by);
  int e = static_cast<int>((d + r.add) >> 23) - r.below;
  if (d <= r.smallest) e = 0;
  e = min(max(e, r.lowest), 254);
  return poisoned(amax) ? 255u : static_cast<uint32_t>(e);
}
// 2^-e of the byte; NaN for 255.
__device__ __forceinline__ float mx_inverse_of(uint32_t byte) {
  const uint32_t bits = byte == 254 ? 0x00400000u : (254u - byte) << 23;
  return __uint_as_float(byte == 255 ? 0x7FC00000u : bits);
}
__device__ __forceinline__ float e8m0_value(uint32_t byte) {
  const uint32_t bits = byte == 0 ? 0x00400000u : byte << 23;
  return __uint_as_float(byte == 255 ? 0x7FC00000u : bits);
}

// e4m3 and ue5m3 codes without a sign: the code's bits as an fp32's are the value times a power of two.
__device__ __forceinline__ float fp4_scale_value(bool wide, uint32_t code) {
  const float v = __uint_as_float(code << 20) * (wide ? 0x1p112f : 0x1p120f);
  return code == (wide ? 0xFFu : 0x7Fu) ? quiet_nan() : v;
}
// Nearest code of v >= 0 within the format's range: the last place of v + `unit` is the subnormal quantum.
__device__ __forceinline__ uint32_t fp4_scale_code(bool wide, float v) {
  const float least = wide ? 0x1p-14f : 0x1p-6f, unit = wide ? 0x1p6f : 0x1p14f;
  const uint32_t bits = __float_as_uint(v), small = __float_as_uint(v + unit) & 15u;
  const uint32_t normal = ((bits + 0x7FFFFu + ((bits >> 20) & 1u)) >> 20) - (wide ? 112u << 3 : 120u << 3);
  return v < least ? small : normal;
}
__device__ __forceinline__ uint32_t fp4_byte(Fp4Chain chain, bool wide, uint32_t amax, ScalePair outer) {
  if (poisoned(amax) || outer.scale != outer.scale) return wide ? 0xFFu : 0x7Fu;
  return fp4_scale_code(wide, fp4_block_target(chain, wide ? ScaleFormat::ue5m3 : ScaleFormat::e4m3, amax, outer));
}
__device__ __forceinline__ float fp4_element_factor(Fp4Chain chain, float value, ScalePair outer) {
  const float q = value * outer.scale;
  if (chain == Fp4Chain::alto || q != q) return q;
  constexpr float kMax = std::numeric_limits<float>::max();
  return q == 0 ? kMax : min_of(1.0f / q, kMax);
}

// Word that folds a block's e2m1 codes into fp8 (7.1c): 2^(shift - 1) as fp16 in the low half, and in the high half how many
// binades the block lies below the last in which every code is exact. kFoldPoison: the reference is poisoned.
inline constexpr uint32_t kFoldPoison = 0xFFFF0000u;
__device__ __forceinline__ uint32_t fold_word(Float target, uint32_t block, uint32_t reference) {
  if (reference == 255) return kFoldPoison;
  const int s = static_cast<int>(block) - static_cast<int>(reference) + fold_shift(target) - 1;
  const uint32_t factor = s >= -14 ? static_cast<uint32_t>(s + 15) << 10 : s >= -24 ? 1u << (s + 24) : 0u;
  const int below = (target == Float::e4m3 ? -9 : -16) - s;
  return factor | static_cast<uint32_t>(below > 0 ? min(below, 15) : 0) << 16;
}

}  // namespace halftone::device
