#include "halftone/train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "halftone/base/error.h"

namespace halftone {
namespace {

// T = 10, w = 2: d = 8, stable = 1 (steps 2 .. 2), then p = 1/8 .. 7/8.
TEST(Schedule, DecaysRightAfterWarmUpWithoutARatio) {
  const Schedule s({.steps = 10, .warmup_steps = 2});
  EXPECT_EQ(s.decay_steps(), 8);
  EXPECT_EQ(s.stable_steps(), 1);
  const double expected[] = {0.5, 1, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125};
  for (int64_t i = 0; i < 10; ++i) EXPECT_DOUBLE_EQ(s.factor(i), expected[i]) << i;
  EXPECT_DOUBLE_EQ(s.factor(10), 0.125);
  EXPECT_TRUE(s.warnings().empty());
}

// T = 20, w = 4, d = 5: stable = 12 (steps 4 .. 15), then p = 1/5 .. 4/5 at steps 16 .. 19.
TEST(Schedule, WarmUpStableDecayOfEveryType) {
  for (const auto& [type, shape] : {std::pair{DecayType::linear, +[](double p) { return 1 - p; }},
                                    std::pair{DecayType::sqrt, +[](double p) { return 1 - std::sqrt(p); }},
                                    std::pair{DecayType::cosine, +[](double p) { return 0.5 * (1 + std::cos(M_PI * p)); }}}) {
    const Schedule s({.steps = 20, .warmup_steps = 4, .decay_ratio = 0.25, .decay = type, .min_factor = 0.1});
    EXPECT_DOUBLE_EQ(s.factor(0), 0.25);
    EXPECT_DOUBLE_EQ(s.factor(3), 1);
    EXPECT_DOUBLE_EQ(s.factor(4), 1);
    EXPECT_DOUBLE_EQ(s.factor(15), 1);
    for (int64_t i = 16; i < 20; ++i) EXPECT_DOUBLE_EQ(s.factor(i), 0.1 + 0.9 * shape(static_cast<double>(i - 15) / 5)) << i;
  }
}

TEST(Schedule, RoundsHalvesToEven) {
  EXPECT_EQ(Schedule({.steps = 10, .decay_ratio = 0.25}).decay_steps(), 2);  // 2.5
  EXPECT_EQ(Schedule({.steps = 14, .decay_ratio = 0.25}).decay_steps(), 4);  // 3.5
  EXPECT_EQ(Schedule({.steps = 10, .decay_ratio = 0.26}).decay_steps(), 3);  // 2.6
}

TEST(Schedule, CutsWhatDoesNotFitAndSaysSo) {
  const Schedule late({.steps = 10, .warmup_steps = 6, .decay_ratio = 0.8});
  EXPECT_EQ(late.decay_steps(), 4);
  EXPECT_EQ(late.stable_steps(), 1);
  ASSERT_EQ(late.warnings().size(), 1u);
  const Schedule brief({.steps = 5, .warmup_steps = 200});
  EXPECT_EQ(brief.warmup_steps(), 5);
  EXPECT_EQ(brief.decay_steps(), 0);
  EXPECT_DOUBLE_EQ(brief.factor(0), 0.2);
  EXPECT_DOUBLE_EQ(brief.factor(4), 1);
  ASSERT_EQ(brief.warnings().size(), 1u);
  EXPECT_NE(brief.warnings()[0].find("200"), std::string::npos);
}

TEST(Schedule, ConstantWithoutWarmUpAndDecay) {
  const Schedule s({.steps = 3, .decay_ratio = 0.0});
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(s.factor(i), 1);
  EXPECT_EQ(Schedule({.steps = 0}).factor(0), 1);
}

TEST(Schedule, RefusesWhatIsOutOfRange) {
  EXPECT_THROW(Schedule({.steps = -1}), Error);
  EXPECT_THROW(Schedule({.steps = 1, .warmup_steps = -1}), Error);
  EXPECT_THROW(Schedule({.steps = 1, .decay_ratio = 1.5}), Error);
  EXPECT_THROW(Schedule({.steps = 1, .min_factor = -0.1}), Error);
  EXPECT_THROW(decay_type("exp"), Error);
  EXPECT_EQ(decay_type("cosine"), DecayType::cosine);
}

}  // namespace
}  // namespace halftone
