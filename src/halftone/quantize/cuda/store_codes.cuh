#pragma once
#include <cuda_fp16.h>

#include "halftone/quantize/cuda/encode.cuh"
#include "halftone/quantize/cuda/rules.cuh"
#include "halftone/quantize/cuda/statistics.h"

namespace halftone::device {

// Parameters for the values of a block. bf16 form: the block scale as a bf16 pair (e2m1) or as fp32 (e4m3, e5m2). Fold forms: the bytes of
// magnitudes 0 to 3 and 4 to 7 (kPoisonedBytes if poisoned), and fold_below.
struct ValueWords {
  uint32_t first, second, below;
};
inline constexpr uint32_t kPoisonedBytes = 0x7F7F7F7Fu;

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

// Values of four codes in bytes times a scale; integers are exact as fp32.
template <Coder kCoder>
__device__ __forceinline__ uint2 byte_values(uint32_t codes, float scale) {
  if constexpr (kCoder != Coder::integer) {
    return fp8_values<float_of(kCoder)>(codes, scale);
  } else {
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // 2^23 + 128 + code
      v[i] = __uint_as_float(__byte_perm(codes ^ 0x80808080u, 0x4B000000u, 0x7440 + i)) - (0x1p23f + 128.0f);
    }
    return {bf16_words(v[0] * scale, v[1] * scale), bf16_words(v[2] * scale, v[3] * scale)};
  }
}

__device__ __forceinline__ uint32_t multiply_bf16(uint32_t a, uint32_t b) {
  const __nv_bfloat162 r = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&a), *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const uint32_t*>(&r);
}
__device__ __forceinline__ uint32_t multiply_f16(uint32_t a, uint32_t b) {
  const __half2 r = __hmul2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
  return *reinterpret_cast<const uint32_t*>(&r);
}

// Rounds an fp16 pair to two bytes.
template <Float kTarget>
__device__ __forceinline__ uint32_t round_f16_pair(uint32_t v) {
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
// The eight folded bytes of a block's magnitudes. The fp16 rounding error of the product of twice a magnitude and the factor is below half
// of the smallest byte.
template <Float kTarget>
__device__ __forceinline__ ValueWords fold_words(uint32_t block, uint32_t reference) {
  if (reference == 255) return {kPoisonedBytes, kPoisonedBytes, 0};
  const int shift = static_cast<int>(block) - static_cast<int>(reference) + fold_shift(kTarget);
  const uint32_t one = fold_factor(shift), factor = one | one << 16;
  const auto bytes = [&](uint32_t twice) { return round_f16_pair<kTarget>(multiply_f16(twice, factor)); };
  return {bytes(0x3C000000u) | bytes(0x42004000u) << 16, bytes(0x46004400u) | bytes(0x4A004800u) << 16, fold_below(kTarget, shift)};
}
template <Coder kCoder, Form kForm>
__device__ __forceinline__ ValueWords value_words(const CopyArgs& d, float scale, uint32_t byte, uint32_t reference) {
  const uint32_t bits = __float_as_uint(scale);
  if constexpr (kCoder != Coder::e2m1) return {bits, 0, 0};
  if constexpr (kForm == Form::bf16) return {__byte_perm(bits, bits, 0x3232), 0, 0};
  if (kForm == Form::any && d.form == ValueForm::bf16) return {__byte_perm(bits, bits, 0x3232), 0, 0};
  return d.form == ValueForm::fold_e4m3 ? fold_words<Float::e4m3>(byte, reference) : fold_words<Float::e5m2>(byte, reference);
}

// e2m1 magnitudes as 16-bit halves, or as bytes: even and odd ones separately.
template <Place8 kPlace>
__device__ __forceinline__ uint32_t e2m1_pair(const Codes8& q, int k) {
  if constexpr (kPlace == Place8::byte3) return __byte_perm(q.w[2 * k], q.w[2 * k + 1], 0x0703) & 0x00070007u;
  if constexpr (kPlace == Place8::byte0) return __byte_perm(q.w[2 * k], q.w[2 * k + 1], 0x5410);
  return q.w[k] & 0x00070007u;
}
template <Place8 kPlace>
__device__ __forceinline__ uint2 e2m1_bytes(const Codes8& q) {
  if constexpr (kPlace == Place8::pairs) {
    const uint32_t a = __byte_perm(q.w[0], q.w[1], 0x6240), b = __byte_perm(q.w[2], q.w[3], 0x6240);
    return {__byte_perm(a, b, 0x5410) & 0x07070707u, __byte_perm(a, b, 0x7632) & 0x07070707u};
  }
  constexpr int kByte = kPlace == Place8::byte3 ? 3 : 0;
  return {gather_bytes(q.w[0], q.w[2], q.w[4], q.w[6], kByte), gather_bytes(q.w[1], q.w[3], q.w[5], q.w[7], kByte)};
}

// A pair of e2m1 codes as bf16: the magnitude's bits below the exponent are exactly the value times 2^-126, subnormals included.
__device__ __forceinline__ uint32_t e2m1_values(uint32_t pair, uint32_t signs, uint32_t scale) {
  const uint32_t tiny = (signs & 0x80008000u) | (pair << 6);
  return multiply_bf16(multiply_bf16(tiny, 0x7E807E80u), scale);
}

// Bytes of a and b, chosen by the four low selectors, whose fourth bits are 0.
__device__ __forceinline__ uint32_t select_bytes(uint32_t a, uint32_t b, uint32_t selectors) {
  uint32_t r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selectors));
  return r;
}

