#include "halftone/train/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "halftone/base/error.h"

namespace halftone {
namespace {

std::vector<double> frequencies(const std::vector<float>& logits, const SamplingOptions& options) {
  constexpr int kDraws = 40000;
  std::vector<double> share(logits.size());
  for (int i = 0; i < kDraws; ++i) share[static_cast<size_t>(sample_token(logits, options, static_cast<uint64_t>(i)))] += 1.0 / kDraws;
  return share;
}

const std::vector<float> kLogits = {std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.3f), -INFINITY};

TEST(Sampling, FollowsTheProbabilities) {
  const auto share = frequencies(kLogits, {.seed = 7});
  const double expected[] = {0.1, 0.4, 0.2, 0.3, 0};
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(share[i], expected[i], 0.012) << i;
  EXPECT_EQ(share[4], 0);
}

TEST(Sampling, TemperatureSharpensAndFlattens) {
  const auto share = frequencies(kLogits, {.temperature = 0.5});  // squares: 1, 16, 4, 9 of 30
  EXPECT_NEAR(share[1], 16.0 / 30, 0.012);
  EXPECT_NEAR(share[0], 1.0 / 30, 0.012);
  EXPECT_GT(frequencies(kLogits, {.temperature = 100})[0], 0.22);
}

TEST(Sampling, GreedyTakesTheLargestAndTheLowestIdAmongEquals) {
  const std::vector<float> logits = {1, 5, 5, -INFINITY};
  for (uint64_t position = 0; position < 20; ++position) {
    EXPECT_EQ(sample_token(logits, {.temperature = 0}, position), 1);
    EXPECT_EQ(sample_token(logits, {.top_k = 1}, position), 1);
  }
}

TEST(Sampling, TopKKeepsTheLargest) {
  const auto share = frequencies(kLogits, {.top_k = 2});  // 0.4 and 0.3
  EXPECT_NEAR(share[1], 4.0 / 7, 0.012);
  EXPECT_NEAR(share[3], 3.0 / 7, 0.012);
  EXPECT_EQ(share[0] + share[2] + share[4], 0);
  EXPECT_GT(frequencies(kLogits, {.top_k = 100})[0], 0.08);
}

TEST(Sampling, TopPKeepsTheSmallestSetThatReachesIt) {
  const auto share = frequencies(kLogits, {.top_p = 0.6});  // 0.4 + 0.3 reaches it
  EXPECT_NEAR(share[1], 4.0 / 7, 0.012);
  EXPECT_EQ(share[0] + share[2], 0);
  EXPECT_NEAR(frequencies(kLogits, {.top_p = 0.39})[1], 1, 1e-9);
  // After top-k: of 0.4, 0.3, 0.2 (renormalised 4/9, 3/9, 2/9) two reach 0.7.
  const auto both = frequencies(kLogits, {.top_k = 3, .top_p = 0.7});
  EXPECT_EQ(both[0] + both[2], 0);
  EXPECT_NEAR(both[3], 3.0 / 7, 0.012);
}

TEST(Sampling, IsAFunctionOfSeedAndPosition) {
  const std::vector<float> logits(1000, 0.0f);
  EXPECT_EQ(sample_token(logits, {.seed = 1}, 5), sample_token(logits, {.seed = 1}, 5));
  int changed = 0;
  for (uint64_t i = 0; i < 50; ++i) {
    changed += sample_token(logits, {.seed = 1}, i) != sample_token(logits, {.seed = 2}, i);
    changed += sample_token(logits, {.seed = 1}, i) != sample_token(logits, {.seed = 1}, i + 1);
  }
  EXPECT_GT(changed, 90);
}

TEST(Sampling, RefusesWhatItCannotSample) {
  EXPECT_THROW(sample_token({}, {}, 0), Error);
  EXPECT_THROW(sample_token(std::vector<float>{1, NAN}, {}, 0), Error);
  EXPECT_THROW(sample_token(std::vector<float>{1, INFINITY}, {}, 0), Error);
  EXPECT_THROW(sample_token(std::vector<float>{-INFINITY, -INFINITY}, {}, 0), Error);
  EXPECT_THROW(sample_token(kLogits, {.temperature = -1}, 0), Error);
  EXPECT_THROW(sample_token(kLogits, {.top_k = -1}, 0), Error);
  EXPECT_THROW(sample_token(kLogits, {.top_p = 0}, 0), Error);
  EXPECT_THROW(sample_token(kLogits, {.top_p = 1.1}, 0), Error);
}

}  // namespace
}  // namespace halftone
