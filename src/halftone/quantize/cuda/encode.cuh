#pragma once
#include <cuda_bf16.h>

#include "halftone/formats/float_code.h"
#include "halftone/quantize/cuda/kernels.h"
#include "halftone/quantize/cuda/vec8.cuh"

namespace halftone::device {

// x * f, or x / f.
struct Factor {
  float f, reciprocal;  // reciprocal: of f, or of f * kLift for a small f; Step::divide only
};

// Eight codes. e4m3, e5m2 and integers: bytes of w[0], w[1]. e2m1: magnitudes in 16-bit halves of w[0..3], and words whose
// bits 15 and 31 are the signs.
struct Codes8 {
  uint32_t w[4], signs[4];
};

// A constant that stays in a register: the compiler would copy it from a uniform one for every use.
__device__ __forceinline__ uint32_t in_register(uint32_t constant) { return __shfl_sync(0xFFFFFFFFu, constant, 0); }

// Correctly rounded a / b from RN(1 / b): two corrections with exact remainders, the steps of an IEEE division without its test
// for extreme exponents. Small divisors are lifted so that no remainder is subnormal.
inline constexpr float kSmallDivisor = 0x1p-80f, kLift = 0x1p96f;
__device__ __forceinline__ Factor divisor(float b) { return {b, __frcp_rn(b < kSmallDivisor ? b * kLift : b)}; }
__device__ __forceinline__ float quotient(float a, float b, float reciprocal) {
  const float q0 = a * reciprocal, q1 = __fmaf_rn(__fmaf_rn(-q0, b, a), reciprocal, q0);
  return __fmaf_rn(__fmaf_rn(-q1, b, a), reciprocal, q1);
}

// Two fp32 to two codes, nearest with ties to even, saturating, NaN to 0x7F: numerics.md 2.1 on hardware, `low` in bits 0-7.
template <Float kFormat>
__device__ __forceinline__ uint32_t round_pair(float low, float high) {
#if __CUDA_ARCH__ >= 890
  uint16_t r;
  if constexpr (kFormat == Float::e4m3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
  }
  return r;
#else
  return encode(kFormat, low) | static_cast<uint32_t>(encode(kFormat, high)) << 8;
#endif
}

// Stochastic rounding of a = |y|: `position` is a fixed-point image of a in which the quantum is one bit everywhere, by a
// trick: below the smallest normal number m, (a + m) / 2 has the exponent of m / 2 and a's quantum as a fixed bit of its
// mantissa, and above it is less than a. Rounded up, what it loses can only move it from between two thresholds u + 1/2 to
// the upper end. Shifted so that the quantum is bit 24, the complement of the draw stands in bits 8 to 23.
template <Float kFormat>
struct Stochastic {
  static constexpr FloatSpec kSpec = spec(kFormat);
  static constexpr int kShift = kSpec.mantissa_bits + 1;
  static constexpr uint32_t kRest = ((1u << (6 - kSpec.mantissa_bits)) - 1) << kShift;  // half a step of the draw, less one
  static constexpr uint32_t kOrigin = (256u - (static_cast<uint32_t>(127 - kSpec.bias) << kSpec.mantissa_bits)) & 255u;
  static constexpr uint32_t kNoise = kRest | kOrigin << 8;

  // Byte 3 is the code of a.
  static __device__ __forceinline__ uint32_t code(float a, uint32_t noise) {
    constexpr float kMax = static_cast<float>(kSpec.max_finite()), kHalfNormal = static_cast<float>(kSpec.min_normal() / 2);
    a = fminf(a, kMax);
    const float position = fmaxf(a, __fmaf_ru(a, 0.5f, kHalfNormal));
    return (__float_as_uint(position) << kShift) + noise;
  }
};
inline constexpr uint32_t kDrawNumber = 0x43000000u;  // integers: 128 + draw / 65536
template <Coder kCoder>
constexpr uint32_t draw_constant() {
  if constexpr (kCoder == Coder::integer) return kDrawNumber;
  return Stochastic<float_of(kCoder)>::kNoise;
}
// Bytes {kRest, draw, draw, kOrigin}, or the number, of the draw in the given half of a word.
template <int kHalf>
__device__ __forceinline__ uint32_t place_draw(uint32_t word, uint32_t constant, bool number) {
  if (number) return __byte_perm(word, constant, kHalf == 0 ? 0x7610 : 0x7632);
  return __byte_perm(word, constant, kHalf == 0 ? 0x5104 : 0x5324);
}

// Nearest e2m1 code of a = |y| in the low bits: the grid is min(rint(2a), rint(a) + 2, rint(a / 2) + 4), each a sum whose
// last place is the quantum, then saturated. Both arguments of min keep the parity, so ties go to even codes.
__device__ __forceinline__ uint32_t round_e2m1(float a) {
  const float s0 = a + 0x1p22f, s1 = __fmaf_rn(a, 0.5f, 0x1p22f + 1), s2 = __fmaf_rn(a, 0.25f, 0x1p22f + 2);
  return __vimin3_u32(__vimin3_u32(__float_as_uint(s0), __float_as_uint(s1), __float_as_uint(s2)), 0x4A800007u, 0x4A800007u);
}
// The same for pairs of bf16.
__device__ __forceinline__ uint32_t round_e2m1_pair(__nv_bfloat162 a) {
  const auto all = [](float v) { return __float2bfloat162_rn(v); };
  const auto word = [](__nv_bfloat162 v) { return *reinterpret_cast<const uint32_t*>(&v); };
  const uint32_t s0 = word(__hadd2(a, all(64))), s1 = word(__hfma2(a, all(0.5f), all(65))), s2 = word(__hfma2(a, all(0.25f), all(66)));
  return __vminu2(__vimin3_u16x2(s0, s1, s2), 0x42874287u);
}

__device__ __forceinline__ uint32_t gather_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d, int byte) {
  const uint32_t select = byte == 3 ? 0x0073 : 0x0040;
  return __byte_perm(__byte_perm(a, b, select), __byte_perm(c, d, select), 0x5410);
}

