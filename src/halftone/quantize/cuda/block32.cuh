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
// (wide). Asynchronous copies are faster to wide rows, which begin at whole sectors. Tight rows have no bytes between them; their pieces of
// 16 bytes change places, exclusive or with the row, which costs addresses: for what would otherwise have narrow rows and makes no draws.
inline constexpr int kNarrowPitch = 128 + 16, kWidePitch = 128 + 32, kTightPitch = 128;
// Where byte `at` of a row lies in it, and in all.
template <int kPitch>
__device__ __forceinline__ int in_row(int row, int at) {
  return kPitch == kTightPitch ? at ^ (row & 7) << 4 : at;
}
template <int kPitch>
__device__ __forceinline__ int row_at(int row, int at) {
  return row * kPitch + (kPitch == kTightPitch ? at ^ (row & 7) << 4 : at);
}
// Elements from byte `at` of a row on, which begins at `own`.
template <int kPitch>
__device__ __forceinline__ void load_row(const uint8_t* own, int row, int at, Block<bf16>& t) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint4 v = *reinterpret_cast<const uint4*>(own + in_row<kPitch>(row, at + i * 16));
    t.w[4 * i] = v.x, t.w[4 * i + 1] = v.y, t.w[4 * i + 2] = v.z, t.w[4 * i + 3] = v.w;
  }
}
// Two neighbouring columns of 32 rows: word r of both together, as it lies there.
template <int kPitch>
__device__ __forceinline__ void load_columns(const uint8_t* at, Block<bf16> (&t)[2]) {
#pragma unroll
  for (int r = 0; r < 32; ++r) t[r >> 4].w[r & 15] = *reinterpret_cast<const uint32_t*>(at + r * kPitch);
}
template <int kPitch>
__device__ __forceinline__ void load_row(const uint8_t* own, int row, int at, Block<float>& t) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float4 v = *reinterpret_cast<const float4*>(own + in_row<kPitch>(row, at + i * 16));
    t.v[4 * i] = v.x, t.v[4 * i + 1] = v.y, t.v[4 * i + 2] = v.z, t.v[4 * i + 3] = v.w;
  }
}
template <int kPitch>
__device__ __forceinline__ void load_columns(const uint8_t* at, Block<float> (&t)[1]) {
#pragma unroll
  for (int r = 0; r < 32; ++r) t[0].v[r] = *reinterpret_cast<const float*>(at + r * kPitch);
}
// Which rows a word of a column holds: neighbours, or (far) rows i and i + 4 of eight, whose codes then need no other order.
template <bool kFar>
__device__ constexpr int first_row(int word) {
  return kFar ? (word & ~3) * 2 + (word & 3) : 2 * word;
}
template <bool kFar>
inline constexpr int kSecondRow = kFar ? 4 : 1;
template <bool kFar>
__device__ __forceinline__ void pair_rows(Block<float> (&)[1]) {}
// volatile: by a branch, which costs healthy blocks one instruction and not one a register.
__device__ __forceinline__ void clear(Block<bf16>& t) {
#pragma unroll
  for (uint32_t& w : t.w) asm volatile("mov.b32 %0, 0;" : "=r"(w));
}
__device__ __forceinline__ void clear(Block<float>& t) {
#pragma unroll
  for (float& v : t.v) asm volatile("mov.b32 %0, 0;" : "=f"(v));
}
// Pairs of columns to pairs of rows.
template <bool kFar>
__device__ __forceinline__ void pair_rows(Block<bf16> (&t)[2]) {
  Block<bf16> p[2];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int r = first_row<kFar>(i), s = r + kSecondRow<kFar>;
    const uint32_t one = t[r >> 4].w[r & 15], other = t[s >> 4].w[s & 15];
    p[0].w[i] = __byte_perm(one, other, 0x5410), p[1].w[i] = __byte_perm(one, other, 0x7632);
  }
  t[0] = p[0], t[1] = p[1];
}

