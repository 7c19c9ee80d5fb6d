#include "halftone/fused/random_fill.h"

#include "fused/random_value_cases.h"
#include "fused/support.h"
#include "halftone/base/error.h"
#include "halftone/fused/philox_groups.h"

namespace halftone {
namespace {

void fill(RandomFill p, const RandomValues& values) {
  p.values = values;
  random_fill(p);
}

std::vector<float> normal(uint64_t first, int64_t count, double mean = 0, double std = 1) {
  std::vector<float> out(static_cast<size_t>(count));
  fill({.key = philox_key(1234, "w#init"), .first_index = first, .count = count, .out = out.data()}, normal_values(mean, std));
  return out;
}

TEST(RandomFill, QuantileAndDistributionFunction) {
  EXPECT_EQ(normal_quantile(0.5), 0.0);
  EXPECT_NEAR(normal_quantile(0.975), 1.959963984540054, 1e-14);
  EXPECT_NEAR(normal_quantile(0.1), -1.2815515655446004, 1e-14);
  EXPECT_NEAR(normal_quantile(1e-10), -6.361340902404056, 1e-13);
  for (int i = -840; i <= 840; ++i) {
    const double x = i * 0.01, p = 0.5 * std::erfc(-x / std::sqrt(2.0));
    EXPECT_NEAR(normal_cdf(x), p, 5e-14) << x;
    if (std::abs(x) < 5) {
      EXPECT_NEAR(normal_quantile(p), x, 1e-9) << x;
    }
  }
  EXPECT_EQ(normal_cdf(-100), 0.0);
  EXPECT_EQ(normal_cdf(INFINITY), 1.0);
}

TEST(RandomFill, VectorPhiloxIsTheScalarOne) {
  const PhiloxKey key = philox_key(77, "x");
  for (const uint64_t first : {uint64_t{0}, uint64_t{0xFFFFFFFE}, uint64_t{0x123456789ABCDE}}) {
    uint32_t words[32];
    philox_groups(key, first, 9, 8, words);
    for (size_t i = 0; i < 8; ++i) {
      const auto expected = philox(key, first + i, 9);
      for (size_t k = 0; k < 4; ++k) ASSERT_EQ(words[4 * i + k], expected[k]) << first << " " << i;
    }
  }
}

// Recorded bits: another compiler, instruction set or C library must produce the same numbers.
TEST(RandomFill, KnownBits) {
  const auto x = normal(0, 4);
  const uint32_t expected[] = {0xBFE35839u, 0x3E0B71ACu, 0x3EF71BE6u, 0x3F5F1E8Fu};
  for (size_t i = 0; i < 4; ++i)
    EXPECT_EQ(std::bit_cast<uint32_t>(x[i]), expected[i]) << fmt::format("{:#x}", std::bit_cast<uint32_t>(x[i]));
}

// The device evaluates element by element, the host in blocks.
TEST(RandomFill, ElementsEqualBlocks) {
  for (const RandomValues& values : random_value_cases()) {
    std::vector<float> x(50000);
    const RandomFill p{.key = philox_key(5, "w#init"), .count = 50000, .out = x.data()};
    fill(p, values);
    for (uint64_t i = 0; i < x.size(); ++i) {
      const auto expected = static_cast<float>(values(unit_double(philox(p.key, i >> 2)[i & 3])));
      ASSERT_EQ(std::bit_cast<uint32_t>(x[i]), std::bit_cast<uint32_t>(expected)) << i << " mean " << values.mean << " std " << values.std;
    }
  }
}

TEST(RandomFill, ShardsEqualTheWholeTensor) {
  const auto whole = normal(0, 20000);
  for (const int64_t first : {1, 2, 3, 4, 4097, 19999}) {
    const auto part = normal(static_cast<uint64_t>(first), 20000 - first);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first)) << first;
  }
  expect_same_everywhere([&] { return normal(0, 20000); });
}

TEST(RandomFill, NormalHasItsMoments) {
  const auto x = normal(0, 400000, 0.5, 2);
  double mean = 0, square = 0, fourth = 0;
  for (const float v : x) mean += v;
  mean /= 4e5;
  for (const float v : x) square += (v - mean) * (v - mean), fourth += std::pow(v - mean, 4);
  EXPECT_NEAR(mean, 0.5, 0.015);
  EXPECT_NEAR(square / 4e5, 4, 0.04);
  EXPECT_NEAR(fourth / 4e5 / 16, 3, 0.1);
}

TEST(RandomFill, TruncatedNormalStaysInsideAndFillsTheRange) {
  std::vector<float> x(100000);
  const RandomFill p{.key = philox_key(1, "out#init"), .count = 100000, .out = x.data()};
  fill(p, truncated_normal_values(0, 1, -1.5, 2));
  double mean = 0;
  for (const float v : x) {
    ASSERT_GE(v, -1.5f);
    ASSERT_LE(v, 2.0f);
    mean += v / 1e5;
  }
  // (phi(-1.5) - phi(2)) / (Phi(2) - Phi(-1.5))
  EXPECT_NEAR(mean, (0.1295176 - 0.0539910) / (0.9772499 - 0.0668072), 0.01);
  // A distant cut changes nothing.
  fill(p, truncated_normal_values(0, 0.02, -2, 2));
  std::vector<float> plain(100000);
  fill({.key = p.key, .count = 100000, .out = plain.data()}, normal_values(0, 0.02));
  EXPECT_EQ(x, plain);
}

TEST(RandomFill, UniformCoversItsRangeAndBf16IsTheRoundedNumber) {
  std::vector<float> x(100000);
  RandomFill p{.key = philox_key(1, "u"), .draw = 3, .count = 100000, .out = x.data()};
  fill(p, uniform_values(-1, 3));
  double mean = 0;
  for (const float v : x) {
    ASSERT_GE(v, -1.0f);
    ASSERT_LT(v, 3.0f);
    mean += v / 1e5;
  }
  EXPECT_NEAR(mean, 1, 0.02);
  std::vector<bf16> narrow(x.size());
  p.dtype = DType::bf16, p.out = narrow.data();
  fill(p, uniform_values(-1, 3));
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(narrow[i].bits, bf16(x[i]).bits);
}

TEST(RandomFill, RefusesImpossibleRanges) {
  float x[4];
  EXPECT_THROW(uniform_values(1, 1), Error);
  EXPECT_THROW(normal_values(0, -1), Error);
  EXPECT_THROW(truncated_normal_values(0, 1, 2, 1), Error);
  EXPECT_THROW(truncated_normal_values(0, 1, 50, 60), Error);
  EXPECT_THROW(random_fill({.count = 4, .dtype = DType::s32, .out = x}), Error);
  EXPECT_NO_THROW(random_fill({}));
}

}  // namespace
}  // namespace halftone