// Counts the e2m1 magnitudes (eight, four bits each) that are not multiples of the smallest byte's value, `below` >= 1 binades below
// exactness.
inline __device__ __noinline__ int folded_losses(uint32_t packed, uint32_t below) {
  int n = 0;
  for (int i = 0; i < 8; ++i) {
    const uint32_t code = packed >> (4 * i) & 7u;
    const uint32_t twice = code < 4 ? code : (2 + (code & 1)) << ((code >> 1) - 1);
    n += (twice & ((1u << below) - 1)) != 0;
  }
  return n;
}

// Outputs of a copy and the addresses of the thread's vectors. The asm hides `flags` from the compiler; otherwise it would reload the
// parameters for every vector.
enum Output : uint32_t { kCodes = 1, kPacked = 2, kBf16 = 4, kFolded = 8, kLost = 16 };
constexpr uint32_t output_of(Form form) {
  return form == Form::codes ? kCodes : form == Form::packed ? kPacked : form == Form::bf16 ? kBf16 : kFolded;
}
template <Form kForm>
struct Outputs {
  uint32_t flags;
  uint32_t stride, packed_stride;
  uint8_t *codes, *packed, *values;

  // at: element of the first vector; step: elements to the next vector.
  __device__ __forceinline__ Outputs(const CopyArgs& d, int64_t at, uint32_t step) : stride(step), packed_stride(step / 2) {
    flags = (d.codes != nullptr ? kCodes : 0u) | (d.packed != nullptr ? kPacked : 0u) | (d.lost != nullptr ? kLost : 0u);
    flags |= d.form == ValueForm::bf16 ? kBf16 : d.form != ValueForm::none ? kFolded : 0u;
    asm volatile("" : "+r"(flags));
    codes = d.codes + at, packed = d.packed + at / 2;
    values = static_cast<uint8_t*>(d.values) + (has(kBf16) ? 2 * at : at);
  }
  __device__ __forceinline__ bool has(uint32_t outputs) const {
    if constexpr (kForm != Form::any) return (outputs & output_of(kForm)) != 0;
    return (flags & outputs) != 0;
  }
  // Addresses of vector i by one wide multiply-add; the integer units are the bottleneck.
  __device__ __forceinline__ uint8_t* codes_at(int i) const { return codes + uint64_t(stride) * static_cast<uint32_t>(i); }
  __device__ __forceinline__ uint8_t* packed_at(int i) const { return packed + uint64_t(packed_stride) * static_cast<uint32_t>(i); }
  __device__ __forceinline__ uint8_t* values_at(int i) const {
    return values + uint64_t(stride) * static_cast<uint32_t>(has(kBf16) ? 2 * i : i);
  }
};