__device__ __forceinline__ __nv_bfloat162 as_pair(uint32_t w) { return *reinterpret_cast<const __nv_bfloat162*>(&w); }
__device__ __forceinline__ uint32_t as_word(__nv_bfloat162 v) { return *reinterpret_cast<const uint32_t*>(&v); }

// What the upper half of a RowFlips word is, so that it is 1 or -1, or the pair (0, 1) or (0, -1), by which bf16 elements are widened.
inline constexpr uint32_t kFlipBits = 0x3F800000u;
// One half of a pair in both places, as which multiply-adds of pairs take it at no cost, and always by the multipliers: of those of whole
// words the compiler sends every other one a way (HFMA2.MMA) that takes slots of the integer pipe.
template <int kHalf>
__device__ __forceinline__ __nv_bfloat162 both_halves(uint32_t w) {
  return kHalf == 0 ? __low2bfloat162(as_pair(w)) : __high2bfloat162(as_pair(w));
}
// The half kHalf of a pair as an fp32, times the upper half of `by`, whose lower half is 0: by one multiply-add of pairs, which the
// integer units, busier than the multipliers, have no part in. An infinity becomes a NaN. zero: 0, or where -0 is to stay what it is
// (0, -0), which the compiler must not see to be constant: it would make it anew from halves each time.
template <int kHalf>
__device__ __forceinline__ float widened(uint32_t w, uint32_t by, uint32_t zero) {
  return __uint_as_float(as_word(__hfma2(both_halves<kHalf>(w), as_pair(by), as_pair(zero))));
}

// The rotation of 32 rows of a column (numerics.md section 5), signs applied; pairs of rows out.
template <bool kFar>
__device__ __forceinline__ void rotate_rows(float (&v)[32], Block<bf16>& t) {
  butterflies(v);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int r = first_row<kFar>(i);
    t.w[i] = bf16_words(v[r] * hadamard_norm(32), v[r + kSecondRow<kFar>] * hadamard_norm(32));
  }
}
// Of two columns as load_columns leaves them. flips: RowFlips with kFlipBits.
__device__ __forceinline__ void rotate_columns(Block<bf16> (&t)[2], const uint4* flips) {
  Block<bf16> p[2];
  const uint32_t zero = blockDim.x * (0x80000000u / kTileThreads);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    float v[32];
#pragma unroll
    for (int r = 0; r < 32; ++r) {
      const uint32_t w = t[r >> 4].w[r & 15], flip = reinterpret_cast<const uint32_t*>(flips)[r];
      v[r] = j == 0 ? widened<0>(w, flip, zero) : widened<1>(w, flip, zero);
    }
    rotate_rows<false>(v, p[j]);
  }
  t[0] = p[0], t[1] = p[1];
}
// Of one of the two columns whose elements lie from byte `at` of the rows x on. volatile: or the compiler keeps those of both in
// registers.
template <bool kFar, int kPitch, int kHalf>
__device__ __forceinline__ void rotate_column(const uint8_t* x, int at, const uint4* flips, Block<bf16>& t) {
  const uint32_t zero = blockDim.x * (0x80000000u / kTileThreads);
  float v[32];
#pragma unroll
  for (int r = 0; r < 32; ++r) {
    const uint32_t w = *reinterpret_cast<const volatile uint32_t*>(x + row_at<kPitch>(r, at));
    v[r] = widened<kHalf>(w, reinterpret_cast<const uint32_t*>(flips)[r], zero);
  }
  rotate_rows<kFar>(v, t);
}
__device__ __forceinline__ void rotate_columns(Block<float> (&t)[1], const uint4* flips) {
  auto& v = t[0].v;
  // Signs with the first sums.
#pragma unroll
  for (int r = 0; r < 32; r += 2) {
    const auto* by = reinterpret_cast<const float*>(flips) + r;
    const float a = v[r] * by[0], b = v[r + 1];
    v[r] = __fmaf_rn(b, by[1], a), v[r + 1] = __fmaf_rn(-b, by[1], a);
  }
  butterflies<32, 32, 2>(v);
#pragma unroll
  for (int r = 0; r < 32; ++r) v[r] *= hadamard_norm(32);
}

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
// Bytes all of whose bits are the signs.
__device__ __forceinline__ uint32_t signs_of(float a, float b, float c, float d) {
  const auto two = [](float low, float high) {
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, 0xFB;" : "=r"(r) : "r"(__float_as_uint(low)), "r"(__float_as_uint(high)));
    return r;
  };
  return __byte_perm(two(a, b), two(c, d), 0x5410);
}
__device__ __forceinline__ void store4(uint8_t* at, const uint32_t* w) { *reinterpret_cast<uint4*>(at) = {w[0], w[1], w[2], w[3]}; }

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

