// Packing, the Hadamard rotation, the gradient estimator's slope, MX9 and MX6, ue5m3.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "halftone/formats/dge.h"
#include "halftone/formats/hadamard.h"
#include "halftone/formats/mx9.h"
#include "halftone/formats/packing.h"
#include "halftone/formats/scale_code.h"

namespace halftone {
namespace {

TEST(Packing, EveryCodeInEveryPlace) {
  for (int a = 0; a < 64; ++a) {
    for (int b = 0; b < 64; ++b) {
      const auto p = static_cast<uint8_t>(a), q = static_cast<uint8_t>(b);
      const uint32_t word = pack6(p, q, static_cast<uint8_t>(63 - a), static_cast<uint8_t>(b ^ 21));
      ASSERT_LT(word, 1u << 24);
      ASSERT_EQ(unpack6(word, 0), a);
      ASSERT_EQ(unpack6(word, 1), b);
      ASSERT_EQ(unpack6(word, 2), 63 - a);
      ASSERT_EQ(unpack6(word, 3), b ^ 21);
      if (a < 16 && b < 16) {
        ASSERT_EQ(pack4(p, q), a + 16 * b);  // even code in the low nibble
        ASSERT_EQ(unpack4(pack4(p, q), 0), a);
        ASSERT_EQ(unpack4(pack4(p, q), 1), b);
      }
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    const auto w = static_cast<uint8_t>(byte);
    ASSERT_EQ(pack2(unpack2(w, 0), unpack2(w, 1), unpack2(w, 2), unpack2(w, 3)), byte);
    ASSERT_EQ(pack4(unpack4(w, 0), unpack4(w, 1)), byte);
  }
  for (int q = -8; q < 8; ++q) EXPECT_EQ(sign_extend(static_cast<uint8_t>(q & 15), 4), q);
  for (int q = -1; q < 2; ++q) EXPECT_EQ(sign_extend(static_cast<uint8_t>(q & 3), 2), q);
}

template <int kWidth>
void expect_rotation(const RotationSigns& signs) {
  std::mt19937 rng(9);
  std::normal_distribution<float> normal;
  // Columns of H are orthonormal: H^T H = I.
  std::vector<std::vector<float>> h;
  for (int j = 0; j < kWidth; ++j) {
    float x[kWidth] = {};
    x[j] = 1;
    hadamard(x, signs);
    h.emplace_back(x, x + kWidth);
  }
  for (int i = 0; i < kWidth; ++i) {
    for (int j = 0; j < kWidth; ++j) {
      double dot = 0;
      for (int k = 0; k < kWidth; ++k)
        dot += static_cast<double>(h[static_cast<size_t>(i)][static_cast<size_t>(k)]) * h[static_cast<size_t>(j)][static_cast<size_t>(k)];
      EXPECT_NEAR(dot, i == j ? 1 : 0, 1e-6);
    }
  }
  // (H dY)^T (H X) = dY^T X within rounding, fp32 input.
  for (int trial = 0; trial < 200; ++trial) {
    float x[kWidth], dy[kWidth];
    double plain = 0, rotated = 0, size_x = 0, size_dy = 0;
    for (int i = 0; i < kWidth; ++i) x[i] = normal(rng), dy[i] = normal(rng), plain += static_cast<double>(x[i]) * dy[i];
    hadamard(x, signs), hadamard(dy, signs);
    for (int i = 0; i < kWidth; ++i) {
      rotated += static_cast<double>(x[i]) * dy[i];
      size_x += static_cast<double>(x[i]) * x[i], size_dy += static_cast<double>(dy[i]) * dy[i];
    }
    EXPECT_NEAR(rotated, plain, 1e-6 * std::sqrt(size_x * size_dy));
  }
}

TEST(Hadamard, IsOrthogonalAndKeepsProducts) {
  expect_rotation<16>(kFixedSigns16);
  expect_rotation<16>(0);
  expect_rotation<32>(0);
  expect_rotation<32>(0xB5297A4Du);
  expect_rotation<64>(RotationSigns({0xB5297A4Du, 0x68E31DA4u, 0, 0}));
  expect_rotation<128>(RotationSigns({0xB5297A4Du, 0x68E31DA4u, 0x1B56C4E9u, 0x9C4A30F7u}));
}

TEST(Dge, CheckValuesOfTheSpecification) {
  const std::pair<float, double> kValues[] = {{0, 0.2},        {0.1f, 0.30096}, {0.24f, 2.62653}, {0.25f, 3},   {0.7f, 0.72478},
                                              {3.3f, 0.41628}, {4.5f, 0.34822}, {6, 0.2},         {7, 0.11487}, {-2.2f, 0.30096}};
  for (const auto& [v, f] : kValues) EXPECT_NEAR(dge_factor(v), f, 6e-6) << v;
}

TEST(Dge, EqualsTheFormula) {
  constexpr double kGrid[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (int i = 0; i < 4096; ++i) {
    const float v = static_cast<float>(i - 2048) / 256;
    double b = 4, d = 2;
    for (int k = 0; k < 7; ++k) {
      if (std::fabs(v) <= kGrid[k + 1]) {
        b = kGrid[k], d = kGrid[k + 1] - b;
        break;
      }
    }
    const double m = b + d / 2, away = std::fabs(std::fabs(static_cast<double>(v)) - m);
    const double f = std::min(3.0, std::pow(d / 2, 0.8) * std::pow(away, -0.8) / 5);
    ASSERT_NEAR(dge_factor(v), f, 1e-6 * std::max(1.0, f)) << v;
  }
  // Beyond the last grid point, where the quotient has many digits, and at the extremes.
  for (const float v : {8.0f, 100.0f, 1e4f, 1e12f}) {
    const double f = std::pow(v - 5.0, -0.8) / 5;
    EXPECT_NEAR(dge_factor(v) / f, 1, 1e-6) << v;
  }
  EXPECT_EQ(dge_factor(2.5f), 3);
  EXPECT_LT(dge_factor(3e38f), 1e-20f);
  EXPECT_TRUE(std::isnan(dge_factor(NAN)));
}

TEST(Dge, MeanSlopeOverAnInterval) {
  double sum = 0;
  constexpr int kN = 100'000;
  for (int i = 0; i < kN; ++i) sum += dge_factor(4 + 2 * (i + 0.5f) / kN);
  EXPECT_NEAR(sum / kN, 0.593, 1e-3);
}

// Pair scales and codes by the definition in double.
std::vector<double> mx9_by_definition(int bits, const std::vector<float>& x) {
  double amax = 0;
  for (const float v : x) amax = std::max(amax, std::fabs(static_cast<double>(v)));
  const auto exponent = [](double v) { return v < 0x1p-126 ? -127 : std::ilogb(v); };
  const int emax = exponent(amax), top = (1 << (bits - 1)) - 1;
  std::vector<double> out;
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t mate = i ^ 1;
    const double other = mate < x.size() ? std::fabs(x[mate]) : 0.0;
    const bool prime = exponent(std::fabs(x[i])) <= emax - 1 && exponent(other) <= emax - 1;
    const double scale = std::ldexp(1.0, std::max(emax - (prime ? 1 : 0) - bits + 2, -126));
    out.push_back(std::clamp<double>(std::nearbyint(x[i] / scale), -top, top) * scale);
  }
  return out;
}

TEST(Mx9, PackedBlocksAreTheDefinition) {
  std::mt19937 rng(10);
  std::normal_distribution<float> normal;
  for (const int bits : {8, 5}) {
    for (int trial = 0; trial < 3000; ++trial) {
      std::vector<float> x(trial % 3 == 0 ? 1 + rng() % 16 : 16);
      const float size = std::exp2(static_cast<float>(static_cast<int>(rng() % 250) - 125));
      for (float& v : x) v = normal(rng) * (trial % 5 == 0 && rng() % 2 != 0 ? 0.01f : 1.0f) * size;
      if (trial % 7 == 0) x[rng() % x.size()] = 0;
      uint8_t block[18];
      std::fill_n(block, 18, 0xCC);
      mx9_encode(bits, x.data(), static_cast<int>(x.size()), block);
      for (int i = mx9_bytes(bits); i < 18; ++i) ASSERT_EQ(block[i], 0xCC);
      std::vector<float> back(x.size());
      mx9_decode(bits, block, static_cast<int>(x.size()), back.data());
      const auto expected = mx9_by_definition(bits, x);
      for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(static_cast<double>(back[i]), expected[i]) << bits << " " << trial << " " << i;
    }
  }
}

TEST(Mx9, BytesOfNamedBlocks) {
  // Emax = 2: scale 2^(2-8+2) = 1/16; the pair (0.5, 0.25) lies below and gets 1/32.
  const float x[16] = {5, -1, 0.5f, -0.25f};
  uint8_t nine[18], six[12];
  mx9_encode(8, x, 16, nine);
  EXPECT_EQ(nine[0], 129);
  EXPECT_EQ(nine[1], 0xFE);
  EXPECT_EQ(nine[2], 80);
  EXPECT_EQ(static_cast<int8_t>(nine[3]), -16);
  EXPECT_EQ(nine[4], 16);
  EXPECT_EQ(static_cast<int8_t>(nine[5]), -8);
  mx9_encode(5, x, 16, six);  // scales 1/2 and 1/4
  EXPECT_EQ(six[0], 129);
  EXPECT_EQ(six[1], 0xFE);
  EXPECT_EQ(six[2], 0b1010);        // signs of elements 1 and 3
  EXPECT_EQ(six[4], 10 | 14 << 4);  // 10, -2
  EXPECT_EQ(six[5], 2 | 15 << 4);   // 2, -1
  const float zero[16] = {}, bad[16] = {1, NAN}, infinite[16] = {-INFINITY};
  mx9_encode(8, zero, 16, nine);
  for (const uint8_t b : nine) EXPECT_EQ(b, 0);
  for (const float* p : {bad, infinite}) {
    mx9_encode(5, p, 16, six);
    EXPECT_EQ(six[0], 255);
    float back[16];
    mx9_decode(5, six, 16, back);
    for (const float v : back) EXPECT_TRUE(std::isnan(v));
  }
}

TEST(Ue5m3, RandomValuesGoToTheNearest) {
  std::mt19937 rng(11);
  for (int i = 0; i < 1'000'000; ++i) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(rng() % 0x48000000u));  // below 131072
    const uint8_t code = encode_ue5m3(x);
    if (x > kUe5m3Max) {
      ASSERT_EQ(code, kUe5m3Nan);
      continue;
    }
    const float v = decode_ue5m3(code);
    const float distance = std::fabs(x - v);
    if (code > 0) {
      ASSERT_LE(distance, std::fabs(x - decode_ue5m3(static_cast<uint8_t>(code - 1)))) << x;
    }
    if (code < 0xFE) {
      ASSERT_LE(distance, std::fabs(x - decode_ue5m3(static_cast<uint8_t>(code + 1)))) << x;
    }
  }
}

}  // namespace
}  // namespace halftone
