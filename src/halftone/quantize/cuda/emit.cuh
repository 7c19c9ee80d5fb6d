#pragma once
#include <cuda_fp16.h>

#include "halftone/quantize/cuda/encode.cuh"
#include "halftone/quantize/cuda/rules.cuh"

namespace halftone::device {

// What the values of a block are multiplied by: bf16 form of e2m1: the block scale as a pair of bf16; of e4m3 and e5m2: as
// fp32; fold forms: fold_word.
template <Coder kCoder>
__device__ __forceinline__ uint32_t value_word(const CopyArgs& d, float scale, uint32_t byte, uint32_t reference) {
  const uint32_t bits = __float_as_uint(scale);
  if constexpr (kCoder != Coder::e2m1) return bits;
  if (d.form == ValueForm::bf16) return __byte_perm(bits, bits, 0x3232);
  return fold_word(d.form == ValueForm::fold_e4m3 ? Float::e4m3 : Float::e5m2, byte, reference);
}

__device__ __forceinline__ uint32_t bf16_words(float low, float high) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&v);
}

// Values of four e4m3 or e5m2 codes times a scale.
template <Float kFormat>
__device__ __forceinline__ uint2 fp8_values(uint32_t codes, float scale) {
  float v[4];
#if __CUDA_ARCH__ >= 890
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    uint32_t pair;
    const auto two = static_cast<uint16_t>(codes >> (16 * k));
    if constexpr (kFormat == Float::e4m3) {
      asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(two));
    } else {
      asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(pair) : "h"(two));
    }
    const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&pair));
    v[2 * k] = f.x, v[2 * k + 1] = f.y;
  }
#else
  for (int i = 0; i < 4; ++i) v[i] = decode(kFormat, static_cast<uint8_t>(codes >> (8 * i)));
#endif
  return {bf16_words(v[0] * scale, v[1] * scale), bf16_words(v[2] * scale, v[3] * scale)};
}

__device__ __forceinline__ uint32_t multiply_bf16(uint32_t a, uint32_t b) {
  const __nv_bfloat162 r = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&a), *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const uint32_t*>(&r);
}
__device__ __forceinline__ uint32_t multiply_f16(uint32_t a, uint32_t b) {
  const __half2 r = __hmul2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
  return *reinterpret_cast<const uint32_t*>(&r);
}

// A pair of e2m1 codes in 16-bit halves (Codes8) as bf16: the magnitude's bits under the exponent are the value times 2^-126, exactly,
// the subnormal code included.
__device__ __forceinline__ uint32_t e2m1_values(uint32_t pair, uint32_t signs, uint32_t scale) {
  const uint32_t tiny = (signs & 0x80008000u) | (pair << 6);
  return multiply_bf16(multiply_bf16(tiny, 0x7E807E80u), scale);
}
// As fp16, times the fold factor, rounded to two bytes without signs: the magnitude's bits are the value times 2^-14; twice the value and
// 2^(shift - 1) are exact, and what their product loses lies below half of the smallest byte.
template <Float kTarget>
__device__ __forceinline__ uint32_t e2m1_folded(uint32_t pair, uint32_t factor) {
  const uint32_t v = multiply_f16(multiply_f16(pair << 9, 0x78007800u), factor);
#if __CUDA_ARCH__ >= 890
  uint16_t r;
  if constexpr (kTarget == Float::e4m3) {
    asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(r) : "r"(v));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f16x2 %0, %1;" : "=h"(r) : "r"(v));
  }
  return r;
#else
  const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&v));
  return encode(kTarget, f.x) | static_cast<uint32_t>(encode(kTarget, f.y)) << 8;
#endif
}

// How many of eight e2m1 codes are no multiples of the smallest byte's value, `below` >= 1 binades under exactness.
inline __device__ __noinline__ int folded_losses(uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t below) {
  const uint32_t pairs[4] = {a, b, c, d};
  int n = 0;
  for (int i = 0; i < 8; ++i) {
    const uint32_t code = pairs[i >> 1] >> (16 * (i & 1)) & 7u;
    const uint32_t twice = code < 4 ? code : (2 + (code & 1)) << ((code >> 1) - 1);
    n += (twice & ((1u << below) - 1)) != 0;
  }
  return n;
}

// Which outputs a copy has, and where the thread's next vector goes. Tests and addresses are made once a pass: `forms` is hidden
// from the compiler so that it keeps the bits instead of reading the parameters again for every vector.
enum Form : uint32_t { kCodes = 1, kPacked = 2, kBf16 = 4, kFoldE4m3 = 8, kFoldE5m2 = 16, kLost = 32 };
struct Outputs {
  uint32_t forms;
  int64_t stride;
  uint8_t *codes, *packed, *values;

