#pragma once
#include <cstdint>

#include "halftone/formats/stochastic.h"

namespace halftone {

// Integer element formats (numerics.md section 2); a quantiser produces codes from `lowest` to `highest`.
enum class Int { int8, int4, uint4, ternary };

struct IntSpec {
  int bits, lowest, highest;
  bool zero_point;  // value = zero + q * scale
};

constexpr IntSpec spec(Int f) {
  switch (f) {
    case Int::int8:
      return {8, -127, 127, false};
    case Int::int4:
      return {4, -8, 7, false};
    case Int::uint4:
      return {4, 0, 15, true};
    case Int::ternary:
      return {2, -1, 1, false};
  }
  return {};
}

namespace detail {
constexpr double floor_small(double y) {  // |y| < 2^62
  const auto k = static_cast<int64_t>(y);
  return static_cast<double>(k) > y ? static_cast<double>(k - 1) : static_cast<double>(k);
}
constexpr int clip(IntSpec s, double k) { return k < s.lowest ? s.lowest : k > s.highest ? s.highest : static_cast<int>(k); }
}  // namespace detail

// clip(rint(y)), ties to even; NaN gives 0 (the scale of its group is poisoned, numerics.md 2.2).
constexpr int encode(IntSpec s, float y) {
  if (y != y) return 0;
  if (y <= -1024.0f || y >= 1024.0f) return y < 0 ? s.lowest : s.highest;
  const double v = y, k = detail::floor_small(v), r = v - k;
  const bool up = r > 0.5 || (r == 0.5 && (static_cast<int64_t>(k) & 1) != 0);
  return detail::clip(s, k + (up ? 1 : 0));
}

constexpr int encode(Int f, float y) { return encode(spec(f), y); }

// Stochastic: floor towards minus infinity plus one draw of L = 16 bits; the fractional part is exact (numerics.md section 4).
constexpr int encode_sr(IntSpec s, float y, uint16_t u16) {
  if (y != y) return 0;
  if (y <= -1024.0f || y >= 1024.0f) return y < 0 ? s.lowest : s.highest;
  const double v = y, k = detail::floor_small(v);
  return detail::clip(s, k + (sr_up16(v - k, u16) ? 1 : 0));
}

constexpr int encode_sr(Int f, float y, uint16_t u16) { return encode_sr(spec(f), y, u16); }

// Stochastic rounding with L = 32 bits (weight write-back).
constexpr int encode_sr32(Int f, float y, uint32_t u32) {
  const IntSpec s = spec(f);
  if (y != y) return 0;
  if (y <= -1024.0f || y >= 1024.0f) return y < 0 ? s.lowest : s.highest;
  const double v = y, k = detail::floor_small(v);
  return detail::clip(s, k + (sr_up32(v - k, u32) ? 1 : 0));
}

static_assert(encode(Int::int8, 0.5f) == 0 && encode(Int::int8, 1.5f) == 2 && encode(Int::int8, -200.f) == -127 &&
              encode(Int::int4, -9.f) == -8);

}  // namespace halftone
