#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace halftone {

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): maps counter and key to 128 random bits.
// Stateless, so a draw depends only on its purpose (numerics.md section 4).
struct PhiloxKey {
  uint32_t lo, hi;
};

constexpr std::array<uint32_t, 4> philox(std::array<uint32_t, 4> c, PhiloxKey k) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c[0], b = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ k.lo, static_cast<uint32_t>(b), static_cast<uint32_t>(a >> 32) ^ c[3] ^ k.hi,
         static_cast<uint32_t>(a)};
    k.lo += 0x9E3779B9u;
    k.hi += 0xBB67AE85u;
  }
  return c;
}

constexpr uint64_t fnv1a64(std::string_view text) {
  uint64_t h = 0xCBF29CE484222325u;
  for (const char ch : text) h = (h ^ static_cast<uint8_t>(ch)) * 0x100000001B3u;
  return h;
}

// Key of a stream: the run's seed and the purpose of the numbers, e.g. "layers.0.feed_forward.w1.weight#init".
constexpr PhiloxKey philox_key(uint64_t seed, std::string_view purpose) {
  const uint64_t key = seed ^ fnv1a64(purpose);
  return {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
}

// 128 bits for group `g` of a stream at (step, micro).
constexpr std::array<uint32_t, 4> philox(PhiloxKey key, uint64_t g, uint32_t step = 0, uint32_t micro = 0) {
  return philox({static_cast<uint32_t>(g), static_cast<uint32_t>(g >> 32), step, micro}, key);
}

// Conformance vectors of numerics.md section 4.
static_assert(philox({0, 0, 0, 0}, PhiloxKey{0, 0}) == std::array<uint32_t, 4>{0x6627E8D5u, 0xE169C58Du, 0xBC57AC4Cu, 0x9B00DBD8u});
static_assert(fnv1a64("model.layers.0.mlp.w1.weight#dy.dgrad") == 0xB935783B11CCBA5Fu);
static_assert(philox(philox_key(1234, "model.layers.0.mlp.w1.weight#dy.dgrad"), 0, 7) ==
              std::array<uint32_t, 4>{0xF9EB7A67u, 0x2CE749A3u, 0x59945A89u, 0x03E2F912u});

// [0, 1) with 24 bits, exact in fp32.
constexpr float unit_float(uint32_t u) { return static_cast<float>(u >> 8) * 0x1p-24f; }

}  // namespace halftone
