#pragma once
#include "halftone/quantize/cuda/emit.cuh"
#include "halftone/quantize/cuda/fp4_slab.h"
#include "halftone/quantize/cuda/rotate_column.cuh"

namespace halftone::device {

// One block of 16 in the registers of one lane: its scale, the codes of its elements, what is written of them (numerics.md 3.4,
// 3.6, 4).

// Bytes of a and b by selectors whose fourth bits repeat the sign of the byte.
__device__ __forceinline__ uint32_t select_signed(uint32_t a, uint32_t b, uint32_t selectors) {
  uint32_t r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selectors));
  return r;
}

// One correction gives the nearest quotient wherever a has bf16's eight bits, and for b = 6: all 2^30 and 2^24 pairs of
// significands were tried.
__device__ __forceinline__ float quotient8(float a, float b, float reciprocal) { return corrected(a * reciprocal, a, b, reciprocal); }
template <class T>
__device__ __forceinline__ float nearest_quotient(float a, float b, float reciprocal) {
  return sizeof(T) == 2 ? quotient8(a, b, reciprocal) : quotient(a, b, reciprocal);
}
// RN(1 / b) for 2^-126 < b < 2^126.
__device__ __forceinline__ float reciprocal_of(float b) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
  return __fmaf_rn(r, -__fmaf_rn(b, r, -1.0f), r);
}

inline constexpr uint32_t kLiftPair = 0x6F806F80u;
static_assert(std::bit_cast<uint32_t>(kLift) == (kLiftPair & 0xFFFF0000u));
// The second level as blocks use it. lift: a power of two as a pair of bf16 by which elements and scale are multiplied, so that no
// remainder of a division is subnormal, and none of a reciprocal; 0: none.
// limit: of BlockCode, or -1 where factors may lie beyond what fast16 takes.
// ties: for each of the eight significands of block scales four bits, 1: middles of codes are met that fast16 has to round to even; 3: by
// other means, see ties_of.
struct Fp4Level {
  float outer, reciprocal, of_amax, limit;
  uint32_t lift, ties;
};
// How codes are made: the nearest, or with draws. spread: with work moved from the units for shifts and logic to the multipliers, which are
// less busy: less time where arithmetic takes longer than memory, 1% more for row copies of bf16 alone. They keep `drawn`, and so do packed
// copies, for which it was not measured.
enum class Rounds { nearest, drawn, spread };
// Whether the scale's limit is relative, kMostAbove: how much larger than the block's scale it may be before it is rounded. The largest
// quotient is 6.9 then. Two comparisons less.
constexpr bool compares(Step step, Rounds rounds) { return step == Step::divide && rounds == Rounds::spread; }
inline constexpr float kMostAbove = 1.15f;
template <Step kStep, Rounds kRounds>
__device__ __forceinline__ Fp4Level fp4_level(ScalePair outer, const BlockCode& c) {
  Fp4Level l{outer.scale, 1, 0, -1.0f, 0, 0};
  if constexpr (kStep == Step::divide) {
    constexpr uint32_t kDown = 0x0F800F80u;  // 2^-96
    l.lift = outer.scale < 0x1p-60f ? kLiftPair : outer.scale > 0x1p60f ? kDown : 0u;
    if (l.lift != 0) l.outer *= __uint_as_float(l.lift & 0xFFFF0000u);
    l.reciprocal = __frcp_rn(l.outer);
  } else {
    l.of_amax = outer.inv * __uint_as_float(0x3E2AAAABu);
  }
  if (l.outer >= 0x1p-60f && l.outer <= 0x1p60f) l.limit = compares(kStep, kRounds) ? kMostAbove : c.limit;
  return l;
}

// Whether nearest codes come from fast16: of blocks without near ties, or of elements without.
template <class T, bool kStochastic>
inline constexpr bool kHasFast = sizeof(T) == 2 && !kStochastic;
template <class T, Step kStep, bool kStochastic>
inline constexpr bool kWatched = sizeof(T) == 4 && kStep == Step::divide && !kStochastic;
// Whether some number of eight bits divided by q may round to a middle of e2m1 codes the lower of which is even, 4 or 5 times a power
// of two: k q is within 16 units (q has 2^23 to 2^24) of a multiple of 2^18 then.
__device__ __forceinline__ bool has_near_ties(float q) {
  constexpr uint32_t kAround = 16u << 14;
  const uint32_t bits = __float_as_uint(q);
  return min(bits * (4u << 14) + kAround, bits * (5u << 14) + kAround) <= 2 * kAround;
}

