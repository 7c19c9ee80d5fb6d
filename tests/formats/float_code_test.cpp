#include "halftone/formats/float_code.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "halftone/formats/scale_code.h"

namespace halftone {
namespace {

constexpr Float kAll[] = {Float::e4m3, Float::e5m2, Float::e3m2, Float::e2m3, Float::e2m1};

// Finite non-negative values in code order.
std::vector<float> grid(Float f) {
  std::vector<float> v;
  for (int code = 0; code <= spec(f).max_code(); ++code) v.push_back(decode(f, static_cast<uint8_t>(code)));
  return v;
}

TEST(FloatCode, ValuesOfNamedCodes) {
  EXPECT_EQ(decode(Float::e4m3, 0x7E), 448);
  EXPECT_EQ(decode(Float::e4m3, 0x08), 0x1p-6f);
  EXPECT_EQ(decode(Float::e4m3, 0x01), 0x1p-9f);
  EXPECT_TRUE(std::isnan(decode(Float::e4m3, 0x7F)));
  EXPECT_TRUE(std::isnan(decode(Float::e4m3, 0xFF)));
  EXPECT_EQ(decode(Float::e5m2, 0x7C), INFINITY);
  EXPECT_EQ(decode(Float::e5m2, 0xFC), -INFINITY);
  EXPECT_TRUE(std::isnan(decode(Float::e5m2, 0x7D)));
  EXPECT_EQ(grid(Float::e2m1), (std::vector<float>{0, .5f, 1, 1.5f, 2, 3, 4, 6}));
}

TEST(FloatCode, EveryFiniteCodeSurvives) {
  for (const Float f : kAll) {
    for (int code = 0; code < (1 << spec(f).bits()); ++code) {
      const float v = decode(f, static_cast<uint8_t>(code));
      if (!std::isfinite(v)) continue;
      EXPECT_EQ(encode(f, v), code) << name(f);
      for (const uint16_t u : {uint16_t{0}, uint16_t{0xFFFF}}) EXPECT_EQ(encode_sr(f, v, u), code) << name(f) << " on the grid never moves";
    }
  }
}

TEST(FloatCode, MidpointsGoToEvenCodesAndTheirNeighboursToTheNearest) {
  for (const Float f : kAll) {
    const auto v = grid(f);
    for (size_t i = 0; i + 1 < v.size(); ++i) {
      const float mid = (v[i] + v[i + 1]) / 2;  // exact
      const auto even = static_cast<uint8_t>(i % 2 == 0 ? i : i + 1);
      EXPECT_EQ(encode(f, mid), even) << name(f) << " " << mid;
      EXPECT_EQ(encode(f, -mid), even | spec(f).sign_mask()) << name(f) << " " << -mid;
      EXPECT_EQ(encode(f, std::nextafter(mid, 0.0f)), i) << name(f);
      EXPECT_EQ(encode(f, std::nextafter(mid, 1e30f)), i + 1) << name(f);
    }
  }
}

TEST(FloatCode, SaturatesKeepsSignsAndPoisons) {
  for (const Float f : kAll) {
    const int top = spec(f).max_code(), sign = spec(f).sign_mask();
    for (const float big : {1.25f, 2.0f, 1e3f, 1e30f}) {
      const float y = static_cast<float>(spec(f).max_finite()) * big;
      EXPECT_EQ(encode(f, y), top);
      EXPECT_EQ(encode(f, -y), top | sign);
      EXPECT_EQ(encode_sr(f, y, 0), top);
    }
    EXPECT_EQ(encode(f, -0.0f), sign);
    EXPECT_EQ(encode(f, -1e-30f), sign);
    for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) EXPECT_EQ(encode(f, bad), poison_code(f));
  }
  EXPECT_EQ(poison_code(Float::e4m3), 0x7F);
  EXPECT_EQ(poison_code(Float::e2m1), 0);
}

TEST(FloatCode, StochasticIsUnbiasedOverAllDraws) {
  for (const Float f : kAll) {
    for (const float y : {0.3f, 1.1f, 2.7f, 4.6f, -5.3f, 0.01f}) {
      double sum = 0;
      for (int u = 0; u < 65536; ++u) sum += decode(f, encode_sr(f, y, static_cast<uint16_t>(u)));
      const double quantum =
          std::max<double>(spec(f).min_subnormal(), std::exp2(std::floor(std::log2(std::fabs(y))) - spec(f).mantissa_bits));
      EXPECT_NEAR(sum / 65536, y, quantum / 65536) << name(f);
    }
  }
}

TEST(ScaleCode, E8m0AndUe5m3) {
  EXPECT_TRUE(std::isnan(decode_e8m0(255)));
  for (int byte = 0; byte < 255; ++byte) EXPECT_EQ(decode_e8m0(encode_e8m0(byte - 127)), std::ldexp(1.0f, byte - 127));
  EXPECT_EQ(encode_e8m0(-500), 0);
  EXPECT_EQ(encode_e8m0(500), 254);
  for (int code = 0; code < 255; ++code) {
    const float v = decode_ue5m3(static_cast<uint8_t>(code));
    EXPECT_EQ(encode_ue5m3(v), code);
    if (code < 254) {
      const float mid = (v + decode_ue5m3(static_cast<uint8_t>(code + 1))) / 2;
      EXPECT_EQ(encode_ue5m3(mid), code % 2 == 0 ? code : code + 1);
    }
  }
  EXPECT_EQ(encode_ue5m3(-1.0f), 0);
  EXPECT_EQ(encode_ue5m3(114689.0f), kUe5m3Nan);
  EXPECT_EQ(encode_ue5m3(NAN), kUe5m3Nan);
  EXPECT_EQ(encode_ue5m3(INFINITY), kUe5m3Nan);
}

}  // namespace
}  // namespace halftone
