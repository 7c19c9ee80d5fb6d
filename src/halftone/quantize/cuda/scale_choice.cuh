#pragma once
#include <cuda_fp16.h>

#include "halftone/formats/scale_choice.h"
#include "halftone/quantize/cuda/element_vector.cuh"
#include "halftone/quantize/cuda/rules.cuh"
#include "halftone/quantize/cuda/tile_args.h"

namespace halftone::device {

// formats/scale_choice.h for whole blocks in registers: ScaleCandidates with decoded scales, and both errors of eight elements in pairs of
// fp16, where integers below 2048 and their errors are exact.
struct ChoiceRule {
  uint32_t six, four;
  float scale_six, scale_four, per_scale;
  __half2 ratio;  // 512 times
  bool four_anyway;
};

__device__ __forceinline__ __half2 half_pair(uint32_t w) { return *reinterpret_cast<const __half2*>(&w); }
__device__ __forceinline__ uint32_t word_of(__half2 v) { return *reinterpret_cast<const uint32_t*>(&v); }

__device__ __forceinline__ ChoiceRule choice_rule(Fp4Chain chain, bool wide, uint32_t amax, ScalePair outer, float outer_reciprocal) {
  const float target = fp4_target(chain, wide, amax, outer, outer_reciprocal);
  const bool bad = poisoned(amax) || outer.scale != outer.scale;
  ChoiceRule r{};
  r.six = bad ? (wide ? 0xFFu : 0x7Fu) : fp4_scale_code(wide, target);
  r.four = bad ? r.six : fp4_scale_code(wide, fminf(1.5f * target, wide ? kUe5m3Max : 448.0f));
  r.scale_six = fp4_scale_value(wide, r.six), r.scale_four = fp4_scale_value(wide, r.four);
  r.per_scale = fminf(128.0f * __frcp_rn(r.scale_six * outer.scale), std::numeric_limits<float>::max());
  r.ratio = __float2half2_rn(r.scale_six * __frcp_rn(r.scale_four) * 512.0f);
  r.four_anyway = r.scale_six == 0 || __uint_as_float(amax) * r.per_scale > 895.0f;
  return r;
}

// Bytes 128 + k - (nearest e2m1 value) of two elements, at bits 0 and 16. h: 1152 + k; y: k / 512.
__device__ __forceinline__ uint32_t error_pair(__half2 h, __half2 y) {
  const __half2 least = half_pair(word_of(__hmax2(y, half_pair(0x34003400u))) & 0x7C007C00u);  // power of two, at least 1/4
  const __half2 s = __hfma2(least, half_pair(0x62006200u), y);                                 // + 768 least: its last place is the quantum
  const __half2 v = __hfma2(least, half_pair(0xE200E200u), s);
  return word_of(__hfma2(v, half_pair(0xE000E000u), h));  // - 512 v
}
__device__ __forceinline__ __half2 per_512(__half2 h) { return __hfma2(h, half_pair(0x18001800u), half_pair(0xC080C080u)); }

__device__ __forceinline__ int add_errors(ScaleChoice choice, int sum, uint32_t first, uint32_t second) {
  const uint32_t errors = __byte_perm(first, second, 0x6420) ^ 0x80808080u;
  if (choice == ScaleChoice::squared) return __dp4a(static_cast<int>(errors), static_cast<int>(errors), sum);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int size = abs(static_cast<int>(errors << (24 - 8 * i)) >> 24);
    sum = choice == ScaleChoice::largest ? max(sum, size) : sum + size;
  }
  return sum;
}
template <class T>
__device__ __forceinline__ void add_errors(ScaleChoice choice, const ChoiceRule& r, const ElementVector<T>& x, ChoiceErrors& sums) {
  uint32_t six[4], four[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    // The low halves of 1.5 * 2^23 + 0x6480 + k are 1152 + k in fp16.
    const float low = __fmaf_rn(fabsf(element(x, 2 * k)), r.per_scale, 0x1.8p23f + 25728.0f);
    const float high = __fmaf_rn(fabsf(element(x, 2 * k + 1)), r.per_scale, 0x1.8p23f + 25728.0f);
    const __half2 h = half_pair(__byte_perm(__float_as_uint(low), __float_as_uint(high), 0x5410)), y = per_512(h);
    const __half2 h4 = __hfma2(y, r.ratio, half_pair(0x64806480u));
    six[k] = error_pair(h, y), four[k] = error_pair(h4, per_512(h4));
  }
#pragma unroll
  for (int k = 0; k < 4; k += 2) {
    sums.six = add_errors(choice, sums.six, six[k], six[k + 1]);
    sums.four = add_errors(choice, sums.four, four[k], four[k + 1]);
  }
}
__device__ __forceinline__ uint32_t chosen_byte(ScaleChoice choice, const ChoiceRule& r, const ChoiceErrors& sums) {
  return r.four_anyway || takes_four(choice, r.scale_six, r.scale_four, sums) ? r.four : r.six;
}

// Sum, or maximum for ScaleChoice::largest, over the lanes that differ in the bits of `lanes`.
__device__ __forceinline__ int errors_over(ScaleChoice choice, int a, int lanes) {
#pragma unroll
  for (int bit = 1; bit < 32; bit *= 2) {
    if ((lanes & bit) == 0) continue;
    const int b = __shfl_xor_sync(0xFFFFFFFFu, a, bit);
    a = choice == ScaleChoice::largest ? max(a, b) : a + b;
  }
  return a;
}

// Four rows of two neighbouring elements, in any order.
__device__ __forceinline__ ElementVector<bf16> vector_of(uint32_t a, uint32_t b, uint32_t c, uint32_t d) { return {{a, b, c, d}}; }
__device__ __forceinline__ ElementVector<float> vector_of(float2 a, float2 b, float2 c, float2 d) {
  return {{a.x, a.y, b.x, b.y, c.x, c.y, d.x, d.y}};
}

}  // namespace halftone::device