// A unit above or below r = RN(1 / q), so that the product with any number of eight bits reaches a middle of e2m1 codes where the quotient
// by q does, for all q without near ties (all significands were tried): above, unless 6 or 7 q, e units above a number of eight bits,
// make the quotient round below 6 or 7: e > q 2^-22.
__device__ __forceinline__ float directed_reciprocal(float q, float r) {
  constexpr uint32_t kUnits = 1u << 14;
  const uint32_t bits = __float_as_uint(q), most = ~(__byte_perm(bits, 0, 0x4421) | 0x8000u);
  const bool below = min(bits * (6u * kUnits) + most, bits * (7u * kUnits) + most) < 38u * kUnits;
  return __uint_as_float(__float_as_uint(r) + (below ? ~0u : 1u));
}

struct Fp4Block {
  uint32_t byte, value;      // byte: the low one; value: the block scale as a pair of bf16
  float factor, reciprocal;  // of the elements; factor NaN: poisoned
  float rest;                // what the reciprocal lacks, rounded up
  bool special;              // of the warp: some block needs settle; nearest codes: or is none for fast16
  bool to_even;              // fast16: middles of codes to even ones
};
// Of the factor: what elements are multiplied by.
template <Step kStep>
__device__ __forceinline__ void invert(Fp4Block& b) {
  if constexpr (kStep == Step::divide) {
    b.reciprocal = reciprocal_of(b.factor);
    b.rest = __fmul_ru(__fmaf_rn(-b.factor, b.reciprocal, 1.0f), b.reciprocal);
  } else {
    // Of zero the largest, too: the minimum of NaN and a number is the number. Where the level does not allow it, settle divides.
    b.factor = fminf(reciprocal_of(b.factor), std::numeric_limits<float>::max());
  }
}
template <bool kWord>  // or the compiler takes an instruction to clear the upper half, which nothing reads
__device__ __forceinline__ uint32_t e4m3_of(float v) {
  if constexpr (!kWord) return round_pair<Float::e4m3>(v, 0.0f);
#if __CUDA_ARCH__ >= 890
  uint32_t r;
  asm("{ .reg .b16 t, z; mov.u16 z, 0; cvt.rn.satfinite.e4m3x2.f32 t, %1, %2; mov.b32 %0, {t, z}; }" : "=r"(r) : "f"(0.0f), "f"(v));
  return r;
#else
  return round_pair<Float::e4m3>(v, 0.0f);
#endif
}
__device__ __forceinline__ float value_of_e4m3(uint32_t code) {
#if __CUDA_ARCH__ >= 890
  uint32_t pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<uint16_t>(code)));
  return __half2float(__low2half(*reinterpret_cast<const __half2*>(&pair)));
#else
  return decode(Float::e4m3, static_cast<uint8_t>(code));