// Writes the eight codes of vector i in all forms of the copy.
template <Coder kCoder, Place8 kPlace, class Out>
__device__ __forceinline__ void store_codes(const Out& out, int i, unsigned long long* lost, const Codes8& q, bool poison,
                                            const ValueWords& value) {
  if constexpr (kCoder == Coder::e2m1) {
    if (out.has(kCodes | kPacked | kFolded)) {
      const uint2 bytes = e2m1_bytes<kPlace>(q);
      const uint32_t packed = bytes.x | bytes.y << 4;
      const uint32_t signs_lo = __byte_perm(q.signs[0], q.signs[1], 0x7531), signs_hi = __byte_perm(q.signs[2], q.signs[3], 0x7531);
      if (out.has(kPacked)) {
        const uint32_t even = __byte_perm(signs_lo, signs_hi, 0x6420), odd = __byte_perm(signs_lo, signs_hi, 0x7531);
        const uint32_t v = packed | ((even >> 4) & 0x08080808u) | (odd & 0x80808080u);
        *reinterpret_cast<uint32_t*>(out.packed_at(i)) = poison ? 0u : v;
      }
      if (out.has(kFolded)) {
        // The magnitudes select bytes from the table.
        uint2 v{select_bytes(value.first, value.second, packed), select_bytes(value.first, value.second, packed >> 16)};
        v.x |= signs_lo & 0x80808080u, v.y |= signs_hi & 0x80808080u;
        const bool all = poison || value.first == kPoisonedBytes;
        if (all) v.x = v.y = kPoisonedBytes;
        *reinterpret_cast<uint2*>(out.values_at(i)) = v;
        if (out.has(kLost) && value.below != 0 && !all) {
          const int n = folded_losses(packed, value.below);
          if (n > 0) atomicAdd(lost, static_cast<unsigned long long>(n));
        }
      }
      if (out.has(kCodes)) {
        uint2 v{__byte_perm(bytes.x, bytes.y, 0x5140) | ((signs_lo >> 4) & 0x08080808u),
                __byte_perm(bytes.x, bytes.y, 0x7362) | ((signs_hi >> 4) & 0x08080808u)};
        if (poison) v.x = v.y = 0;
        *reinterpret_cast<uint2*>(out.codes_at(i)) = v;
      }
    }
    if (out.has(kBf16)) {
      uint32_t v[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) v[k] = poison ? 0x7FC07FC0u : e2m1_values(e2m1_pair<kPlace>(q, k), q.signs[k], value.first);
      *reinterpret_cast<uint4*>(out.values_at(i)) = {v[0], v[1], v[2], v[3]};
    }
  } else {
    constexpr uint32_t kPoison = kCoder == Coder::integer ? 0u : kPoisonedBytes;
    const uint32_t lo = poison ? kPoison : q.w[0], hi = poison ? kPoison : q.w[1];
    if (out.has(kCodes)) *reinterpret_cast<uint2*>(out.codes_at(i)) = {lo, hi};
    if constexpr (kCoder == Coder::integer) {
      if (out.has(kPacked)) {
        const uint32_t even = __byte_perm(lo, hi, 0x6420) & 0x0F0F0F0Fu, odd = __byte_perm(lo, hi, 0x7531);
        *reinterpret_cast<uint32_t*>(out.packed_at(i)) = even | ((odd << 4) & 0xF0F0F0F0u);
      }
    }
    if (out.has(kBf16)) {
      const float scale = __uint_as_float(value.first);
      const uint2 a = byte_values<kCoder>(lo, scale), b = byte_values<kCoder>(hi, scale);
      uint4 v{a.x, a.y, b.x, b.y};
      if (poison) v.x = v.y = v.z = v.w = 0x7FC07FC0u;
      *reinterpret_cast<uint4*>(out.values_at(i)) = v;
    }
  }
}

// Index of the maxima set of a matrix row, and its offset in group_amax.
__device__ __forceinline__ int set_of_row(const CopyArgs& d, int row) {
  return d.tile_groups == nullptr ? 0 : d.tile_groups[static_cast<unsigned>(row) / kTile];
}
__device__ __forceinline__ int first_of_set(const CopyArgs& d, int row) {
  return d.tile_groups == nullptr ? 0 : d.tile_groups[static_cast<unsigned>(row) / kTile] * d.set_words;
}
// amax of the tensor or of the group of rows from an earlier pass; every lane gets it.
template <bool kGroups = true>
__device__ __forceinline__ uint32_t read_tensor_amax(const CopyArgs& d, int row, int lane) {
  uint32_t a = 0;
  if (d.tensor_amax == nullptr) return a;
  const uint32_t* parts = d.tensor_amax + (kGroups ? set_of_row(d, row) : 0);
  const int count = d.tensor_parts;
#pragma unroll
  for (int i = 0; i < kStatisticsParts; i += 32) {
    if (i + lane < count) a = max(a, parts[i + lane]);
  }
  return __reduce_max_sync(0xFFFFFFFFu, a);
}

// Stores kCount scale bytes of vector r from element c on, the first one lowest in `bytes`.
template <int kBlock, int kCount>
__device__ __forceinline__ void store_scales(const CopyArgs& d, int r, int c, uint32_t bytes) {
  auto* scales = static_cast<uint8_t*>(d.scales);
  if (scales == nullptr || r >= d.R || (d.tile && r % kBlock != 0)) return;
  const int first = c / kBlock;
  uint8_t* out = scales + int64_t{d.tile ? r / kBlock : r} * d.blocks + first;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (first + i < d.blocks) out[i] = static_cast<uint8_t>(bytes >> 8 * i);
  }
}

}  // namespace halftone::device
