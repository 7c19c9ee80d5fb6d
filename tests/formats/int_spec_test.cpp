#include "halftone/formats/int_spec.h"

#include <gtest/gtest.h>

#include <cmath>

#include "halftone/base/dtype.h"

namespace halftone {
namespace {

TEST(IntCode, RoundsTiesToEvenAndClips) {
  for (const Int f : {Int::int8, Int::int4, Int::uint4, Int::ternary}) {
    for (float y = -140; y <= 140; y += 0.125f) {
      const int expected = std::clamp(static_cast<int>(std::nearbyint(y)), spec(f).lowest, spec(f).highest);
      ASSERT_EQ(encode(f, y), expected) << y;
    }
    EXPECT_EQ(encode(f, 1e30f), spec(f).highest);
    EXPECT_EQ(encode(f, -1e30f), spec(f).lowest);
    EXPECT_EQ(encode(f, NAN), 0);
  }
}

TEST(IntCode, StochasticMeanIsTheValue) {
  for (const float y : {0.25f, -0.25f, 3.7f, -3.7f, 6.999f, -1e-4f}) {
    double sum = 0;
    for (int u = 0; u < 65536; ++u) sum += encode_sr(Int::int8, y, static_cast<uint16_t>(u));
    EXPECT_NEAR(sum / 65536, y, 0x1p-16) << y;
  }
  EXPECT_EQ(encode_sr(Int::int8, 5.0f, 0), 5);
  EXPECT_EQ(encode_sr(Int::int8, -5.0f, 0), -5);
  EXPECT_EQ(encode_sr(Int::int8, -127.00001f, 0xFFFF), -127);
}

TEST(IntCode, StochasticDecisionIsExactForTinyNegatives) {
  // f = 1 - 2^-30 is not representable in fp32; the largest draw still rounds up, because 65535.5 < f * 65536.
  EXPECT_EQ(encode_sr(Int::int8, -0x1p-30f, 0xFFFF), 0);
  // f = 0.5 + 2^-17 + 2^-25 exceeds the threshold of u = 32768 by less than half an fp32 ulp of f.
  const float y = -(0.5f - 0x1p-17f) + 0x1p-25f;
  EXPECT_EQ(encode_sr(Int::int8, y, 32768), 0);
}

TEST(IntCode, ThirtyTwoBitDraws) {
  EXPECT_TRUE(sr_up32(0.5, 0x7FFFFFFFu));
  EXPECT_FALSE(sr_up32(0.5, 0x80000000u));
  EXPECT_EQ(encode_sr32(Int::int4, 6.5f, 0x7FFFFFFFu), 7);
  EXPECT_EQ(encode_sr32(Int::int4, 6.5f, 0x80000000u), 6);
}

TEST(Bf16Stochastic, NeighboursOnly) {
  const float x = std::bit_cast<float>(0x3F804000u);  // a quarter of the way
  int up = 0;
  for (int u = 0; u < 65536; ++u) {
    const uint16_t bits = bf16_bits_sr(x, static_cast<uint16_t>(u));
    ASSERT_TRUE(bits == 0x3F80 || bits == 0x3F81);
    up += bits == 0x3F81;
  }
  EXPECT_EQ(up, 16384);
  EXPECT_EQ(bf16_bits_sr(INFINITY, 0), 0x7F80);
  EXPECT_TRUE(std::isnan(static_cast<float>(std::bit_cast<bf16>(bf16_bits_sr(std::bit_cast<float>(0x7F800001u), 0)))));
}

}  // namespace
}  // namespace halftone