// Stochastic rounding: the largest byte of a scale whose factor of elements to positions is an fp32. Elements of larger ones are taken
// times kLowered, 2^-kLoweredBits, first.
inline constexpr uint32_t kLargestFactor = 150, kLoweredBits = 110;
inline constexpr float kLowered = 0x1p-110f;

// Nearest e2m1 codes of pairs of bf16 by sums that need no product with the inverse of the scale s. bf16 has 8 bits: |x| + 126 s is
// rounded to s / 2 below 128 s, that is for |x| below 2 s, and to s above; |x| + 256 s to 2 s. The sums' bits count these steps: the
// first's, less those of 126 s, are the code up to |x| = 4 s and too large above, the second's, less those of 256 s, and 4 are the code
// above and too large below. Both keep the parity, so ties go to even codes. No saturation: |x| lies below 7 s.
struct PairSums {
  // The largest byte of a scale 256 times which is a bf16; elements of larger ones are taken times 2^-kLoweredBits first.
  static constexpr uint32_t kLargest = 246, kLoweredBits = 16;
  uint32_t low, high;  // 126 and 256 times the scale, as pairs
  __device__ __forceinline__ void make(uint32_t byte) { low = byte * 0x00800080u + 0x037C037Cu, high = byte * 0x00800080u + 0x04000400u; }
  // Codes of the magnitudes more than `low`.
  __device__ __forceinline__ uint32_t codes(uint32_t a) const {
    return __viaddmin_u16x2(as_word(__hadd2(as_pair(high), as_pair(a))), 0xFF80FF80u, as_word(__hadd2(as_pair(low), as_pair(a))));
  }
};
// What nearest codes of a block of bf16 need: its magnitudes, and bytes whose highest bits are the signs of words 2k and 2k + 1, or (kFar)
// of k and k + 2 of four, in the order kOrder. kMask: by the integer units instead of the multipliers, which suits folded codes (up to 3%
// less time), not packed ones (up to 5% more).
struct Magnitudes {
  uint32_t a[16], signs[8];
  template <bool kFar, uint32_t kOrder, bool kMask>
  __device__ __forceinline__ void make(const Block<bf16>& t) {
#pragma unroll
    for (int i = 0; i < 16; ++i) a[i] = kMask ? t.w[i] & 0x7FFF7FFFu : as_word(__habs2(as_pair(t.w[i])));
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int i = kFar ? (k & ~1) * 2 + (k & 1) : 2 * k;
      signs[k] = __byte_perm(t.w[i], t.w[i + (kFar ? 2 : 1)], kOrder);
    }
  }
  __device__ __forceinline__ uint32_t amax() const {
    uint32_t m[2] = {a[0], a[1]};
#pragma unroll
    for (int i = 2; i < 16; i += 2) m[i >> 1 & 1] = __vimax3_u16x2(m[i >> 1 & 1], a[i], a[i + 1]);
    const uint32_t w = __vmaxu2(m[0], m[1]);
    return max(w << 16, w & 0xFFFF0000u);
  }
  // All times 2^-PairSums::kLoweredBits, or none.
  __device__ __forceinline__ void lower(bool none) {
    const uint32_t keep = none ? 0u : ~0u;
#pragma unroll
    for (uint32_t& w : a) w = as_word(__hmul2(as_pair(w & keep), __float2bfloat162_rn(0x1p-16f)));
#pragma unroll
    for (uint32_t& w : signs) w &= keep;
  }
};

