#pragma once
#include <cuda_bf16.h>

#include "halftone/formats/float_code.h"
#include "halftone/quantize/cuda/element_vector.cuh"
#include "halftone/quantize/cuda/kernels.h"

namespace halftone::device {

// x * f, or x / f.
struct Factor {
  float f, reciprocal;  // reciprocal of f, or of f * kLift for a small f; Step::divide only
};

// Eight codes. e4m3, e5m2 and integers: bytes of w[0], w[1]. e2m1: magnitudes in the encoder's layout (Place8), and words whose bits 15 and
// 31 are the signs.
struct Codes8 {
  uint32_t w[8], signs[4];
};
// Layout of e2m1 magnitudes: byte 0 or byte 3 of eight words, or bytes 0 and 2 of four words; the other bits are arbitrary.
enum class Place8 : int { byte0, byte3, pairs };
constexpr Place8 place_of(Step step, bool stochastic) {
  return stochastic ? Place8::byte3 : step == Step::exact ? Place8::pairs : Place8::byte0;
}

// Correctly rounded a / b from RN(1 / b): two corrections with exact remainders, as in IEEE division but without its check for extreme
// exponents. Small divisors are scaled up together with a, so that no remainder is subnormal.
inline constexpr float kSmallDivisor = 0x1p-80f, kLift = 0x1p96f;
__device__ __forceinline__ float lifted(float b) { return b < kSmallDivisor ? b * kLift : b; }
__device__ __forceinline__ Factor divisor(float b) { return {b, __frcp_rn(lifted(b))}; }
__device__ __forceinline__ float corrected(float q, float a, float b, float reciprocal) {
  return __fmaf_rn(__fmaf_rn(-q, b, a), reciprocal, q);
}
__device__ __forceinline__ float quotient(float a, float b, float reciprocal) {
  return corrected(corrected(a * reciprocal, a, b, reciprocal), a, b, reciprocal);
}
// After one correction the quotient may be off by one ulp if a / b lies within 2^-23 ulp of the midpoint of two numbers. With bf16's 8-bit
// significand in a, this never crosses an e2m1 threshold: verified for all 2^23 significands of b.
__device__ __forceinline__ float quotient_to_nearest_e2m1(float a, float b, float reciprocal) {
  return corrected(a * reciprocal, a, b, reciprocal);
}
__device__ __forceinline__ void lift(ElementVector<bf16>& x) {
  const __nv_bfloat162 by = __float2bfloat162_rn(kLift);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const __nv_bfloat162 v = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&x.w[k]), by);
    x.w[k] = *reinterpret_cast<const uint32_t*>(&v);
  }
}
__device__ __forceinline__ void lift(ElementVector<float>& x) {
#pragma unroll
  for (int i = 0; i < 8; ++i) x.v[i] *= kLift;
}

// Two fp32 to two codes, nearest with ties to even, saturating, NaN to 0x7F: numerics.md 2.1 in hardware, `low` in bits 0-7.
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

// Stochastic rounding of a = |y|. Multiplying a by the power of two that maps the format's smallest normal number to fp32's gives a
// fixed-point position of a with a quantum of one bit everywhere, since the fp32 quantum is constant below its smallest normal number. The
// product is rounded up; its error can only move it from between two thresholds u + 1/2 to the upper end. Shifted so that the quantum is
// bit 24, the draw is subtracted at bits 8 to 23: the remainder of a quantum plus one carries or not.
template <Float kFormat>
struct Stochastic {
  static constexpr FloatSpec kSpec = spec(kFormat);
  static constexpr int kShift = kSpec.mantissa_bits + 1;
  static constexpr float kToPosition = static_cast<float>(0x1p-126 / kSpec.min_normal());
  // Half a step of the draw, and the compensation of the added quantum.
  static constexpr uint32_t kHalf = ((1u << (6 - kSpec.mantissa_bits)) + 1) << kShift;
  static constexpr uint32_t kPlace = kHalf | 255u << 8;

