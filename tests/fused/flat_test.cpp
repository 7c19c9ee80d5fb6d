#include "fused/support.h"
#include "halftone/fused/grad_norm.h"

namespace halftone {
namespace {

TEST(GradNorm, SumOfSquaresMatchesFp64AndDoesNotDependOnThreads) {
  for (const int64_t n : {0, 1, 17, 4096, 4097, 100003}) {
    for (const DType type : kFloatTypes) {
      Matrix x(1, n, type);
      x.randomise(1);
      double expected = 0;
      for (int64_t i = 0; i < n; ++i) expected += x.at(0, i) * x.at(0, i);
      EXPECT_NEAR(sum_of_squares(x.data(), n, type), expected, 1e-12 * expected) << n;
      expect_same_everywhere([&] {
        const double sum = sum_of_squares(x.data(), n, type);
        std::vector<float> bits(2);
        std::memcpy(bits.data(), &sum, sizeof sum);
        return bits;
      });
    }
  }
}

TEST(GradNorm, OneNonFiniteElementMakesTheSumNonFinite) {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    for (const int64_t where : {0, 4095, 4096, 9000}) {
      Matrix x(1, 9001, DType::f32);
      x.randomise(1).set(0, where, bad);
      EXPECT_FALSE(std::isfinite(sum_of_squares(x.data(), 9001)));
    }
  }
  std::vector<float> large(5000, 3e38f);
  EXPECT_TRUE(std::isfinite(sum_of_squares(large.data(), 5000)));
}

TEST(GradNorm, ClipFactor) {
  EXPECT_EQ(clip_factor(0.5, 1.0), 1.0f);
  EXPECT_FLOAT_EQ(clip_factor(4.0, 1.0), static_cast<float>(1.0 / 4.000001));
  EXPECT_EQ(clip_factor(1e9, INFINITY), 1.0f);
  EXPECT_TRUE(std::isnan(clip_factor(NAN, 1.0)));
  EXPECT_TRUE(std::isnan(clip_factor(NAN, INFINITY)));
}

// Which steps update, decided on the host and on a device.
TEST(GradNorm, JudgesAStep) {
  const auto judged = [](double loss_sum, double norm, double limit) {
    StepOutcome o;
    o.loss_sum = loss_sum;
    judge(o, norm, {4, limit, 2});
    return o;
  };
  const StepOutcome good = judged(8, 5, 2);
  EXPECT_TRUE(good.finite && good.updated);
  EXPECT_EQ(good.grad_norm, 5);
  EXPECT_EQ(good.grad_factor, clip_factor(5, 2));
  const StepOutcome spiked = judged(8.01, 5, 2);
  EXPECT_TRUE(spiked.finite && !spiked.updated);
  for (const double bad : {double{INFINITY}, -double{INFINITY}, double{NAN}}) {
    EXPECT_FALSE(judged(bad, 5, INFINITY).finite || judged(bad, 5, INFINITY).updated);
    EXPECT_FALSE(judged(8, std::abs(bad), INFINITY).finite || judged(8, std::abs(bad), INFINITY).updated);
  }
}

TEST(Flat, ScaleZeroCastAccumulate) {
  constexpr int64_t kCount = 50007;
  Matrix x(1, kCount, DType::f32, 0);
  x.randomise(2);
  std::vector<bf16> narrow(kCount);
  cast_to_bf16(x.f.data(), narrow.data(), kCount);
  std::vector<float> wide(kCount), sum(kCount, 1.0f), sum2(kCount, 1.0f), scaled = x.f;
  cast_to_f32(narrow.data(), wide.data(), kCount);
  accumulate(sum.data(), x.f.data(), kCount, DType::f32);
  accumulate(sum2.data(), narrow.data(), kCount, DType::bf16);
  scale_in_place(scaled.data(), kCount, -0.5f);
  for (size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(narrow[i].bits, bf16(x.f[i]).bits);
    ASSERT_EQ(wide[i], to_float(narrow[i]));
    ASSERT_EQ(sum[i], 1.0f + x.f[i]);
    ASSERT_EQ(sum2[i], 1.0f + wide[i]);
    ASSERT_EQ(scaled[i], -0.5f * x.f[i]);
  }
  fill_zero(scaled.data(), (kCount - 1) * 4);
  EXPECT_EQ(scaled[kCount - 2], 0.0f);
  EXPECT_EQ(scaled[kCount - 1], -0.5f * x.f[kCount - 1]);
}

// Ties to even, infinities, NaN, subnormals, in every lane and in the tail.
TEST(Flat, CastRoundsLikeTheScalarType) {
  const uint32_t bits[] = {0x3F808000, 0x3F818000, 0x3F807FFF, 0x7F800000, 0xFF800000, 0x7F800001,
                           0xFFC00000, 0x7F7FFFFF, 1,          0x00008000, 0x80018000};
  expect_same_everywhere([&] {
    std::vector<float> x;
    for (int i = 0; i < 45; ++i) x.push_back(std::bit_cast<float>(bits[i % std::size(bits)]));
    std::vector<bf16> y(x.size());
    cast_to_bf16(x.data(), y.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i].bits, bf16(x[i]).bits) << i;
    return std::vector<float>{};
  });
}

}  // namespace
}  // namespace halftone
