// Scale rules against their definitions in real arithmetic (numerics.md section 3).
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "halftone/formats/fp4_scale.h"
#include "halftone/formats/fp8_scale.h"
#include "halftone/formats/int_scale.h"
#include "halftone/formats/mx_scale.h"
#include "halftone/formats/pairwise_sum.h"

namespace halftone::scale_rules_test {
namespace {

constexpr Float kAll[] = {Float::e4m3, Float::e5m2, Float::e3m2, Float::e2m3, Float::e2m1};

// Every positive finite bf16, and fp32 values around the thresholds of the rules.
std::vector<float> amaxes() {
  std::vector<float> a;
  for (uint32_t bits = 1; bits < 0x7F80; ++bits) a.push_back(std::bit_cast<float>(bits << 16));
  for (int e = -149; e < 128; ++e) {
    for (const double m : {1.0, 1.5, 1.75, 1.8125, 1.875, 1.9375}) {
      const auto v = static_cast<float>(std::ldexp(m, e));
      for (const float x : {std::nextafter(v, 0.0f), v, std::nextafter(v, INFINITY)}) {
        if (x > 0 && std::isfinite(x)) a.push_back(x);
      }
    }
  }
  std::mt19937 rng(3);
  for (int i = 0; i < 100'000; ++i) a.push_back(std::bit_cast<float>(static_cast<uint32_t>(rng() % 0x7F800000u)));
  a.back() = std::numeric_limits<float>::max();
  return a;
}

// Smallest e with a <= top * 2^e, by definition.
int exponent_above(double a, double top) {
  int e = std::ilogb(a) - std::ilogb(top) - 2;
  while (a > std::ldexp(top, e)) ++e;
  return e;
}

uint8_t expected_byte(Float f, ScaleMode mode, float amax) {
  const FloatSpec s = spec(f);
  const double a = amax;
  const int log = std::ilogb(a);
  int e = log - s.max_exponent();
  switch (mode) {
    case ScaleMode::ceil:
      e = exponent_above(a, 1.0) - s.max_exponent();
      break;
    case ScaleMode::rceil:
      e = exponent_above(a, s.max_finite());
      break;
    case ScaleMode::even:
    case ScaleMode::adaptive:
      e += std::ldexp(a, -log) >= 2 - std::ldexp(1.0, -(s.mantissa_bits + 1)) ? 1 : 0;
      break;
    case ScaleMode::uos:
      e = exponent_above(a, 7.25);
      break;
    default:
      break;
  }
  const int lowest = mode == ScaleMode::adaptive || mode == ScaleMode::uos ? 1 : 0;
  return static_cast<uint8_t>(std::clamp(e + 127, lowest, 254));
}

TEST(MxScale, EveryRuleIsItsDefinition) {
  const auto a = amaxes();
  for (const Float f : kAll) {
    for (const ScaleMode mode :
         {ScaleMode::floor, ScaleMode::ceil, ScaleMode::rceil, ScaleMode::even, ScaleMode::adaptive, ScaleMode::uos}) {
      if (mode == ScaleMode::uos && f != Float::e2m1) continue;
      for (const float v : a) {
        // The product of rceil rounds: it is exact to the ulp only where 1 / max finite does not, and below byte 1 the
        // subnormal product rounds as well. The rule there is numerics.md's, checked at its thresholds below.
        const uint8_t byte = mx_scale_byte(f, mode, std::bit_cast<uint32_t>(v)), expected = expected_byte(f, mode, v);
        if (byte == expected) continue;
        ASSERT_EQ(mode, ScaleMode::rceil) << name(f) << " " << v;
        const double threshold = spec(f).max_finite() * std::ldexp(1.0, std::min(byte, expected) - 127);
        ASSERT_LE(std::fabs(v - threshold), (expected == 0 || byte == 0 ? 0x1p-22 : 0x1p-23) * threshold) << name(f) << " " << v;
      }
    }
  }
}

TEST(MxScale, RceilNeverSaturatesAndIsExactAtItsThresholds) {
  for (const Float f : kAll) {
    const auto top = static_cast<float>(spec(f).max_finite());
    for (int j = -100; j < 100; ++j) {
      const float a = std::ldexp(top, j), above = std::nextafter(a, INFINITY);
      EXPECT_EQ(mx_scale_byte(f, ScaleMode::rceil, std::bit_cast<uint32_t>(a)), 127 + j) << name(f) << " " << j;
      EXPECT_EQ(mx_scale_byte(f, ScaleMode::rceil, std::bit_cast<uint32_t>(above)), 128 + j) << name(f) << " " << j;
    }
  }
}

TEST(MxScale, ZeroSubnormalAndPoison) {
  for (const Float f : kAll) {
    for (const ScaleMode mode : {ScaleMode::floor, ScaleMode::ceil, ScaleMode::rceil, ScaleMode::even}) {
      EXPECT_EQ(mx_scale_byte(f, mode, 0), 0);
      EXPECT_EQ(mx_scale_byte(f, mode, 1), 0);
    }
    EXPECT_EQ(mx_scale_byte(f, ScaleMode::adaptive, 0), 1);
    for (const uint32_t bad : {0x7F800000u, 0x7F800001u, 0x7FFFFFFFu}) EXPECT_EQ(mx_scale_byte(f, ScaleMode::rceil, bad), 255);
  }
  EXPECT_EQ(mx_scale_byte(Float::e2m1, ScaleMode::uos, 0), 1);
  EXPECT_TRUE(std::isnan(mx_inverse(255)));
  for (int byte = 0; byte < 255; ++byte) EXPECT_EQ(mx_inverse(static_cast<uint8_t>(byte)), std::ldexp(1.0f, 127 - byte));
  EXPECT_EQ(mx_inverse(127, true), 0.75f);
}

TEST(MxScale, DynamicClipPutsTheLastCodeAt292Sigma) {
  for (const float sigma : {1e-4f, 0.3f, 1.0f, 7.0f, 1e6f}) {
    const double top = 6 * static_cast<double>(decode_e8m0(clip_scale_byte(sigma))), wanted = 2.92247856 * sigma;
    EXPECT_GE(top, wanted / 1.75 * 0.9999) << sigma;  // the block exponent is that of wanted / 6, rounded up from 1.75 on
    EXPECT_LE(top, wanted / 0.875 * 1.0001) << sigma;
  }
  EXPECT_EQ(clip_variance(3, 9, 1), 0);  // one element has no spread
  EXPECT_EQ(clip_variance(0, 8, 2), 4);
  EXPECT_EQ(clip_variance(1e8, 1e16 / 32, 32), 0);  // never negative
}

TEST(MacroScale, ProductStaysBelowSixTimesAPowerOfTwo) {
  std::mt19937 rng(4);
  std::uniform_real_distribution<float> exponent(-30, 30);
  for (int i = 0; i < 100'000; ++i) {
    const float a = std::exp2(exponent(rng));
    const float inv = inv_macro(macro_byte(std::bit_cast<uint32_t>(a)));
    ASSERT_GE(inv, 1);
    ASSERT_LT(inv, 2);
    // 6 2^j (1 - 2^-8) < a inv <= 6 2^j, up to the rounding of 6 / a
    const double y = static_cast<double>(a) * inv / 6, fraction = y / std::exp2(std::ceil(std::log2(y) - 1e-6));
    ASSERT_GT(fraction, 1 - 0x1p-7) << a;
    ASSERT_LE(fraction, 1 + 1e-7) << a;
  }
  EXPECT_EQ(macro_byte(0x7F800000u), 0);
  EXPECT_EQ(macro_byte(0), macro_byte(std::bit_cast<uint32_t>(1e-12f)));
}

TEST(Fold, SpreadOfFourteenAndTwentyEightBinadesIsExact) {
  for (const auto& [target, binades] : {std::pair{Float::e4m3, 14}, std::pair{Float::e5m2, 28}}) {
    for (int down = 0; down <= binades + 20; ++down) {
      bool changed = false;
      for (int q = 0; q < 16; ++q) {
        const FoldedCode folded = fold_code(target, static_cast<uint8_t>(q), 40 - down, 40);
        const double exact = decode(Float::e2m1, static_cast<uint8_t>(q)) * std::ldexp(1.0, 40 - down);
        const double found = static_cast<double>(decode(target, folded.code)) * fold_scale(target, 40);
        EXPECT_EQ(folded.changed, found != exact) << down << " " << q;
        EXPECT_EQ(std::signbit(decode(target, folded.code)), q >= 8);
        changed = changed || folded.changed;
      }
      EXPECT_EQ(changed, down > binades) << name(target) << " " << down;
    }
  }
  EXPECT_EQ(fold_scale(Float::e5m2, -127), std::ldexp(1.0f, -140));
}

TEST(Fp8Scale, EqualsDivisionInDoubleRoundedOnce) {
  for (const float a : amaxes()) {
    for (const Float f : {Float::e4m3, Float::e5m2}) {
      const double inv = spec(f).max_finite() / std::max(static_cast<double>(a), 1e-12);
      const ScalePair s = fp8_scale(f, false, std::bit_cast<uint32_t>(a)), p = fp8_scale(f, true, std::bit_cast<uint32_t>(a));
      if (a < 1e-12f || static_cast<double>(a) >= 1e-12) {
        ASSERT_EQ(s.inv, static_cast<float>(inv)) << a;
      }
      ASSERT_EQ(s.scale, static_cast<float>(1.0 / static_cast<double>(s.inv)));
      ASSERT_EQ(p.inv, std::ldexp(1.0f, std::ilogb(s.inv))) << a;
      ASSERT_EQ(p.scale * p.inv, 1);
      if (a >= 1e-12f) {
        ASSERT_LE(static_cast<double>(a) * p.inv, spec(f).max_finite());
      }
    }
  }
  EXPECT_TRUE(std::isnan(fp8_scale(Float::e4m3, false, 0x7F800000u).inv));
}

TEST(Fp4Scale, ChainsInRealArithmetic) {
  std::mt19937 rng(5);
  std::uniform_real_distribution<double> exponent(-20, 20);
  for (int i = 0; i < 20'000; ++i) {
    const auto whole = static_cast<float>(std::exp2(exponent(rng)));
    const auto a = whole * static_cast<float>(std::exp2(-std::fabs(exponent(rng))));
    const uint32_t bits = std::bit_cast<uint32_t>(a), all = std::bit_cast<uint32_t>(whole);
    for (const auto& [chain, format] : {std::pair{Fp4Chain::torchao, ScaleFormat::e4m3}, std::pair{Fp4Chain::alto, ScaleFormat::e4m3},
                                        std::pair{Fp4Chain::alto, ScaleFormat::ue5m3}}) {
      const ScalePair outer = fp4_outer(chain, fp4_range(format), TwoLevel::tensor, all);
      ASSERT_NEAR(outer.scale * fp4_range(format) / whole, 1, 1e-6);
      const double ratio = a / whole * (fp4_range(format) / 6), high = format == ScaleFormat::e4m3 ? 448 : 114688;
      const double low = chain == Fp4Chain::torchao ? 0 : format == ScaleFormat::e4m3 ? 0x1p-6 : 0x1p-17;
      const uint8_t code = fp4_block_scale(chain, format, bits, outer);
      const double value = decode_block_scale(format, code), target = std::clamp(ratio, low, high);
      // A nearest value of the format: within half of the larger neighbouring gap.
      const double up =
          decode_block_scale(format, static_cast<uint8_t>(std::min<int>(code + 1, format == ScaleFormat::e4m3 ? 0x7E : 0xFE)));
      const double down = code == 0 ? 0 : decode_block_scale(format, static_cast<uint8_t>(code - 1));
      ASSERT_LE(std::fabs(value - target), std::max(up - value, value - down) / 2 * 1.00001) << a << " of " << whole;
      const float factor = fp4_factor(chain, format, code, outer);
      if (chain == Fp4Chain::alto) {
        ASSERT_EQ(factor, static_cast<float>(value) * outer.scale);
      }
      if (chain == Fp4Chain::torchao && code != 0) {
        ASSERT_NEAR(factor * value * outer.scale, 1, 1e-6);
      }
    }
  }
}

TEST(Fp4Scale, EdgesOfTheChains) {
  const ScalePair zero = fp4_outer(Fp4Chain::torchao, 2688, TwoLevel::tensor, 0);
  EXPECT_EQ(zero.inv, 1);
  EXPECT_EQ(fp4_factor(Fp4Chain::torchao, ScaleFormat::e4m3, 0, zero), std::numeric_limits<float>::max());
  EXPECT_EQ(fp4_outer(Fp4Chain::alto, 2688, TwoLevel::tensor, 0).scale, 1e-30f);
  // The smallest amax: 2688 / a overflows and is clamped to FLT_MAX.
  EXPECT_EQ(fp4_outer(Fp4Chain::torchao, 2688, TwoLevel::tensor, 1).inv, std::numeric_limits<float>::max());
  for (const uint32_t bad : {0x7F800000u, 0x7FC00000u}) {
    EXPECT_TRUE(std::isnan(fp4_outer(Fp4Chain::alto, 688128, TwoLevel::tensor, bad).scale));
    EXPECT_EQ(fp4_block_scale(Fp4Chain::alto, ScaleFormat::e4m3, bad, {1, 1}), 0x7F);
    EXPECT_EQ(fp4_block_scale(Fp4Chain::alto, ScaleFormat::ue5m3, bad, {1, 1}), 0xFF);
  }
  // A NaN in the tensor scale poisons blocks without a NaN of their own.
  EXPECT_EQ(fp4_block_scale(Fp4Chain::torchao, ScaleFormat::e4m3, 0x3F800000u, {quiet_nan(), quiet_nan()}), 0x7F);
  EXPECT_TRUE(std::isnan(fp4_factor(Fp4Chain::torchao, ScaleFormat::e4m3, 0x7F, {1, 1})));
  // If the block scale underflows to 0, the product may overflow; the code is the largest.
  EXPECT_EQ(fp4_scaled(Fp4Chain::torchao, 2.0f, std::numeric_limits<float>::max()), 6);
  EXPECT_TRUE(std::isnan(fp4_scaled(Fp4Chain::torchao, 2.0f, quiet_nan())));
}

TEST(IntScale, RulesOfTheTable) {
  const auto bits = [](float x) { return std::bit_cast<uint32_t>(x); };
  EXPECT_EQ(int8_scale(bits(3.0f)).scale, 3.0f / 127.0f);
  EXPECT_EQ(int8_scale(bits(3.0f)).inv, 1.0f / (3.0f / 127.0f));
  EXPECT_EQ(int8_scale(bits(1e-4f), 1e-5f).scale, 1e-5f);
  EXPECT_EQ(int4_scale(bits(7.0f), bits(4.0f)).scale, 1);
  EXPECT_EQ(int4_scale(bits(1.0f), bits(4.0f)).scale, 0.5f);
  EXPECT_TRUE(std::isnan(int4_scale(0, 0x7F800000u).scale));
  EXPECT_TRUE(std::isnan(int8_scale(0x7FC00000u).inv));
  EXPECT_EQ(ternary_scale(1.0, 4).scale, 0.25f);
  EXPECT_TRUE(std::isnan(ternary_scale(INFINITY, 4).scale));
}

TEST(IntScale, StoredUint4GroupsClipNothing) {
  std::mt19937 rng(6);
  std::normal_distribution<float> normal;
  for (int i = 0; i < 20'000; ++i) {
    float low = normal(rng) * 3, high = normal(rng);
    if (low > high) std::swap(low, high);
    const uint32_t amax = std::bit_cast<uint32_t>(std::max(std::fabs(low), std::fabs(high)));
    const AffineScale s = uint4_scale(amax, low, high, true);
    ASSERT_EQ(s.scale, bf16_nearest(s.scale));
    ASSERT_EQ(s.zero, bf16_nearest(s.zero));
    ASSERT_LE(s.zero, low);
    ASSERT_LE((high - s.zero) * s.inv, 15.0f * (1 + 0x1p-22f));
    ASSERT_EQ(s.inv, 1.0f / s.scale);
    const AffineScale exact = uint4_scale(amax, low, high, false);
    ASSERT_EQ(exact.zero, low);
    ASSERT_EQ(exact.scale, std::max((high - low) / 15.0f, 1e-12f));
  }
  EXPECT_TRUE(std::isnan(uint4_scale(std::bit_cast<uint32_t>(3e38f), -3e38f, 3e38f, false).scale));
}

TEST(PairwiseSum, IsTheTreeOfNeighbours) {
  std::mt19937 rng(8);
  std::uniform_real_distribution<double> uniform(-1, 1);
  std::vector<double> x(3000);
  for (double& v : x) v = uniform(rng);
  for (const size_t n : {1u, 2u, 3u, 31u, 32u, 33u, 1000u, 3000u}) {
    std::vector<double> level(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(n));
    while (level.size() > 1) {
      if (level.size() % 2 != 0) level.push_back(0);
      for (size_t i = 0; i < level.size() / 2; ++i) level[i] = level[2 * i] + level[2 * i + 1];
      level.resize(level.size() / 2);
    }
    EXPECT_EQ(pairwise_sum(static_cast<int64_t>(n), [&](int64_t i) { return x[static_cast<size_t>(i)]; }), level[0]) << n;
  }
}

}  // namespace
}  // namespace halftone::scale_rules_test
