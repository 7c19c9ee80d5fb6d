#pragma once
#include "halftone/formats/hadamard.h"
#include "halftone/quantize/cuda/async_copy.cuh"
#include "halftone/quantize/cuda/emit.cuh"
#include "halftone/quantize/cuda/kernels.h"
#include "halftone/quantize/cuda/rotate_column.cuh"

namespace halftone::device {

constexpr int output_bytes(Form form) { return form == Form::packed ? 4 : form == Form::bf16 ? 16 : 8; }  // of eight elements

// The 32 elements of a block in one thread's registers, bf16 neighbours paired.
template <class T>
struct Block;
template <>
struct Block<bf16> {
  uint32_t w[16];
};
template <>
struct Block<float> {
  float v[32];
};

// Bytes from row to row of 128 bytes in shared memory, so that columns of 16 bytes do not collide (narrow) or no more than two do
// (wide). Asynchronous copies are faster to wide rows, which begin at whole sectors.
inline constexpr int kNarrowPitch = 128 + 16, kWidePitch = 128 + 32;
__device__ __forceinline__ void load_row(const uint8_t* at, Block<bf16>& t) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint4 v = reinterpret_cast<const uint4*>(at)[i];
    t.w[4 * i] = v.x, t.w[4 * i + 1] = v.y, t.w[4 * i + 2] = v.z, t.w[4 * i + 3] = v.w;
  }
}
// Two neighbouring columns of 32 rows: word r of both together, as it lies there.
template <int kPitch>
__device__ __forceinline__ void load_columns(const uint8_t* at, Block<bf16> (&t)[2]) {
#pragma unroll
  for (int r = 0; r < 32; ++r) t[r >> 4].w[r & 15] = *reinterpret_cast<const uint32_t*>(at + r * kPitch);
}
__device__ __forceinline__ void load_row(const uint8_t* at, Block<float>& t) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float4 v = reinterpret_cast<const float4*>(at)[i];
    t.v[4 * i] = v.x, t.v[4 * i + 1] = v.y, t.v[4 * i + 2] = v.z, t.v[4 * i + 3] = v.w;
  }
}
template <int kPitch>
__device__ __forceinline__ void load_columns(const uint8_t* at, Block<float> (&t)[1]) {
#pragma unroll
  for (int r = 0; r < 32; ++r) t[0].v[r] = *reinterpret_cast<const float*>(at + r * kPitch);
}
__device__ __forceinline__ void pair_rows(Block<float> (&)[1]) {}
// Pairs of columns to pairs of rows.
__device__ __forceinline__ void pair_rows(Block<bf16> (&t)[2]) {
  Block<bf16> p[2];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const uint32_t even = t[i >> 3].w[2 * i & 15], odd = t[i >> 3].w[(2 * i & 15) + 1];
    p[0].w[i] = __byte_perm(even, odd, 0x5410), p[1].w[i] = __byte_perm(even, odd, 0x7632);
  }
  t[0] = p[0], t[1] = p[1];
}

// The rotation of 32 rows (numerics.md section 5) of two columns as load_columns leaves them; pairs of rows out. flips: see RowFlips.
__device__ __forceinline__ void rotate_columns(Block<bf16> (&t)[2], const uint4* flips) {
  Block<bf16> p[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    float v[32];
#pragma unroll
    for (int r = 0; r < 32; ++r) {
      // One instruction widens and negates: what is added to the sign bit flips it.
      const uint32_t w = t[r >> 4].w[r & 15], flip = reinterpret_cast<const uint32_t*>(flips)[r];
      v[r] = __uint_as_float(j == 0 ? w * 0x10000u + flip : (w & 0xFFFF0000u) ^ flip);
    }
    butterflies(v);
#pragma unroll
    for (int i = 0; i < 16; ++i) p[j].w[i] = bf16_words(v[2 * i] * hadamard_norm(32), v[2 * i + 1] * hadamard_norm(32));
  }
  t[0] = p[0], t[1] = p[1];
}
__device__ __forceinline__ void rotate_columns(Block<float> (&t)[1], const uint4* flips) {
  auto& v = t[0].v;
#pragma unroll
  for (int r = 0; r < 32; ++r) v[r] = __uint_as_float(__float_as_uint(v[r]) ^ reinterpret_cast<const uint32_t*>(flips)[r]);
  butterflies(v);
#pragma unroll
  for (int r = 0; r < 32; ++r) v[r] *= hadamard_norm(32);
}

__device__ __forceinline__ __nv_bfloat162 as_pair(uint32_t w) { return *reinterpret_cast<const __nv_bfloat162*>(&w); }
__device__ __forceinline__ uint32_t as_word(__nv_bfloat162 v) { return *reinterpret_cast<const uint32_t*>(&v); }