// draw(i): place_draw of element i's draw. low, high: bounds of an integer format.
template <Coder kCoder, Step kStep, bool kStochastic, class T, class Draw>
__device__ __forceinline__ Codes8 encode8(const Vec8<T>& x, Factor by, float low, float high, Draw&& draw) {
  Codes8 q{};
  if constexpr (kStep == Step::exact) {
    static_assert(kCoder == Coder::e2m1 && sizeof(T) == 2 && !kStochastic);
    const __nv_bfloat162 f = __float2bfloat162_rn(by.f);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint32_t magnitude = x.w[k] & 0x7FFF7FFFu;
      const uint32_t code = round_e2m1_pair(__hmul2(*reinterpret_cast<const __nv_bfloat162*>(&magnitude), f));
      q.w[k] = code & 0x00070007u, q.signs[k] = x.w[k];
    }
    return q;
  }
  if constexpr (kCoder == Coder::integer) {
    uint32_t s[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float y = fminf(fmaxf(element(x, i) * by.f, low), high);
      if constexpr (kStochastic) {
        // ceil(y - (u + 1/2) / 65536): every partial sum is rounded up to a grid that holds the integers.
        const float p = __fadd_ru(y, -1.0f + 0x1p-17f), d = __uint_as_float(draw(i));
        s[i] = __float_as_uint(__fadd_ru(__fadd_ru(p, d), 12582912.0f - 128.0f));
      } else {
        s[i] = __float_as_uint(y + 12582912.0f);
      }
    }
    q.w[0] = gather_bytes(s[0], s[1], s[2], s[3], 0), q.w[1] = gather_bytes(s[4], s[5], s[6], s[7], 0);
    return q;
  }
  constexpr Float kFormat = float_of(kCoder);
  const float lift = kStep == Step::divide && by.f < kSmallDivisor ? kLift : 1.0f;
  const auto magnitude = [&](int i) {
    if constexpr (kStep == Step::divide) return quotient(fabsf(element(x, i)) * lift, by.f * lift, by.reciprocal);
    return fabsf(element(x, i)) * by.f;
  };
  if constexpr (kCoder == Coder::e2m1) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t pair;
      if constexpr (kStochastic) {
        const uint32_t even = Stochastic<kFormat>::code(magnitude(2 * k), draw(2 * k));
        const uint32_t odd = Stochastic<kFormat>::code(magnitude(2 * k + 1), draw(2 * k + 1));
        pair = __byte_perm(even, odd, 0x0703) & 0x00070007u;
      } else {
        pair = __byte_perm(round_e2m1(magnitude(2 * k)), round_e2m1(magnitude(2 * k + 1)), 0x5410);
      }
      q.w[k] = pair, q.signs[k] = sign_pair(x, k);
    }
  } else if constexpr (kStochastic) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      uint32_t s[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) s[i] = Stochastic<kFormat>::code(magnitude(4 * k + i), draw(4 * k + i));
      const uint32_t signs = __byte_perm(sign_pair(x, 2 * k), sign_pair(x, 2 * k + 1), 0x7531) & 0x80808080u;
      q.w[k] = gather_bytes(s[0], s[1], s[2], s[3], 3) | signs;
    }
  } else {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      float y[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) y[i] = element(x, 4 * k + i) * by.f;
      q.w[k] = round_pair<kFormat>(y[0], y[1]) | round_pair<kFormat>(y[2], y[3]) << 16;
    }
  }
  return q;
}

}  // namespace halftone::device
