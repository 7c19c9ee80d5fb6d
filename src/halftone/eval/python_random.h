#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

namespace halftone::python {

// random.Random(seed) of CPython: the Mersenne Twister of Matsumoto and Nishimura (1998), MT19937, seeded by its init_by_array with the
// 32-bit digits of the seed, and the draws that `random`, `choices` and `sample` make of it.
class Random {
 public:
  explicit Random(uint64_t seed) {
    const std::array<uint32_t, 2> key = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
    const size_t digits = key[1] != 0 ? 2 : 1;
    state_[0] = 19650218;
    for (uint32_t i = 1; i < kSize; ++i) state_[i] = 1812433253U * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
    size_t i = 1, j = 0;
    const auto next = [&] {
      if (++i == kSize) state_[0] = state_[kSize - 1], i = 1;
    };
    for (size_t k = kSize; k > 0; --k) {
      state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1664525U)) + key[j] + static_cast<uint32_t>(j);
      next(), j = (j + 1) % digits;
    }
    for (size_t k = kSize - 1; k > 0; --k) {
      state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1566083941U)) - static_cast<uint32_t>(i);
      next();
    }
    state_[0] = 0x80000000U;
  }

  uint32_t bits32() {
    if (at_ == kSize) twist();
    uint32_t y = state_[at_++];
    y ^= y >> 11, y ^= (y << 7) & 0x9d2c5680U, y ^= (y << 15) & 0xefc60000U;
    return y ^ (y >> 18);
  }
  // [0, 1) with 53 bits.
  double random() {
    const uint32_t a = bits32() >> 5, b = bits32() >> 6;
    return (a * 67108864.0 + b) * (1.0 / 9007199254740992.0);
  }
  // [0, n), n below 2^32.
  uint64_t below(uint64_t n) {
    const int bits = std::bit_width(n);
    uint64_t r = n;
    while (r >= n) r = bits32() >> (32 - bits);
    return r;
  }
  // The places of sample(range(n), k).
  std::vector<size_t> sample(size_t n, size_t k) {
    std::vector<size_t> result(k);
    double set_size = 21;
    if (k > 5) set_size += std::pow(4, std::ceil(std::log(static_cast<double>(k) * 3) / std::log(4)));
    if (static_cast<double>(n) <= set_size) {
      std::vector<size_t> pool(n);
      for (size_t i = 0; i < n; ++i) pool[i] = i;
      for (size_t i = 0; i < k; ++i) {
        const size_t j = below(n - i);
        result[i] = pool[j], pool[j] = pool[n - i - 1];
      }
      return result;
    }
    std::set<size_t> taken;
    for (size_t& place : result) {
      do place = below(n);
      while (!taken.insert(place).second);
    }
    return result;
  }

 private:
  static constexpr size_t kSize = 624, kMiddle = 397;
  void twist() {
    for (size_t k = 0; k < kSize; ++k) {
      const uint32_t y = (state_[k] & 0x80000000U) | (state_[(k + 1) % kSize] & 0x7fffffffU);
      state_[k] = state_[(k + kMiddle) % kSize] ^ (y >> 1) ^ ((y & 1) != 0 ? 0x9908b0dfU : 0U);
    }
    at_ = 0;
  }
  std::array<uint32_t, kSize> state_{};
  size_t at_ = kSize;
};

}  // namespace halftone::python