  // at: element of the first vector; step: elements to the next.
  __device__ __forceinline__ Outputs(const CopyArgs& d, int64_t at, int64_t step) : stride(step) {
    forms = (d.codes != nullptr ? kCodes : 0u) | (d.packed != nullptr ? kPacked : 0u) | (d.lost != nullptr ? kLost : 0u);
    forms |= d.form == ValueForm::bf16        ? kBf16
             : d.form == ValueForm::fold_e4m3 ? kFoldE4m3
             : d.form == ValueForm::fold_e5m2 ? kFoldE5m2
                                              : 0u;
    asm volatile("" : "+r"(forms));
    codes = d.codes + at, packed = d.packed + at / 2;
    values = static_cast<uint8_t*>(d.values) + (d.form == ValueForm::bf16 ? 2 * at : at);
  }
  __device__ __forceinline__ bool has(uint32_t form) const { return (forms & form) != 0; }
  __device__ __forceinline__ void next() {
    codes += stride, packed += stride / 2;
    values += has(kBf16) ? 2 * stride : stride;
  }
};

// Writes eight codes in all forms that the copy has.
template <Coder kCoder>
__device__ __forceinline__ void emit8(const Outputs& out, unsigned long long* lost, const Codes8& q, bool poison, uint32_t value) {
  uint32_t lo, hi;  // bytes
  uint32_t even = 0, odd = 0;
  if constexpr (kCoder == Coder::e2m1) {
    if (out.has(kCodes | kPacked)) {
      uint32_t h[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) h[k] = q.w[k] | ((q.signs[k] >> 12) & 0x00080008u);
      const uint32_t a = h[0] | h[1] << 8, b = h[2] | h[3] << 8;
      lo = __byte_perm(a, a, 0x3120), hi = __byte_perm(b, b, 0x3120);
      even = __byte_perm(a, b, 0x5410), odd = __byte_perm(a, b, 0x7632);
    }
  } else {
    lo = q.w[0], hi = q.w[1];
    if constexpr (kCoder == Coder::integer)
      even = __byte_perm(lo, hi, 0x6420) & 0x0F0F0F0Fu, odd = __byte_perm(lo, hi, 0x7531) & 0x0F0F0F0Fu;
  }
  constexpr uint32_t kPoison = kCoder == Coder::e4m3 || kCoder == Coder::e5m2 ? 0x7F7F7F7Fu : 0u;
  if (out.has(kCodes)) *reinterpret_cast<uint2*>(out.codes) = {poison ? kPoison : lo, poison ? kPoison : hi};
  if constexpr (kCoder == Coder::e2m1 || kCoder == Coder::integer) {
    if (out.has(kPacked)) *reinterpret_cast<uint32_t*>(out.packed) = poison ? 0u : even | odd << 4;
  }
  if constexpr (kCoder == Coder::e2m1) {
    if (out.has(kBf16)) {
      uint4 v{e2m1_values(q.w[0], q.signs[0], value), e2m1_values(q.w[1], q.signs[1], value), e2m1_values(q.w[2], q.signs[2], value),
              e2m1_values(q.w[3], q.signs[3], value)};
      if (poison) v.x = v.y = v.z = v.w = 0x7FC07FC0u;
      *reinterpret_cast<uint4*>(out.values) = v;
    }
    if (out.has(kFoldE4m3 | kFoldE5m2)) {
      const uint32_t factor = __byte_perm(value, value, 0x1010);
      uint2 v;
      if (out.has(kFoldE4m3)) {
        v.x = e2m1_folded<Float::e4m3>(q.w[0], factor) | e2m1_folded<Float::e4m3>(q.w[1], factor) << 16;
        v.y = e2m1_folded<Float::e4m3>(q.w[2], factor) | e2m1_folded<Float::e4m3>(q.w[3], factor) << 16;
      } else {
        v.x = e2m1_folded<Float::e5m2>(q.w[0], factor) | e2m1_folded<Float::e5m2>(q.w[1], factor) << 16;
        v.y = e2m1_folded<Float::e5m2>(q.w[2], factor) | e2m1_folded<Float::e5m2>(q.w[3], factor) << 16;
      }
      v.x |= __byte_perm(q.signs[0], q.signs[1], 0x7531) & 0x80808080u;
      v.y |= __byte_perm(q.signs[2], q.signs[3], 0x7531) & 0x80808080u;
      poison = poison || value == kFoldPoison;
      if (poison) v.x = v.y = 0x7F7F7F7Fu;
      *reinterpret_cast<uint2*>(out.values) = v;
      if ((value >> 16) != 0 && !poison && out.has(kLost)) {
        const int n = folded_losses(q.w[0], q.w[1], q.w[2], q.w[3], value >> 16);
        if (n > 0) atomicAdd(lost, static_cast<unsigned long long>(n));
      }
    }
  } else if constexpr (kCoder != Coder::integer) {
    if (out.has(kBf16)) {
      const float scale = __uint_as_float(value);
      const uint2 a = fp8_values<float_of(kCoder)>(lo, scale), b = fp8_values<float_of(kCoder)>(hi, scale);
      uint4 v{a.x, a.y, b.x, b.y};
      if (poison) v.x = v.y = v.z = v.w = 0x7FC07FC0u;
      *reinterpret_cast<uint4*>(out.values) = v;
    }
  }
}

}  // namespace halftone::device
