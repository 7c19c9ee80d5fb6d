#pragma once
#include <array>
#include <bit>
#include <cstdint>

namespace halftone {

// Hadamard transform of n = 16, 32, 64 or 128 consecutive elements along the contraction (numerics.md section 5):
//   (H x)_i = n^(-1/2) * sum_j (-1)^popcount(i AND j) * sigma_j * x_j

// sigma in words: bit j % 32 of word j / 32 set -> sigma_j = -1. Keyed signs are the words of Philox group 0 of the role `rht` or
// `rht.dgrad`; bits beyond the width are not used.
struct RotationSigns {
  uint32_t word[4] = {};

  constexpr RotationSigns() = default;
  constexpr RotationSigns(uint32_t first) : word{first} {}
  constexpr explicit RotationSigns(const std::array<uint32_t, 4>& w) : word{w[0], w[1], w[2], w[3]} {}
  constexpr uint32_t negative(int j) const { return (word[j / 32] >> j % 32) & 1u; }
  bool operator==(const RotationSigns&) const = default;
};
inline constexpr RotationSigns kFixedSigns16 = 0xD7E8u;  // + + + - + - - - - - - + - + - - (torchao)

constexpr float hadamard_norm(int n) {  // n^(-1/2)
  return n == 128  ? std::bit_cast<float>(0x3DB504F3u)
         : n == 64 ? 0.125f
         : n == 32 ? std::bit_cast<float>(0x3E3504F3u)
         : n == 16 ? 0.25f
                   : 0.0f;
}

// Calls f<n>() for a width n.
template <class F>
constexpr void with_width(int n, F&& f) {
  if (n == 16) f.template operator()<16>();
  if (n == 32) f.template operator()<32>();
  if (n == 64) f.template operator()<64>();
  if (n == 128) f.template operator()<128>();
}

// In place, in fp32: signs, butterflies with strides 1, 2, 4, ..., then the norm. The caller rounds to the type of x.
template <int kWidth>
constexpr void hadamard(float (&x)[kWidth], const RotationSigns& signs) {
  for (int j = 0; j < kWidth; ++j) x[j] = std::bit_cast<float>(std::bit_cast<uint32_t>(x[j]) ^ signs.negative(j) << 31);
  for (int stride = 1; stride < kWidth; stride *= 2) {
    for (int j = 0; j < kWidth; ++j) {
      if ((j & stride) != 0) continue;
      const float a = x[j], b = x[j + stride];
      x[j] = a + b;
      x[j + stride] = a - b;
    }
  }
  for (int j = 0; j < kWidth; ++j) x[j] *= hadamard_norm(kWidth);
}

namespace detail {
// Column j of H: n^(-1/2) * (-1)^popcount(i AND j) * sigma_j.
template <int kWidth>
constexpr bool is_sylvester(const RotationSigns& signs) {
  for (int j = 0; j < kWidth; ++j) {
    float x[kWidth] = {};
    x[j] = 1;
    hadamard(x, signs);
    for (int i = 0; i < kWidth; ++i) {
      const bool negative = (std::popcount(static_cast<uint32_t>(i & j)) + static_cast<int>(signs.negative(j))) % 2 != 0;
      if (x[i] != (negative ? -hadamard_norm(kWidth) : hadamard_norm(kWidth))) return false;
    }
  }
  return true;
}
constexpr RotationSigns fixed_signs() {
  constexpr int kSigma[16] = {1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1};
  uint32_t signs = 0;
  for (int j = 0; j < 16; ++j) signs |= kSigma[j] < 0 ? 1u << j : 0u;
  return signs;
}
}  // namespace detail
static_assert(detail::is_sylvester<16>(kFixedSigns16) && detail::is_sylvester<32>(0x5EED1234u) &&
              detail::is_sylvester<64>(RotationSigns({0x5EED1234u, 0xA0B1C2D3u, 0, 0})));
static_assert(detail::fixed_signs() == kFixedSigns16);

}  // namespace halftone