// Scale of a block and how its elements are encoded and written.
template <class T, Coder kCoder, bool kStochastic, Form kForm>
struct BlockRule {
  static_assert(kCoder == Coder::e2m1);
  static constexpr bool kPairs = sizeof(T) == 2;
  static constexpr uint32_t kSigns = 0x80808080u;
  using Rule = Stochastic<Float::e2m1>;
  uint32_t amax, byte;
  uint32_t mask;           // fp32, nearest: kSigns, 0 where the block is poisoned
  uint32_t first, second;  // folded: bytes of magnitudes 0 to 3 and 4 to 7
  uint32_t most;           // bf16, stochastic: of magnitudes, as a pair
  float factor;            // 0 where the block is poisoned; inverse of the scale; stochastic: that times Rule::kToPosition
  PairSums sums;           // bf16, nearest
  Magnitudes m;            // likewise

  // kFar: how words hold rows, see first_row.
  template <bool kFar>
  __device__ __forceinline__ void take(const Block<T>& t) {
    if constexpr (kPairs && !kStochastic) {
      m.make<kFar, kForm == Form::packed ? 0x7351 : 0x7531, kForm == Form::folded>(t);
      amax = m.amax();
    } else {
      amax = amax_of(t);
    }
  }

  __device__ __forceinline__ void make(const CopyArgs& d, uint32_t reference, Block<T>& t) {
    byte = mx_byte(d.mx, amax);
    const bool poison = byte == 255;
    if constexpr (kForm == Form::folded) {
      if (d.form == ValueForm::fold_e4m3) {
        fold_table<Float::e4m3>(byte, reference, first, second);
      } else {
        fold_table<Float::e5m2>(byte, reference, first, second);
      }
    }
    if constexpr (kPairs && kStochastic) {
      if (poison || (kForm == Form::folded && reference == 255)) clear(t);  // codes are 0, without signs
    } else if constexpr (kStochastic) {
      // Elements whose factor to positions is no fp32, or no power of two, take two products as the reference does; codes of poisoned
      // blocks are 0, without signs.
      const bool zeros = poison || (kForm == Form::folded && reference == 255), apart = d.fixed_clip || byte > kLargestFactor;
      if (zeros || apart) {
        const float by = d.fixed_clip ? 0.75f * mx_inverse_of(byte) : mx_inverse_of(byte);
#pragma unroll
        for (float& v : t.v) asm volatile("mul.f32 %0, %0, %1;" : "+f"(v) : "f"(by));
        if (zeros) clear(t);
      }
      factor = (zeros || apart ? 1.0f : __uint_as_float((254u - byte) << 23)) * Rule::kToPosition;
    } else if constexpr (!kPairs) {
      mask = poison || (kForm == Form::folded && reference == 255) ? 0u : kSigns;
      factor = poison ? 0.0f : d.fixed_clip ? 0.75f * mx_inverse_of(byte) : mx_inverse_of(byte);
    }
    if constexpr (kPairs && kStochastic) {
      uint32_t b = byte;
      if (b > kLargestFactor) {
#pragma unroll
        for (int i = 0; i < 16; ++i) t.w[i] = as_word(__hmul2(as_pair(t.w[i]), __float2bfloat162_rn(kLowered)));
        b -= kLoweredBits;
      }
      const float inverse = __uint_as_float((254u - b) << 23);
      factor = poison ? 0.0f : inverse * Rule::kToPosition;
      constexpr uint32_t kMost = (std::bit_cast<uint32_t>(Rule::kMax) >> 16) - (127u << 7);
      most = b * 0x00800080u + kMost * 0x00010001u;  // kMax * 2^(b - 127)
    } else if constexpr (kPairs) {
      uint32_t b = byte;
      const bool none = poison || (kForm == Form::folded && reference == 255);
      if (none || b > PairSums::kLargest) {
        m.lower(none);
        b = none ? 127u : b - PairSums::kLoweredBits;
      }
      sums.make(b);
    }
  }

