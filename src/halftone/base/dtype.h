#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>

namespace halftone {

// Element types that cross the boundary between torch-free kernels and torch.
enum class DType { f32, bf16, s8, u8, s32, s64 };

constexpr size_t size_of(DType t) {
  switch (t) {
    case DType::f32: case DType::s32: return 4;
    case DType::bf16: return 2;
    case DType::s64: return 8;
    default: return 1;
  }
}

// bfloat16 storage: the upper half of an fp32. Conversion from fp32 rounds to nearest, ties to even; NaN stays NaN.
struct bf16 {
  uint16_t bits = 0;
  bf16() = default;
  explicit bf16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    bits = (u & 0x7FFFFFFFu) > 0x7F800000u ? static_cast<uint16_t>((u >> 16) | 0x40)
                                           : static_cast<uint16_t>((u + 0x7FFF + ((u >> 16) & 1)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};
static_assert(sizeof(bf16) == 2);

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return static_cast<float>(x); }

}  // namespace halftone