#endif
}
// fp4_byte and fp4_element_factor of rules.cuh for the largest magnitude of a block, lifted like the elements. kTies: level.ties are asked
// for.
template <class T, Step kStep, Rounds kRounds, bool kTies>
__device__ __forceinline__ Fp4Block fp4_block(const BlockCode& c, const Fp4Level& level, uint32_t amax) {
  const float a = __uint_as_float(amax);
  float v;
  Fp4Block b;
  bool special;  // not a scale within 1/8 of v, which leaves the largest quotient below 6.9; or NaN
  constexpr bool kStochastic = kRounds != Rounds::nearest, kCompares = compares(kStep, kRounds);
  [[maybe_unused]] float exact = 0;
  if constexpr (kStep == Step::divide) {
    v = quotient8(nearest_quotient<T>(a, level.outer, level.reciprocal), 6.0f, __uint_as_float(0x3E2AAAABu));
    if constexpr (kCompares) {
      exact = v;
    } else {
      special = !(v <= level.limit);
    }
    v = fmaxf(v, c.least);
    if constexpr (!kCompares) special |= (v < c.half) & (v > c.least);
  } else {
    v = a * level.of_amax;
    special = !(v <= level.limit) | ((v < c.half) & (amax != 0));
  }
  if constexpr (!kCompares) v = fminf(v, c.most);
  float value;
  if (kStochastic && !c.wide) {  // an instruction less, on the units for shifts and logic, which are not the busiest here (saturates)
    b.byte = e4m3_of<kRounds == Rounds::spread>(v), value = value_of_e4m3(b.byte);
  } else {
    if constexpr (kCompares) v = fminf(v, c.most);
    // The last place of the sum is the quantum of v's binade, or of the subnormal scales: its low bits are the code without the exponent.
    const uint32_t exponent = __float_as_uint(fmaxf(v, c.normal)) & 0x7F800000u;
    const float unit = __uint_as_float(exponent + c.unit), sum = v + unit;
    value = sum - unit, b.byte = __float_as_uint(sum) + (exponent >> 20);
  }
  if constexpr (kCompares) special = !(exact <= value * level.limit);
  b.value = __byte_perm(__float_as_uint(value), 0, 0x3232);
  b.factor = value * level.outer, b.reciprocal = b.rest = 0;
  b.to_even = false;
  if constexpr (kTies) {
    const uint32_t ties = level.ties >> (b.value >> 2 & 0x1Cu);
    special |= (ties & 2) != 0, b.to_even = (ties & 1) != 0;
  }
  b.special = __any_sync(0xFFFFFFFFu, special);
  invert<kStep>(b);
  return b;
}

// Elements of pairs of finite ones, on the multipliers.
__device__ __forceinline__ float low_element(uint32_t pair, const Shifts& by) { return __uint_as_float(pair * by.by16); }
__device__ __forceinline__ float high_element(uint32_t pair, const Shifts& by) {
  uint32_t r;
  asm("{.reg .b16 l, h; .reg .b32 p; mov.b32 {l, h}, %1; mov.b32 p, {h, h}; fma.rn.bf16x2 %0, p, %2, %3;}"
      : "=r"(r)
      : "r"(pair), "r"(by.high), "r"(by.zeros));
  return __uint_as_float(r);
}