// Largest magnitude as bits of an fp32; a NaN is larger than all.
__device__ __forceinline__ uint32_t amax_of(const Block<bf16>& t) {
  uint32_t m[2] = {t.w[0], t.w[1]};
#pragma unroll
  for (int i = 2; i < 16; ++i) m[i & 1] = max_magnitudes(m[i & 1], t.w[i]);
  const uint32_t w = max_magnitudes(m[0], m[1]) & 0x7FFF7FFFu;
  return max(w << 16, w & 0xFFFF0000u);
}
__device__ __forceinline__ uint32_t amax_of(const Block<float>& t) {
  float m[2] = {};
#pragma unroll
  for (int i = 0; i < 32; ++i) asm("max.NaN.f32 %0, %0, %1;" : "+f"(m[i & 1]) : "f"(fabsf(t.v[i])));
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(m[0]) : "f"(m[1]));
  return __float_as_uint(m[0]);
}
// Bytes whose highest bits are the signs of elements 4k to 4k + 3.
__device__ __forceinline__ uint32_t sign_bytes(const Block<bf16>& t, int k) { return __byte_perm(t.w[2 * k], t.w[2 * k + 1], 0x7531); }
__device__ __forceinline__ uint32_t sign_bytes(const Block<float>& t, int k) {
  const auto bits = [&](int i) { return __float_as_uint(t.v[4 * k + i]); };
  return gather_bytes(bits(0), bits(1), bits(2), bits(3), 3);
}
// The smaller magnitudes of pairs, with arbitrary signs.
__device__ __forceinline__ uint32_t min_magnitudes(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("min.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

__device__ __forceinline__ void store4(uint8_t* at, const uint32_t* w) { *reinterpret_cast<uint4*>(at) = {w[0], w[1], w[2], w[3]}; }

// a * b + c on the multipliers, which are less busy than the integer units; b hidden from the compiler, which would shift.
__device__ __forceinline__ uint32_t multiply_add(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r;
  asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
// Bytes of the magnitudes 0 to 3 and 4 to 7 of a block, as fold_words; without its conversions where all are normal numbers.
template <Float kTarget>
__device__ __forceinline__ void fold_table(uint32_t byte, uint32_t reference, uint32_t& first, uint32_t& second) {
  constexpr FloatSpec kSpec = spec(kTarget);
  constexpr uint32_t kOne = 1u << kSpec.mantissa_bits, kHalf = kOne / 2;
  constexpr uint32_t kBase = (static_cast<uint32_t>(kSpec.bias) - 1) * kOne;  // of 0.5
  const int shift = static_cast<int>(byte) - static_cast<int>(reference) + fold_shift(kTarget);
  if (shift >= 2 - kSpec.bias && shift <= fold_shift(kTarget) && reference != 255) {
    const uint32_t s = static_cast<uint32_t>(shift) * kOne;
    first = s * 0x01010100u + (kBase << 8 | (kBase + kOne) << 16 | (kBase + kOne + kHalf) << 24);
    second = s * 0x01010101u + (kBase + 2 * kOne) * 0x01010101u + (kHalf << 8 | kOne << 16 | (kOne + kHalf) << 24);
  } else {
    const ValueWords v = fold_words<kTarget>(byte, reference);
    first = v.first, second = v.second;
  }
}

// Scale of a block and how its elements are encoded and written.
template <class T, Coder kCoder, bool kStochastic, Form kForm>
struct BlockRule {
  static constexpr bool kFp4 = kCoder == Coder::e2m1, kPairs = sizeof(T) == 2;
  static_assert(kFp4 || (kPairs && kStochastic && kForm == Form::codes));
  using Rule = Stochastic<float_of(kCoder)>;
  uint32_t amax, byte;
  uint32_t mask;           // 0x80808080, 0 where the block is poisoned
  uint32_t first, second;  // folded: bytes of magnitudes 0 to 3 and 4 to 7; fp8: first is all of a poisoned block
  uint32_t most;           // bf16, stochastic: of magnitudes, as a pair
  float factor;            // 0 where the block is poisoned; fp32: inverse of the scale; bf16, stochastic: that times Rule::kToPosition
  __nv_bfloat162 f[3];     // bf16, nearest: inverse of the scale, half and quarter of it

  __device__ __forceinline__ void make(const CopyArgs& d, uint32_t reference, Block<T>& t) {
    byte = mx_byte(d.mx, amax);
    const bool poison = byte == 255;
    mask = poison ? 0u : 0x80808080u;
    if constexpr (!kFp4) first = poison ? 0x7F7F7F7Fu : 0u;
    if constexpr (kForm == Form::folded) {
      if (d.form == ValueForm::fold_e4m3) {
        fold_table<Float::e4m3>(byte, reference, first, second);
      } else {
        fold_table<Float::e5m2>(byte, reference, first, second);
      }
      if (reference == 255) mask = 0;
    }
    if constexpr (!kPairs) {
      factor = poison ? 0.0f : d.fixed_clip ? 0.75f * mx_inverse_of(byte) : mx_inverse_of(byte);
    } else if constexpr (kStochastic) {
      constexpr uint32_t kLargest = 150, kLift = 110;  // the largest byte whose factor is an fp32; elements times 2^-kLift above
      uint32_t b = byte;
      if (b > kLargest) {
#pragma unroll
        for (int i = 0; i < 16; ++i) t.w[i] = as_word(__hmul2(as_pair(t.w[i]), __float2bfloat162_rn(0x1p-110f)));
        b -= kLift;
      }
      const float inverse = __uint_as_float((254u - b) << 23);
      factor = poison ? 0.0f : inverse * Rule::kToPosition;
      constexpr uint32_t kMost = (std::bit_cast<uint32_t>(Rule::kMax) >> 16) - (127u << 7);
      most = b * 0x00800080u + kMost * 0x00010001u;  // kMax * 2^(b - 127)
    } else {
      const float inverse = poison ? 0.0f : mx_inverse_of(byte);
      f[0] = __float2bfloat162_rn(inverse);
      f[1] = __hmul2(f[0], __float2bfloat162_rn(0.5f)), f[2] = __hmul2(f[0], __float2bfloat162_rn(0.25f));
    }
  }

  // Rule::code of elements 4k to 4k + 3 of bf16, which factor takes to their positions at once. shift: 2^Rule::kShift in a register.
  template <class Draw>
  __device__ __forceinline__ void rounded(const Block<T>& t, int k, uint32_t shift, Draw&& draw, uint32_t (&s)[4]) const {
    const auto one = [&](uint32_t x, uint32_t below) {
      return multiply_add(__float_as_uint(__fmul_ru(fabsf(__uint_as_float(x)), factor)), shift, 0u - below);
    };
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t m = min_magnitudes(t.w[2 * k + i], most);
      // m & 0xFFFF0000, but on the multipliers.
      const uint32_t high = as_word(__hfma2(as_pair(m), __floats2bfloat162_rn(0.0f, 1.0f), __float2bfloat162_rn(0.0f)));
      s[2 * i] = one(m << 16, draw(2 * i)), s[2 * i + 1] = one(high, draw(2 * i + 1));
    }
  }
  // e2m1: codes of elements 4k to 4k + 3 as the digits of a number to base 16, low 16 bits.
  template <class Draw>
  __device__ __forceinline__ uint32_t digits(const Block<T>& t, int k, uint32_t shift, Draw&& draw) const {
    if constexpr (kPairs && !kStochastic) {
      const uint32_t a = round_e2m1_pair(__habs2(as_pair(t.w[2 * k])), f), b = round_e2m1_pair(__habs2(as_pair(t.w[2 * k + 1])), f);
      return (__byte_perm(a, b, 0x0062) * 16 + __byte_perm(a, b, 0x0040)) & 0x7777u;
    } else {
      uint32_t s[4];
      if constexpr (kPairs) {
        rounded(t, k, shift, draw, s);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float y = fabsf(t.v[4 * k + i]) * factor;
          s[i] = kStochastic ? Rule::code(fminf(y, Rule::kMax), draw(i)) : round_e2m1(y);
        }
      }
      constexpr uint32_t kByte = kStochastic ? 0x0073 : 0x0040;
      return __byte_perm(s[1], s[3], kByte) * 16 + __byte_perm(s[0], s[2], kByte);
    }
  }
  // draw(i): place_draw of element 8 * group + i.
  template <class Draw>
  __device__ __forceinline__ void encode8(const Block<T>& t, int group, uint32_t shift, Draw&& draw, uint32_t* out) const {
    const auto draw_high = [&](int i) { return draw(i + 4); };
    const uint32_t signs_lo = sign_bytes(t, 2 * group) & mask, signs_hi = sign_bytes(t, 2 * group + 1) & mask;
    if constexpr (!kFp4) {
      uint32_t s[4];
      rounded(t, 2 * group, shift, draw, s);
      out[0] = gather_bytes(s[0], s[1], s[2], s[3], 3) | signs_lo | first;
      rounded(t, 2 * group + 1, shift, draw_high, s);
      out[1] = gather_bytes(s[0], s[1], s[2], s[3], 3) | signs_hi | first;
      return;
    }
    const uint32_t low = digits(t, 2 * group, shift, draw), high = digits(t, 2 * group + 1, shift, draw_high);
    if constexpr (kForm == Form::folded) {
      out[0] = select_bytes(first, second, low) | signs_lo, out[1] = select_bytes(first, second, high) | signs_hi;
    } else {
      const uint32_t even = __byte_perm(signs_lo, signs_hi, 0x6420), odd = __byte_perm(signs_lo, signs_hi, 0x7531);
      out[0] = mask == 0 ? 0u : __byte_perm(low, high, 0x5410) | even >> 4 | odd;
    }
  }
};

}  // namespace halftone::device