  // Rule::code of elements 4k to 4k + 3, which factor takes to their positions at once. shift: 2^Rule::kShift in a register.
  template <class Draw>
  __device__ __forceinline__ void rounded(const Block<T>& t, int k, uint32_t shift, Draw&& draw, uint32_t (&s)[4]) const {
    if constexpr (kPairs) {
      const auto one = [&](float x, uint32_t below) {
        return multiply_add(__float_as_uint(__fmul_ru(fabsf(x), factor)), shift, 0u - below);
      };
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t m = min_magnitudes(t.w[2 * k + i], most);
        s[2 * i] = one(widened<0>(m, 0x3F800000u, 0), draw(2 * i)), s[2 * i + 1] = one(widened<1>(m, 0x3F800000u, 0), draw(2 * i + 1));
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[i] = multiply_add(__float_as_uint(__fmul_ru(fabsf(t.v[4 * k + i]), factor)), shift, 0u - draw(i));
    }
  }
  // Codes of elements 4k to 4k + 3 as the digits of a number to base 16: low 16 bits.
  template <class Draw>
  __device__ __forceinline__ uint32_t digits(const Block<T>& t, int k, uint32_t shift, Draw&& draw) const {
    if constexpr (kPairs && !kStochastic) {
      const uint32_t bytes = sums.codes(m.a[2 * k + 1]) * 256 + sums.codes(m.a[2 * k]) - sums.low * 0x101u;  // 0, 2, 1, 3
      return bytes + (bytes >> 12);
    } else {
      uint32_t s[4];
      if constexpr (kStochastic) {
        rounded(t, k, shift, draw, s);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[i] = round_e2m1(fabsf(t.v[4 * k + i]) * factor);
      }
      constexpr uint32_t kByte = kStochastic ? 0x0073 : 0x0040;
      return __byte_perm(s[1], s[3], kByte) * 16 + __byte_perm(s[0], s[2], kByte);
    }
  }
  // bf16, nearest: bytes whose upper halves are the codes of words i and j, of the lower halves first, with the signs k.
  __device__ __forceinline__ uint32_t high_codes(int i, int j, int k) const {
    return ((sums.codes(m.a[i]) + sums.codes(m.a[j]) * 256) * 16 - sums.low * 0x1010u) | (m.signs[k] & kSigns);
  }
  __device__ __forceinline__ uint32_t signs() const { return kPairs ? kSigns : mask; }
  // draw(i): place_draw of element 8 * group + i.
  template <bool kFar, class Draw>
  __device__ __forceinline__ void encode8(const Block<T>& t, int group, uint32_t shift, Draw&& draw, uint32_t* out) const {
    if constexpr (kForm == Form::packed && kPairs && !kStochastic) {
      const int i = 4 * group, k = 2 * group;
      if constexpr (kFar) {
        out[0] = (high_codes(i, i + 2, k) >> 4) + high_codes(i + 1, i + 3, k + 1);
      } else {
        const uint32_t a = high_codes(i, i + 1, k), b = high_codes(i + 2, i + 3, k + 1);
        out[0] = (__byte_perm(a, b, 0x5410) >> 4) + __byte_perm(a, b, 0x7632);
      }
      return;
    }
    const auto draw_high = [&](int i) { return draw(i + 4); };
    if constexpr (!kPairs && kStochastic) {
      // Elements above kMax may round to code 8, which is settled for eight codes together.
      const uint32_t codes = __byte_perm(digits(t, 2 * group, shift, draw), digits(t, 2 * group + 1, shift, draw_high), 0x5410);
      const uint32_t within = codes - ((codes & 0x88888888u) >> 3);
      if constexpr (kForm == Form::folded) {
        out[0] = select_bytes(first, second, within) | (sign_bytes(t, 2 * group) & kSigns);
        out[1] = select_bytes(first, second, within >> 16) | (sign_bytes(t, 2 * group + 1) & kSigns);
      } else {
        const float* v = t.v + 8 * group;
        out[0] = within | (signs_of(v[0], v[2], v[4], v[6]) & (kSigns >> 4)) | (signs_of(v[1], v[3], v[5], v[7]) & kSigns);
      }
      return;
    }
    const uint32_t low = digits(t, 2 * group, shift, draw), high = digits(t, 2 * group + 1, shift, draw_high);
    uint32_t signs_lo, signs_hi;
    if constexpr (kPairs && !kStochastic) {
      signs_lo = m.signs[2 * group], signs_hi = m.signs[2 * group + 1];
    } else {
      signs_lo = sign_bytes(t, 2 * group), signs_hi = sign_bytes(t, 2 * group + 1);
    }
    if constexpr (kForm == Form::folded) {
      out[0] = select_bytes(first, second, low) | (signs_lo & signs()), out[1] = select_bytes(first, second, high) | (signs_hi & signs());
    } else {
      const uint32_t even = __byte_perm(signs_lo, signs_hi, 0x6420), odd = __byte_perm(signs_lo, signs_hi, 0x7531);
      out[0] = signs() == 0 ? 0u : __byte_perm(low, high, 0x5410) | ((even & kSigns) >> 4) | (odd & kSigns);
    }
  }
};