// Sixteen elements of a block: pairs of bf16, or fp32.
template <class T>
struct Block16;
template <>
struct Block16<bf16> {
  uint32_t w[8];
  __device__ __forceinline__ float magnitude(int i, const Shifts& by) const {
    return fabsf(__uint_as_float((i & 1) == 0 ? w[i / 2] * by.by16 : w[i / 2] & 0xFFFF0000u));
  }
  // Where all of the block is finite, or does not matter: on the multipliers alone.
  __device__ __forceinline__ float finite_magnitude(int i, const Shifts& by) const {
    return fabsf((i & 1) == 0 ? low_element(w[i / 2], by) : high_element(w[i / 2], by));
  }
  // Sign bits of elements 2k and 2k + 1 at bits 15 and 31; the other bits are arbitrary.
  __device__ __forceinline__ uint32_t signs(int k) const { return w[k]; }
  __device__ __forceinline__ uint32_t amax() const {
    uint32_t m = max_magnitudes(w[0], w[1]), n = max_magnitudes(w[2], w[3]);  // shorter chains
#pragma unroll
    for (int i = 4; i < 8; i += 2) m = max_magnitudes(m, w[i]), n = max_magnitudes(n, w[i + 1]);
    m = max_magnitudes(m, n);
    return max(m << 16 & 0x7FFF0000u, m & 0x7FFF0000u);
  }
  __device__ __forceinline__ void lift(uint32_t by) {
#pragma unroll
    for (int i = 0; i < 8; ++i) w[i] = multiply_bf16(w[i], by);
  }
  // No larger than `most`, rounded down.
  __device__ __forceinline__ void limit(float most) {
    const uint32_t pair = __byte_perm(__float_as_uint(most), 0, 0x3232);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const __nv_bfloat162 m =
          __hmin2(__habs2(*reinterpret_cast<const __nv_bfloat162*>(&w[k])), *reinterpret_cast<const __nv_bfloat162*>(&pair));
      w[k] = *reinterpret_cast<const uint32_t*>(&m) | (w[k] & 0x80008000u);
    }
  }
};
template <>
struct Block16<float> {
  float v[16];
  __device__ __forceinline__ float magnitude(int i, const Shifts&) const { return fabsf(v[i]); }
  __device__ __forceinline__ float finite_magnitude(int i, const Shifts&) const { return fabsf(v[i]); }
  __device__ __forceinline__ uint32_t signs(int k) const {
    return __byte_perm(__float_as_uint(v[2 * k]), __float_as_uint(v[2 * k + 1]), 0x7632);
  }
  __device__ __forceinline__ uint32_t amax() const {
    float m = max_magnitudes(v[0], v[1]);
#pragma unroll
    for (int i = 2; i < 16; ++i) m = max_magnitudes(m, v[i]);
    return __float_as_uint(m) & 0x7FFFFFFFu;
  }
  __device__ __forceinline__ void lift(uint32_t by) {
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] *= __uint_as_float(by & 0xFFFF0000u);
  }
  __device__ __forceinline__ void limit(float most) {
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] = copysignf(fminf(fabsf(v[i]), most), v[i]);
  }
};
// Two columns of sixteen elements, a word a row.
struct ColumnPair {
  uint32_t w[16];
  __device__ __forceinline__ void lift(uint32_t by) {
#pragma unroll
    for (int i = 0; i < 16; ++i) w[i] = multiply_bf16(w[i], by);
  }
  __device__ __forceinline__ void amax(uint32_t (&a)[2]) const {
    uint32_t m = max_magnitudes(w[0], w[1]), n = max_magnitudes(w[2], w[3]);
#pragma unroll
    for (int i = 4; i < 16; i += 2) m = max_magnitudes(m, w[i]), n = max_magnitudes(n, w[i + 1]);
    m = max_magnitudes(m, n);
    a[0] = m << 16 & 0x7FFF0000u, a[1] = m & 0x7FFF0000u;
  }
  __device__ __forceinline__ Block16<bf16> column(int j) const {
    Block16<bf16> t;
#pragma unroll
    for (int i = 0; i < 8; ++i) t.w[i] = __byte_perm(w[2 * i], w[2 * i + 1], j == 0 ? 0x5410 : 0x7632);
    return t;
  }
};