  static constexpr float kMax = static_cast<float>(kSpec.max_finite());
  // Byte 3 is the code of a <= kMax; below: the draw's place_draw.
  static __device__ __forceinline__ uint32_t code(float a, uint32_t below) {
    return (__float_as_uint(__fmul_ru(a, kToPosition)) << kShift) - below;
  }
};
template <Coder kCoder>
constexpr uint32_t draw_constant() {
  if constexpr (kCoder == Coder::integer) return 0;
  return Stochastic<float_of(kCoder)>::kPlace;
}
// Bytes {kHalf, draw, draw, 255} of the draw in the given half of a word.
template <int kHalf>
__device__ __forceinline__ uint32_t place_draw(uint32_t word, uint32_t constant) {
  return __byte_perm(word, constant, kHalf == 0 ? 0x5104 : 0x5324);
}

// Integer draws: 128 - (u + 1/2) / 65536, u in the given half of a word. In this binade 2^-17 is one bit, so one dp2a computes it from
// either half.
template <int kHalf>
__device__ __forceinline__ uint32_t draw_number(uint32_t word) {
  uint32_t r;
  asm("dp2a.lo.u32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(word), "r"(kHalf == 0 ? 0x00FE : 0xFE00), "r"(0x42FFFFFFu));
  return r;
}
// The draw of an element as its coder takes it.
template <Coder kCoder, int kHalf>
__device__ __forceinline__ uint32_t placed(uint32_t word, uint32_t constant) {
  if constexpr (kCoder == Coder::integer) return draw_number<kHalf>(word);
  return place_draw<kHalf>(word, constant);
}
// 1.5 * 2^23 + ceil(y - (u + 1/2) / 65536) for |y| <= 127 + 2^-17: numerics.md section 4. The sum is rounded up to a grid that contains the
// integers, then to the integers.
__device__ __forceinline__ uint32_t round_integer(float y, uint32_t number) {
  return __float_as_uint(__fadd_ru(__fadd_ru(y, __uint_as_float(number)), 12582912.0f - 128.0f));
}
// Nearest e2m1 code of a = |y| in the low bits: the grid is min(rint(2a), rint(a) + 2, rint(a / 2) + 4), each a sum whose last place is the
// quantum, then saturated. The arguments of min preserve parity, so ties go to even codes.
__device__ __forceinline__ uint32_t round_e2m1(float a) {
  const float s0 = a + 0x1p22f, s1 = __fmaf_rn(a, 0.5f, 0x1p22f + 1), s2 = __fmaf_rn(a, 0.25f, 0x1p22f + 2);
  return __vimin3_u32(__vimin3_u32(__float_as_uint(s0), __float_as_uint(s1), __float_as_uint(s2)), 0x4A800007u, 0x4A800007u);
}
// round_e2m1 for bf16 pairs times a power of two: exact before the sums. No saturation: the product is below 7. The sums are above 2, whose
// bits kPairBase end in a zero byte, so codes are whole low bytes. f: pair_factors of the power of two; the smallest one, 2^-126, still
// keeps bf16's smallest number.
inline constexpr uint32_t kPairBase = 0x40004000u;
__device__ __forceinline__ void pair_factors(float by, __nv_bfloat162 (&f)[3]) {
  f[0] = __float2bfloat162_rn(by * 0x1p-5f), f[1] = __float2bfloat162_rn(by * 0x1p-6f), f[2] = __float2bfloat162_rn(by * 0x1p-7f);
}
__device__ __forceinline__ uint32_t round_e2m1_pair(__nv_bfloat162 a, const __nv_bfloat162 (&f)[3]) {
  const auto word = [](__nv_bfloat162 v) { return *reinterpret_cast<const uint32_t*>(&v); };
  uint32_t s[3];
#pragma unroll
  for (int i = 0; i < 3; ++i) s[i] = word(__hfma2(a, f[i], __float2bfloat162_rn(2.0f + 0x1p-5f * static_cast<float>(i))));
  return __vimin3_u16x2(s[0], s[1], s[2]);
}

__device__ __forceinline__ uint32_t gather_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d, int byte) {
  const uint32_t select = byte == 3 ? 0x0073 : 0x0040;
  return __byte_perm(__byte_perm(a, b, select), __byte_perm(c, d, select), 0x5410);
}

