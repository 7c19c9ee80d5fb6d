#include "halftone/checkpoint/gguf_blocks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "halftone/formats/float_code.h"
#include "halftone/formats/packing.h"
#include "halftone/formats/scale_code.h"

namespace halftone {
namespace {

constexpr int64_t kBlock = 32;
constexpr uint16_t kFp16Infinity = 0x7C00;

bool is_finite_fp16(uint16_t bits) { return (bits & kFp16Infinity) != kFp16Infinity; }

struct IntBlock {
  float scale = 0;
  std::array<uint8_t, kBlock> codes{};
};

// 0 where it would overflow: fp16 rounds such scales to 0.
float inverse_of(float scale) { return std::isnormal(scale) ? 1 / scale : 0; }

// scale = amax / 127; halves away from zero.
IntBlock q8_0_block(const float* x) {
  IntBlock b;
  float amax = 0;
  for (int64_t i = 0; i < kBlock; ++i) amax = std::fabs(x[i]) > amax ? std::fabs(x[i]) : amax;
  b.scale = amax / 127;
  const float inverse = inverse_of(b.scale);
  for (size_t i = 0; i < kBlock; ++i) {
    const float v = x[i] * inverse, magnitude = std::fabs(v);
    const int whole = static_cast<int>(magnitude), rounded = whole + (magnitude - static_cast<float>(whole) >= 0.5f ? 1 : 0);
    b.codes[i] = static_cast<uint8_t>(v < 0 ? -rounded : rounded);
  }
  return b;
}

// The number with the largest magnitude, the first of several, gets the code -8.
IntBlock q4_0_block(const float* x) {
  IntBlock b;
  const float* largest = std::max_element(x, x + kBlock, [](float a, float c) { return std::fabs(a) < std::fabs(c); });
  b.scale = *largest / -8;
  const float inverse = inverse_of(b.scale);
  for (size_t i = 0; i < kBlock; ++i) b.codes[i] = static_cast<uint8_t>(std::min(static_cast<int>(x[i] * inverse + 8.5f), 15) - 8);
  return b;
}

// N codes in N / 2 bytes.
template <int64_t N>
void pack_nibbles(const uint8_t* codes, uint8_t flip, uint8_t* out) {
  for (int64_t i = 0; i < N / 2; ++i) out[i] = pack4(codes[i] ^ flip, codes[i + N / 2] ^ flip);
}

template <class T>
void store(const T& value, uint8_t*& out) {
  std::memcpy(out, &value, sizeof(T));
  out += sizeof(T);
}

template <class T>
T load(const uint8_t*& from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  from += sizeof(T);
  return value;
}

template <int64_t N>
void unpack_nibbles(const uint8_t* from, const std::array<float, 16>& values, float scale, float* out) {
  for (int64_t i = 0; i < N / 2; ++i) {
    out[i] = values[unpack4(from[i], 0)] * scale;
    out[i + N / 2] = values[unpack4(from[i], 1)] * scale;
  }
}

template <class F>
std::array<float, 16> table(F&& value) {
  std::array<float, 16> t{};
  for (size_t i = 0; i < 16; ++i) t[i] = value(static_cast<uint8_t>(i));
  return t;
}

}  // namespace

uint16_t fp16_bits(float x) { return std::bit_cast<uint16_t>(static_cast<_Float16>(x)); }
float fp16_value(uint16_t bits) { return static_cast<float>(std::bit_cast<_Float16>(bits)); }

int64_t gguf_scale_block(GgufType type) { return type == GgufType::nvfp4 ? 16 : row_of(type).block; }

void gguf_pack(GgufType type, const uint8_t* codes, const uint16_t* scales, int64_t count, uint8_t* out) {
  constexpr uint8_t kHalfRange = 8;  // q4_0's code of 0; -8 to 7 in two's complement become 0 to 15 by this bit alone
  for (int64_t at = 0; at < count; at += row_of(type).block) {
    const int64_t scale_block = gguf_scale_block(type), n = row_of(type).block / scale_block;
    for (int64_t i = 0; i < n; ++i, ++scales) {
      if (type == GgufType::q8_0 || type == GgufType::q4_0) {
        store(*scales, out);
      } else {
        store(static_cast<uint8_t>(*scales), out);
      }
    }
    for (int64_t i = 0; i < n; ++i, codes += scale_block) {
      if (type == GgufType::q8_0) {
        out = std::copy_n(codes, scale_block, out);
      } else {
        scale_block == kBlock ? pack_nibbles<kBlock>(codes, type == GgufType::q4_0 ? kHalfRange : 0, out)
                              : pack_nibbles<kBlock / 2>(codes, 0, out);
        out += scale_block / 2;
      }
    }
  }
}

bool gguf_quantize(GgufType type, const float* x, int64_t count, uint8_t* out) {
  bool fits = true;
  for (int64_t i = 0; i < count; i += kBlock, out += row_of(type).bytes) {
    const IntBlock b = type == GgufType::q8_0 ? q8_0_block(x + i) : q4_0_block(x + i);
    const uint16_t scale = fp16_bits(b.scale);
    fits = fits && is_finite_fp16(scale);
    gguf_pack(type, b.codes.data(), &scale, kBlock, out);
  }
  return fits;
}

void gguf_decode(GgufType type, const uint8_t* bytes, int64_t count, float* out) {
  static const std::array<float, 16> e2m1 = table([](uint8_t c) { return decode(Float::e2m1, c); });
  static const std::array<float, 16> int4 = table([](uint8_t c) { return static_cast<float>(c) - 8; });
  const int64_t block = row_of(type).block, scale_block = gguf_scale_block(type);
  const bool integers = type == GgufType::q8_0 || type == GgufType::q4_0;
  for (const float* end = out + count; out < end;) {
    const uint8_t* scales = bytes;
    bytes += row_of(type).bytes - (type == GgufType::q8_0 ? block : block / 2);
    for (int64_t i = 0; i < block; i += scale_block, out += scale_block) {
      const float scale = integers                  ? fp16_value(load<uint16_t>(scales))
                          : type == GgufType::mxfp4 ? decode_e8m0(load<uint8_t>(scales))
                                                    : decode(Float::e4m3, load<uint8_t>(scales));
      if (type == GgufType::q8_0) {
        for (int64_t k = 0; k < kBlock; ++k) out[k] = static_cast<float>(static_cast<int8_t>(bytes[k])) * scale;
        bytes += kBlock;
      } else {
        scale_block == kBlock ? unpack_nibbles<kBlock>(bytes, integers ? int4 : e2m1, scale, out)
                              : unpack_nibbles<kBlock / 2>(bytes, e2m1, scale, out);
        bytes += scale_block / 2;
      }
    }
  }
}

}  // namespace halftone
