#pragma once
#include "halftone/formats/fp4_scale.h"
#include "halftone/formats/fp8_scale.h"
#include "halftone/formats/int_scale.h"
#include "halftone/quantize/cuda/encode.cuh"
#include "halftone/quantize/cuda/mx_rule.h"

namespace halftone::device {

// Scale rules evaluated once per block: the functions of formats/ without fp64.

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

// e4m3 and ue5m3 codes without a sign: shifted into an fp32, the code's bits are the value times a power of two.
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
// fp4_block_target, fp4_block_scale and fp4_factor of formats/fp4_scale.h. outer_reciprocal: divisor(outer.scale).reciprocal.
// kMost: the largest code, of chain torchao 6.
template <int kMost = 6>
__device__ __forceinline__ float fp4_target(Fp4Chain chain, bool wide, uint32_t amax, ScalePair outer, float outer_reciprocal) {
  const float a = __uint_as_float(amax), least = wide ? 0x1p-17f : 0x1p-6f, most = wide ? kUe5m3Max : 448.0f;
  if (chain == Fp4Chain::torchao) return fminf(a * (outer.inv * __uint_as_float(0x3E2AAAABu)), most);
  const float v = quotient(outer.scale < kSmallDivisor ? a * kLift : a, lifted(outer.scale), outer_reciprocal);
  return fminf(fmaxf(quotient(v, kMost, __uint_as_float(kMost == 6 ? 0x3E2AAAABu : 0x3E124925u)), least), most);
}
template <int kMost = 6>
__device__ __forceinline__ uint32_t fp4_byte(Fp4Chain chain, bool wide, uint32_t amax, ScalePair outer, float outer_reciprocal) {
  if (poisoned(amax) || outer.scale != outer.scale) return wide ? 0xFFu : 0x7Fu;
  return fp4_scale_code(wide, fp4_target<kMost>(chain, wide, amax, outer, outer_reciprocal));
}
__device__ __forceinline__ float fp4_element_factor(Fp4Chain chain, float value, ScalePair outer) {
  const float q = value * outer.scale;
  if (chain == Fp4Chain::alto || q != q) return q;
  constexpr float kMax = std::numeric_limits<float>::max();
  return q == 0 ? kMax : fminf(__frcp_rn(q), kMax);
}

// 2^(shift - 1) as fp16; multiplies twice the values of a block's e2m1 codes before they are rounded to fp8 (numerics.md 7.1c). 0 if all of
// them underflow.
__device__ __forceinline__ uint32_t fold_factor(int shift) {
  const int s = shift - 1;
  return s >= -14 ? static_cast<uint32_t>(s + 15) << 10 : s >= -24 ? 1u << (s + 24) : 0u;
}
// Number of binades that the block lies below the last binade in which every code is exact.
__device__ __forceinline__ uint32_t fold_below(Float target, int shift) {
  const int below = (target == Float::e4m3 ? -8 : -15) - shift;
  return static_cast<uint32_t>(below > 0 ? min(below, 15) : 0);
}

}  // namespace halftone::device
