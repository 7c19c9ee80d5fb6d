#pragma once
#include <cstdint>

namespace halftone {

// Packing of sub-byte codes, little-endian everywhere (numerics.md 2.3). Input is one code per byte; bits above the width are dropped.
constexpr uint8_t pack4(uint8_t even, uint8_t odd) { return static_cast<uint8_t>((even & 15) | (odd << 4)); }
constexpr uint8_t unpack4(uint8_t byte, int i) { return static_cast<uint8_t>(byte >> (4 * (i & 1)) & 15); }

// 4 codes in 3 bytes: code i in bits [6i, 6i + 6) of a 24-bit word.
constexpr uint32_t pack6(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
  return (a & 63u) | (b & 63u) << 6 | (c & 63u) << 12 | (d & 63u) << 18;
}
constexpr uint8_t unpack6(uint32_t word, int i) { return static_cast<uint8_t>(word >> (6 * (i & 3)) & 63); }

// 4 ternary codes in a byte: code i in bits [2i, 2i + 2).
constexpr uint8_t pack2(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
  return static_cast<uint8_t>((a & 3) | (b & 3) << 2 | (c & 3) << 4 | (d & 3) << 6);
}
constexpr uint8_t unpack2(uint8_t byte, int i) { return static_cast<uint8_t>(byte >> (2 * (i & 3)) & 3); }

// Sign-extends a two's complement code of `bits` bits.
constexpr int sign_extend(uint8_t code, int bits) {
  const int half = 1 << (bits - 1), value = code & (2 * half - 1);
  return value < half ? value : value - 2 * half;
}

static_assert(pack4(0x3, 0xA) == 0xA3 && unpack4(0xA3, 1) == 0xA && sign_extend(0xF, 4) == -1 && sign_extend(8, 4) == -8);
static_assert(pack6(1, 2, 3, 63) == (1u | 2u << 6 | 3u << 12 | 63u << 18) && pack2(1, 3, 0, 1) == 0x4D && sign_extend(3, 2) == -1);

}  // namespace halftone
