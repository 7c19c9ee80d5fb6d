#pragma once
#include <bit>
#include <cstdint>

namespace halftone {

// Meaning of the codes with the largest exponent field: inf and nan as in IEEE 754 | one nan code per sign | all finite.
enum class Specials { Ieee, NanOnly, None };

// Small float of 1 + exponent_bits + mantissa_bits bits: (-1)^s 2^(e-bias) (1 + m/2^mb), or 2^(1-bias) m/2^mb when e = 0 (OCP 8-bit
// floating point and microscaling specifications; halftone has the OCP forms only).
struct FloatSpec {
  int exponent_bits, mantissa_bits, bias;
  Specials specials;

  constexpr int bits() const { return 1 + exponent_bits + mantissa_bits; }
  constexpr int sign_mask() const { return 1 << (bits() - 1); }
  // Code of the largest finite value, sign clear.
  constexpr int max_code() const {
    const int all = sign_mask() - 1;
    if (specials == Specials::None) return all;
    return specials == Specials::NanOnly ? all - 1 : all - (1 << mantissa_bits);
  }
  // floor(log2(max_finite)): p2 of numerics.md section 2.
  constexpr int max_exponent() const { return (max_code() >> mantissa_bits) - bias; }
  constexpr double max_finite() const {
    return pow2(max_exponent()) * (1.0 + (max_code() & ((1 << mantissa_bits) - 1)) * pow2(-mantissa_bits));
  }
  constexpr double min_normal() const { return pow2(1 - bias); }
  constexpr double min_subnormal() const { return pow2(1 - bias - mantissa_bits); }

  static constexpr double pow2(int e) { return std::bit_cast<double>(static_cast<uint64_t>(e + 1023) << 52); }  // normal doubles
};

enum class Float { e4m3, e5m2, e3m2, e2m3, e2m1 };

// Single source of the format parameters.
constexpr FloatSpec spec(Float f) {
  switch (f) {
    case Float::e4m3:
      return {4, 3, 7, Specials::NanOnly};
    case Float::e5m2:
      return {5, 2, 15, Specials::Ieee};
    case Float::e3m2:
      return {3, 2, 3, Specials::None};
    case Float::e2m3:
      return {2, 3, 1, Specials::None};
    case Float::e2m1:
      return {2, 1, 1, Specials::None};
  }
  return {};
}

static_assert(spec(Float::e4m3).max_finite() == 448 && spec(Float::e4m3).max_code() == 0x7E && spec(Float::e4m3).max_exponent() == 8);
static_assert(spec(Float::e4m3).min_normal() == 0x1p-6 && spec(Float::e4m3).min_subnormal() == 0x1p-9);
static_assert(spec(Float::e5m2).max_finite() == 57344 && spec(Float::e5m2).max_code() == 0x7B && spec(Float::e5m2).max_exponent() == 15);
static_assert(spec(Float::e5m2).min_normal() == 0x1p-14 && spec(Float::e5m2).min_subnormal() == 0x1p-16);
static_assert(spec(Float::e3m2).max_finite() == 28 && spec(Float::e3m2).min_subnormal() == 0x1p-4 && spec(Float::e3m2).max_exponent() == 4);
static_assert(spec(Float::e2m3).max_finite() == 7.5 && spec(Float::e2m3).min_subnormal() == 0x1p-3 &&
              spec(Float::e2m3).max_exponent() == 2);
static_assert(spec(Float::e2m1).max_finite() == 6 && spec(Float::e2m1).min_subnormal() == 0.5 && spec(Float::e2m1).max_exponent() == 2);

constexpr const char* name(Float f) {
  switch (f) {
    case Float::e4m3:
      return "e4m3";
    case Float::e5m2:
      return "e5m2";
    case Float::e3m2:
      return "e3m2";
    case Float::e2m3:
      return "e2m3";
    case Float::e2m1:
      return "e2m1";
  }
  return "";
}

}  // namespace halftone