// MXFP8 codes of bf16, stochastic: scale of a block. Pairs of elements stay in their words, whichever blocks they are of.
//
// f of an element that is a normal number of the format has 7 - mantissa_bits bits, so that the draw's highest eight say whether it goes
// up: bits of the magnitude less those of the smallest normal number, the code from bit 7 - mantissa_bits on, less the draw's byte. Smaller
// elements leave bit 14 of the difference set, unless its bits are more than 2^14. Where one is seen, or a block saturates, that is done
// again within bounds, which is right for zeros and the largest code, too; the smaller elements that are left take positions in fp32.
template <Coder kCoder>
struct CodeRule {
  using Rule = Stochastic<float_of(kCoder)>;
  static constexpr FloatSpec kSpec = Rule::kSpec;
  uint32_t amax, byte;
  uint32_t least;  // bits of the smallest normal number
  bool close;      // bounds are needed
  bool exotic;     // poisoned, or that number is no normal bf16
  template <bool, class T>
  __device__ __forceinline__ void take(const Block<T>& t) {
    amax = amax_of(t);
  }
  template <class T>
  __device__ __forceinline__ void make(const CopyArgs& d, uint32_t, const Block<T>&) {
    byte = mx_byte(d.mx, amax);
    constexpr uint32_t kMost = std::bit_cast<uint32_t>(Rule::kMax) - (127u << 23);
    const uint32_t exponent = amax == 0 ? 1u : byte + static_cast<uint32_t>(1 - kSpec.bias);
    least = exponent << 7 & 0xFFFFu;
    exotic = byte == 255 || exponent - 1 > 253;
    close = exotic || exponent > 128 || amax > kMost + (byte << 23);
  }
  // Code of x, without a sign. place: of its draw.
  __device__ __forceinline__ uint32_t position_code(float x, uint32_t place) const {
    const bool lift = byte > kLargestFactor;
    const uint32_t b = lift ? byte - kLoweredBits : byte;
    const float y = fabsf(x) * (lift ? kLowered : 1.0f), factor = __uint_as_float((254u - b) << 23) * Rule::kToPosition;
    constexpr uint32_t kMost = std::bit_cast<uint32_t>(Rule::kMax * Rule::kToPosition);
    return ((min(__float_as_uint(__fmul_ru(y, factor)), kMost) << Rule::kShift) - place) >> 24;
  }
};
// Codes of eight pairs in bytes 1 and 3 of their words; the words u are the draws of both. low, high: of whose blocks the elements are.
// shift: 2^Rule::kShift, which takes a code from bit 7 - mantissa_bits to bit 8; place: Rule::kPlace; both in registers.
template <Coder kCoder>
__device__ __forceinline__ void encode_pairs(const uint32_t (&w)[8], const uint32_t (&u)[8], const CodeRule<kCoder>& low,
                                             const CodeRule<kCoder>& high, uint32_t shift, uint32_t place, uint32_t (&codes)[8]) {
  using Rule = CodeRule<kCoder>;
  constexpr uint32_t kMagnitudes = 0x7FFF7FFFu, kSigns = ~kMagnitudes, kNormal = 128u * 0x00010001u;
  const uint32_t least = low.least | high.least << 16;
  // The complement of a code and 255 - draw, so that all of it is one multiply-add; then ~, with the signs of w.
  const auto code = [&](uint32_t x, uint32_t above, uint32_t draw, uint32_t rest) {
    const uint32_t c = multiply_add(above, 0u - shift, __byte_perm(draw, rest, 0x5351));
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0x4E;" : "=r"(r) : "r"(c), "r"(x), "r"(kMagnitudes));
    return r;
  };
  const uint32_t after_least = place - (0x100u << Rule::kSpec.mantissa_bits);
  uint32_t seen = low.close || high.close ? 0x4000u : 0u;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t above = w[i] - least;
    seen |= above;
    codes[i] = code(w[i], above & kMagnitudes, u[i], after_least);
  }
  if ((seen & 0x40004000u) == 0) return;
  // From half the smallest normal number on, and not below 0.
  constexpr uint32_t kMost = static_cast<uint32_t>(Rule::kSpec.max_code()) << (7 - Rule::kSpec.mantissa_bits);
  const uint32_t base = __vsub2(kNormal, least);
  uint32_t left = 0;  // elements for fp32: of word i bits 15 - i and 31 - i
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t over = __vmins2(__viaddmax_s16x2(w[i] & kMagnitudes, base, 0u), kMost * 0x00010001u);
    left |= (((w[i] & kMagnitudes) + kMagnitudes) & ~(over + (kSigns - kNormal)) & kSigns) >> i;
    codes[i] = code(w[i], over, u[i], place);
  }
  left |= (low.exotic ? 0xFF00u : 0u) | (high.exotic ? 0xFF000000u : 0u);
  // One at a time, and in registers: what is run each time lies close together, and memory would be far.