// What is rounded to the code of x. A quotient of bf16 elements by two instructions is the nearest for all but two of the 2^30 pairs of
// significands (all were tried); those two are one unit off, and no threshold, of nearest codes or of a draw of 16 bits, is there.
template <class T, Step kStep>
__device__ __forceinline__ float scaled(float x, float factor, float reciprocal, float rest) {
  if constexpr (kStep != Step::divide) return x * factor;
  if constexpr (sizeof(T) == 4) return quotient(x, factor, reciprocal);
  return __fmaf_rn(x, reciprocal, x * rest);
}
// Code of y, 0 to 7, or 8 above 6, in byte 3: Stochastic in encode.cuh for the draw in the half kHalf of a word, with the shift on the
// multipliers (by2: 2^kShift). spread: a dot product takes the draw from the position before the shift, in place of a permutation.
// constant: of place_draw.
template <Rounds kRounds, int kHalf>
__device__ __forceinline__ uint32_t stochastic_e2m1(float y, uint32_t word, uint32_t by2, [[maybe_unused]] uint32_t constant) {
  using Rule = Stochastic<Float::e2m1>;
  const auto position = [&] { return __float_as_uint(__fmul_ru(y, Rule::kToPosition)); };
  if constexpr (kRounds == Rounds::spread) {
    constexpr int kDraw = 256 >> Rule::kShift;  // its last place
    static_assert(kDraw <= 128);
    uint32_t left;
    asm("dp2a.lo.u32.s32 %0, %1, %2, %3;" : "=r"(left) : "r"(word), "r"(((256 - kDraw) & 255) << 8 * kHalf), "r"(position()));
    return left * by2 + ((1u << 24) - Rule::kHalf);
  } else {
    const uint32_t below = place_draw<kHalf>(word, constant);
    return position() * by2 - below;
  }
}
// round_e2m1 for y < 7.
__device__ __forceinline__ uint32_t nearest_e2m1(float y) {
  const float s0 = y + 0x1p22f, s1 = __fmaf_rn(y, 0.5f, 0x1p22f + 1), s2 = __fmaf_rn(y, 0.25f, 0x1p22f + 2);
  return __vimin3_u32(__float_as_uint(s0), __float_as_uint(s1), __float_as_uint(s2));
}
// To pairs of magnitudes: codes 0 to 7 in the low bytes of 16-bit halves. draw(i, y): stochastic_e2m1 of element i.
template <class T, Step kStep, Rounds kRounds, class Draw>
__device__ __forceinline__ void encode16(const Block16<T>& t, const Fp4Block& b, const Shifts& by, Draw&& draw, uint32_t (&pairs)[8]) {
  constexpr bool kStochastic = kRounds != Rounds::nearest;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    uint32_t s[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float x = kRounds == Rounds::spread ? t.finite_magnitude(2 * k + j, by) : t.magnitude(2 * k + j, by);
      const float y = scaled<T, kStep>(x, b.factor, b.reciprocal, b.rest);
      if constexpr (kStochastic) {
        s[j] = draw(2 * k + j, y);
      } else {
        s[j] = nearest_e2m1(y);
      }
    }
    pairs[k] = select_signed(s[0], s[1], kStochastic ? 0xF7B3 : 0xC480);
    if constexpr (kStochastic) pairs[k] = __vminu2(pairs[k], 0x00070007u);
  }
}
// Poisons a special block, or makes its elements no larger than 6.9 scales (more than 6.8), which are of code 7 all the same.
template <class T, Step kStep>
__device__ __forceinline__ void settle(Block16<T>& t, const BlockCode& c, const Fp4Level& level, uint32_t amax, Fp4Block& b) {
  if (kStep == Step::multiply && level.limit < 0) {
    constexpr float kMax = std::numeric_limits<float>::max();
    const float factor = __uint_as_float(b.value & 0xFFFF0000u) * level.outer;
    b.factor = factor != factor ? factor : factor == 0 ? kMax : fminf(__frcp_rn(factor), kMax);
  }
  if (poisoned(amax) || b.factor != b.factor) b.byte = c.nan, b.value = 0x7FC07FC0u, b.factor = quiet_nan();
  t.limit(kStep == Step::divide ? 6.9f * b.factor : 6.9f / b.factor);
}
__device__ __forceinline__ uint32_t fp4_values(uint32_t pair, uint32_t signs, uint32_t scale, uint32_t by6) {
  return multiply_bf16(multiply_bf16(pair * by6 + (signs & 0x80008000u), 0x7E807E80u), scale);
}
// Four pairs as eight packed codes.
__device__ __forceinline__ uint32_t pack8(const uint32_t* pairs, const uint32_t (&signs)[4]) {
  const uint32_t a = pairs[0] + pairs[1] * 256, b = pairs[2] + pairs[3] * 256;  // bytes 0 2 1 3 and 4 6 5 7
  const uint32_t codes = __byte_perm(a, b, 0x5410) + __byte_perm(a, b, 0x7632) * 16;
  const uint32_t low = __byte_perm(signs[0], signs[1], 0x7531), high = __byte_perm(signs[2], signs[3], 0x7531);
  const uint32_t even = __byte_perm(low, high, 0x6420), odd = __byte_perm(low, high, 0x7531);
  return codes | ((even >> 4) & 0x08080808u) | (odd & 0x80808080u);
}
// Pairs of numbers as fp16, cut.
__device__ __forceinline__ uint32_t cut_f16(float low, float high) {
  uint32_t r;
  asm("cvt.rz.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
// Bits of a where `of_a` has ones, else of b.
__device__ __forceinline__ uint32_t select_bits(uint32_t a, uint32_t b, uint32_t of_a) {
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0xE4;" : "=r"(r) : "r"(a), "r"(b), "r"(of_a));
  return r;
}
// Of a pair of numbers as fp16 times 2^-14, cut, which are less than a middle of codes that they meet: odd codes a unit more, so that what
// is less than half a code above them by no more than that goes up.
__device__ __forceinline__ uint32_t odd_up(uint32_t pair) { return pair + ((pair & 0x02000200u) >> 9); }
// Eight nearest codes of numbers as fp16 times 2^-14, of which the codes are then exponent and first bit of the mantissa: the upper byte is
// sign, three zeros, code, half of a code. Codes lie below 7 1/2. Pairs: 0 and 2, 4 and 6, 1 and 3, 5 and 7.
__device__ __forceinline__ uint32_t pack_f16(const uint32_t* pairs, uint32_t by3) {
  const uint32_t even = __byte_perm(pairs[0], pairs[1], 0x7531), odd = __byte_perm(pairs[2], pairs[3], 0x7531);
  // Sign, code, other bits.
  const auto rounded = [&](uint32_t v) { return select_bits(v, v * by3 + 0x08080808u, 0x80808080u); };
  return select_bits(rounded(even) >> 4, rounded(odd), 0x0F0F0F0Fu);
}
// to_even: see odd_up.
template <int kWords>
__device__ __forceinline__ void pack16(const float (&y)[16], const Shifts& by, uint32_t (&out)[kWords], bool to_even = false) {
  uint32_t pairs[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int first = i / 4 * 8 + i % 2 * 4 + i / 2 % 2;
    pairs[i] = cut_f16(y[first], y[first + 2]);
  }
  if (to_even) {
#pragma unroll
    for (uint32_t& pair : pairs) pair = odd_up(pair);
  }
  out[0] = pack_f16(pairs, by.by3), out[1] = pack_f16(pairs + 4, by.by3);
}
// Values of a pair of numbers, of whose 2^-126th parts the codes are exponent and first bit of the mantissa.
__device__ __forceinline__ uint32_t fast_values(float low, float high, uint32_t scale) {
  const uint32_t a = __float_as_uint(__fmul_rz(low, 0x1p-126f)), b = __float_as_uint(__fmul_rz(high, 0x1p-126f));
  const uint32_t code = (__byte_perm(a, b, 0x7632) + 0x00200020u) & 0x81C081C0u;
  return multiply_bf16(multiply_bf16(code, 0x7E807E80u), scale);
}
// What fast16 multiplies elements by. to_even: a little less than the reciprocal, so that quotients that are middles of codes become less,
// and no others: those of numbers of eight bits differ from them by 2^-10 or more.
template <Step kStep>
__device__ __forceinline__ float fast_factor(const Fp4Block& b, bool to_even) {
  const float r = kStep == Step::divide ? b.reciprocal : b.factor;
  if (to_even) return __uint_as_float(__float_as_uint(r) - 8);
  return kStep == Step::divide ? directed_reciprocal(b.factor, b.reciprocal) : r;
}
// Nearest codes of bf16 elements x(i) without sums and minima: products and quotients cut, and half a code added, so that middles of codes
// go up, or, b.to_even, to the even code. Codes lie below 7 1/2.
template <Step kStep, Form kForm, class X, int kWords>
__device__ __forceinline__ void fast16(const Fp4Block& b, X&& x, const Shifts& by, uint32_t (&out)[kWords]) {
  constexpr bool kPacked = kForm == Form::packed;
  const float factor = fast_factor<kStep>(b, kPacked && b.to_even) * (kPacked ? 0x1p-14f : 1.0f);
  float y[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) y[i] = x(i) * factor;
  if constexpr (kPacked) {
    pack16(y, by, out, b.to_even);
  } else {
#pragma unroll
    for (int k = 0; k < 8; ++k) out[k] = fast_values(y[2 * k], y[2 * k + 1], b.value);
  }
}
// Fp4Level::ties, by a warp: lane 4 s + j asks whether fast16 gives the code of the number of eight bits that is closest to middle j of
// codes times a block's factor, for a block scale of significand 1 + s / 8. No other numbers decide: if these four have their codes, all
// have (tried with all significands of factors). A tensor's scale is its largest magnitude, of eight bits, by 21 times a power of two, so
// that where the product of that and a block scale's significand is a multiple of 21, elements meet middles of codes in every block of that
// scale. packed: copies with a way to round them to even.
template <Step kStep>
__device__ __forceinline__ uint32_t ties_of(float outer, bool packed, int lane) {
  const int j = lane & 3;
  Fp4Block b{};
  b.factor = (1 + static_cast<float>(lane >> 2) * 0.125f) * outer;
  if (!__any_sync(0xFFFFFFFFu, has_near_ties(b.factor))) return 0;
  const float middle = j == 0 ? 0.25f : 0.25f + 0.5f * static_cast<float>(j);
  const float x = __bfloat162float(__float2bfloat16_rn(middle * b.factor));
  invert<kStep>(b);
  const uint32_t code = nearest_e2m1(scaled<bf16, kStep>(x, b.factor, b.reciprocal, b.rest)) & 0xFFu;
  const auto fast = [&](bool to_even) {
    const uint32_t cut = cut_f16(x * (fast_factor<kStep>(b, to_even) * 0x1p-14f), 0.0f);
    return (((to_even ? odd_up(cut) : cut) >> 8 & 0xFFu) + 1) >> 1;
  };
  const auto of_scale = [](bool wrong) {
    uint32_t lanes = __ballot_sync(0xFFFFFFFFu, wrong);
    lanes |= lanes >> 2, lanes |= lanes >> 1;
    return lanes & 0x11111111u;
  };
  const uint32_t up = of_scale(fast(false) != code), even = packed ? of_scale(fast(true) != code) : ~0u;
  return up | (up & even) << 1;
}
template <Step kStep, Form kForm, int kWords>
__device__ __forceinline__ void fast16(const Block16<bf16>& t, const Fp4Block& b, const Shifts& by, uint32_t (&out)[kWords]) {
  fast16<kStep, kForm>(
      b, [&](int i) { return (i & 1) == 0 ? low_element(t.w[i / 2], by) : high_element(t.w[i / 2], by); }, by, out);
}
template <Step kStep, Form kForm, int kWords>
__device__ __forceinline__ void fast16(const ColumnPair& t, int j, const Fp4Block& b, const Shifts& by, uint32_t (&out)[kWords]) {
  fast16<kStep, kForm>(
      b, [&](int i) { return j == 0 ? low_element(t.w[i], by) : high_element(t.w[i], by); }, by, out);
}
// Of fp32, whose quotients have near ties anywhere: false where one lies within 4 units of the 24th bit of a number of three bits, as
// the middles are and zero. The product with the reciprocal is within three of the quotient.
template <Form kForm, int kWords>
__device__ __forceinline__ bool fast16(const Block16<float>& t, const Fp4Block& b, const Shifts& by, uint32_t (&out)[kWords]) {
  constexpr uint32_t kAround = 4u << 11;
  const float factor = b.reciprocal * (kForm == Form::packed ? 0x1p-14f : 1.0f);
  uint32_t nearest = ~0u;
  float y[16];
#pragma unroll
  for (int i = 0; i < 16; i += 2) {
    y[i] = t.v[i] * factor, y[i + 1] = t.v[i + 1] * factor;
    nearest = __vimin3_u32(nearest, __float_as_uint(y[i]) * by.by11 + kAround, __float_as_uint(y[i + 1]) * by.by11 + kAround);
    if constexpr (kForm != Form::packed) out[i / 2] = fast_values(y[i], y[i + 1], b.value);
  }
  if constexpr (kForm == Form::packed) pack16(y, by, out);
  return nearest > 2 * kAround;
}

template <class T, Step kStep, Rounds kRounds, Form kForm, class Draw, int kWords>
__device__ __forceinline__ void quantise16(const Block16<T>& t, const Fp4Block& b, const Shifts& by, Draw&& draw, uint32_t (&out)[kWords]) {
  uint32_t pairs[8];
  encode16<T, kStep, kRounds>(t, b, by, draw, pairs);
  if constexpr (kForm == Form::bf16) {
#pragma unroll
    for (int k = 0; k < 8; ++k) out[k] = fp4_values(pairs[k], t.signs(k), b.value, by.by6);
  } else {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint32_t signs[4] = {t.signs(4 * k), t.signs(4 * k + 1), t.signs(4 * k + 2), t.signs(4 * k + 3)};
      out[k] = pack8(pairs + 4 * k, signs);
    }
  }
  if (b.special) {
    const bool poison = b.factor != b.factor;
#pragma unroll
    for (int k = 0; k < kWords; ++k) out[k] = !poison ? out[k] : kForm == Form::bf16 ? 0x7FC07FC0u : 0u;
  }
}

}  // namespace halftone::device