// draw(i): place_draw (integers: draw_number) of element i. low, high: bounds of an integer format. kClamp: whether elements may exceed the
// largest code (for e4m3, 448 + 2^-15 does not: no draw rounds it up).
template <Coder kCoder, Step kStep, bool kStochastic, bool kClamp = true, class T, class Draw>
__device__ __forceinline__ Codes8 encode8(ElementVector<T> x, Factor by, float low, float high, Draw&& draw) {
  Codes8 q{};
  if constexpr (kStep == Step::exact && kStochastic) {
    static_assert(kCoder != Coder::integer && sizeof(T) == 2);
    using Rule = Stochastic<float_of(kCoder)>;
    const __nv_bfloat162 f = __float2bfloat162_rn(by.f), most = __float2bfloat162_rn(Rule::kMax);
    uint32_t s[8];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const __nv_bfloat162 a = __hmin2(__hmul2(__habs2(*reinterpret_cast<const __nv_bfloat162*>(&x.w[k])), f), most);
      const uint32_t w = *reinterpret_cast<const uint32_t*>(&a);
      s[2 * k] = Rule::code(__uint_as_float(w << 16), draw(2 * k));
      s[2 * k + 1] = Rule::code(__uint_as_float(w & 0xFFFF0000u), draw(2 * k + 1));
    }
    if constexpr (kCoder == Coder::e2m1) {
#pragma unroll
      for (int i = 0; i < 8; ++i) q.w[i] = s[i];
#pragma unroll
      for (int k = 0; k < 4; ++k) q.signs[k] = x.w[k];
    } else {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const uint32_t signs = __byte_perm(x.w[2 * k], x.w[2 * k + 1], 0x7531) & 0x80808080u;
        q.w[k] = gather_bytes(s[4 * k], s[4 * k + 1], s[4 * k + 2], s[4 * k + 3], 3) | signs;
      }
    }
    return q;
  }
  if constexpr (kStep == Step::exact && !kStochastic) {
    static_assert(kCoder == Coder::e2m1 && sizeof(T) == 2);
    __nv_bfloat162 f[3];
    pair_factors(by.f, f);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      q.w[k] = round_e2m1_pair(__habs2(*reinterpret_cast<const __nv_bfloat162*>(&x.w[k])), f), q.signs[k] = x.w[k];
    }
    return q;
  }
  if (kStep == Step::divide && by.f < kSmallDivisor) {
    lift(x);
    by.f *= kLift;
  }
  if constexpr (kCoder == Coder::integer) {
    uint32_t s[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float y = kStep == Step::divide ? quotient(element(x, i), by.f, by.reciprocal) : element(x, i) * by.f;
      y = fminf(fmaxf(y, low), high);
      if constexpr (kStochastic) {
        s[i] = round_integer(y, draw(i));
      } else {
        s[i] = __float_as_uint(y + 12582912.0f);
      }
    }
    q.w[0] = gather_bytes(s[0], s[1], s[2], s[3], 0), q.w[1] = gather_bytes(s[4], s[5], s[6], s[7], 0);
    return q;
  }
  constexpr Float kFormat = float_of(kCoder);
  const auto magnitude = [&](int i) {
    float a = fabsf(element(x, i));
    if constexpr (kStep == Step::divide && sizeof(T) == 2 && !kStochastic) {
      a = quotient_to_nearest_e2m1(a, by.f, by.reciprocal);
    } else if constexpr (kStep == Step::divide) {
      a = quotient(a, by.f, by.reciprocal);
    } else {
      a *= by.f;
    }
    if constexpr (kStochastic && kClamp) a = fminf(a, Stochastic<kFormat>::kMax);
    return a;
  };
  if constexpr (kCoder == Coder::e2m1) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if constexpr (kStochastic) {
        q.w[i] = Stochastic<kFormat>::code(magnitude(i), draw(i));
      } else {
        q.w[i] = round_e2m1(magnitude(i));
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) q.signs[k] = sign_pair(x, k);
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