#pragma unroll 1
  while (left != 0) {
    const int bit = 31 - __clz(static_cast<int>(left)), word = 15 - (bit & 15);
    left ^= 1u << bit;
    uint32_t x = w[0], draw = u[0];
#pragma unroll
    for (int i = 1; i < 8; ++i) x = word == i ? w[i] : x, draw = word == i ? u[i] : draw;
    const Rule& rule = bit < 16 ? low : high;
    const bool upper = bit >= 16;
    const uint32_t bits = upper ? x & 0xFFFF0000u : x << 16;
    const uint32_t found = rule.byte == 255 ? 0x7Fu
                                            : rule.position_code(__uint_as_float(bits), __byte_perm(draw, place, upper ? 0x5324 : 0x5104)) |
                                                  (bits >> 24 & 0x80u);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (word == i) codes[i] = __byte_perm(codes[i], found, upper ? 0x4210 : 0x3240);
    }
  }
}
// Of eight words of a row.
__device__ __forceinline__ void row_codes(const uint32_t (&codes)[8], uint32_t* out) {
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = __byte_perm(codes[2 * i], codes[2 * i + 1], 0x7531);
}
// Of eight rows of two columns.
__device__ __forceinline__ void column_codes(const uint32_t (&codes)[8], uint32_t* low, uint32_t* high) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t a = __byte_perm(codes[4 * i], codes[4 * i + 1], 0x7351), b = __byte_perm(codes[4 * i + 2], codes[4 * i + 3], 0x7351);
    low[i] = __byte_perm(a, b, 0x5410), high[i] = __byte_perm(a, b, 0x7632);
  }
}
// amax_of of two columns as load_columns leaves them.
__device__ __forceinline__ void amax_of_columns(const Block<bf16> (&t)[2], uint32_t& low, uint32_t& high) {
  uint32_t m[2] = {t[0].w[0], t[0].w[1]};
#pragma unroll
  for (int r = 2; r < 32; ++r) m[r & 1] = max_magnitudes(m[r & 1], t[r >> 4].w[r & 15]);
  const uint32_t w = max_magnitudes(m[0], m[1]) & 0x7FFF7FFFu;
  low = w << 16, high = w & 0xFFFF0000u;
}

}  // namespace halftone::device
