#pragma once
#include <bit>
#include <cstdint>

namespace halftone {

// Randomised Hadamard transform of n = 16 or 32 consecutive tokens (numerics.md section 5):
//   (H x)_i = n^(-1/2) * sum_j (-1)^popcount(i AND j) * sigma_j * x_j
// Signs are packed in a word: bit j set -> sigma_j = -1. Keyed signs are word 0 of Philox group 0 of the role `rht`.
inline constexpr uint32_t kFixedSigns16 = 0xD7E8;  // + + + - + - - - - - - + - + - - (torchao)

constexpr float hadamard_norm(int n) { return n == 32 ? std::bit_cast<float>(0x3E3504F3u) : n == 16 ? 0.25f : 0.0f; }  // n^(-1/2)

// In place, in fp32: signs, butterflies with strides 1, 2, 4, ..., then the norm. The caller rounds to the type of x.
template <int kWidth>
constexpr void hadamard(float (&x)[kWidth], uint32_t signs) {
  for (int j = 0; j < kWidth; ++j) x[j] = std::bit_cast<float>(std::bit_cast<uint32_t>(x[j]) ^ (((signs >> j) & 1u) << 31));
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
constexpr bool is_sylvester(uint32_t signs) {
  for (int j = 0; j < kWidth; ++j) {
    float x[kWidth] = {};
    x[j] = 1;
    hadamard(x, signs);
    for (int i = 0; i < kWidth; ++i) {
      const bool negative = (std::popcount(static_cast<uint32_t>(i & j)) + static_cast<int>((signs >> j) & 1u)) % 2 != 0;
      if (x[i] != (negative ? -hadamard_norm(kWidth) : hadamard_norm(kWidth))) return false;
    }
  }
  return true;
}
constexpr uint32_t fixed_signs() {
  constexpr int kSigma[16] = {1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1};
  uint32_t signs = 0;
  for (int j = 0; j < 16; ++j) signs |= kSigma[j] < 0 ? 1u << j : 0u;
  return signs;
}
}  // namespace detail
static_assert(detail::is_sylvester<16>(kFixedSigns16) && detail::is_sylvester<32>(0x5EED1234u));
static_assert(detail::fixed_signs() == kFixedSigns16);

}  // namespace halftone
