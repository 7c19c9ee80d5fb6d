#include "halftone/train/step_guard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "checkpoint/support.h"

namespace halftone {
namespace {

using testing::expect_error;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TrainingConfig training(const std::string& nonfinite, double spike_factor = 0) {
  TrainingConfig config;
  config.nonfinite = nonfinite, config.spike_factor = spike_factor;
  return config;
}

StepResult bad(double loss, bool finite) {
  StepResult r;
  r.loss_sum = 4 * loss, r.valid_labels = 4, r.grad_norm = 0.5, r.finite = finite;
  return r;
}

TEST(StepGuard, ASpikeIsAboveTheMedianOfTheLastLosses) {
  const TrainingConfig config = training("skip", 2), off = training("skip");
  RunProgress progress;
  StepGuard guard(config, progress);
  for (int64_t step = 1; step <= 15; ++step) guard.updated(step, 1);
  EXPECT_EQ(guard.loss_limit(), INFINITY) << "a median of 15 losses";
  guard.updated(16, 1);
  EXPECT_EQ(guard.loss_limit(), 2);
  EXPECT_EQ(StepGuard(off, progress).loss_limit(), INFINITY) << "spike_factor is 0";
  for (int64_t step = 17; step <= 17 + 31; ++step) guard.updated(step, 10);  // 16 of 1, 32 of 10
  EXPECT_EQ(guard.loss_limit(), 20);
  for (int64_t step = 49; step <= 200; ++step) guard.updated(step, 3);
  EXPECT_EQ(progress.recent_losses, std::vector<double>(kMedianWindow, 3));
}

TEST(StepGuard, AbortSaysWhatWasFound) {
  const TrainingConfig config = training("abort", 2);
  RunProgress progress;
  StepGuard guard(config, progress);
  EXPECT_THROW(guard.refused(7, bad(kNan, false)), NonFiniteError);
  expect_error([&] { guard.refused(7, bad(kNan, false)); }, "loss or gradient norm is not finite at step 7 (first on rank 0): loss nan");
  expect_error([&] { guard.refused(8, bad(9, true)); }, "loss is above spike_factor times its running median at step 8");
}

TEST(StepGuard, SkipGivesUpAfterTenUpdatesInARow) {
  const TrainingConfig config = training("skip");
  RunProgress progress;
  StepGuard guard(config, progress);
  const auto skip = [&](int64_t step) {
    const StepGuard::Refusal refusal = guard.refused(step, bad(kNan, false));
    EXPECT_FALSE(refusal.rollback);
    EXPECT_NE(refusal.what.find("update skipped"), std::string::npos) << refusal.what;
  };
  for (int64_t step = 1; step <= 10; ++step) skip(step);
  guard.updated(11, 1);
  for (int64_t step = 12; step <= 16; ++step) skip(step);
  StepGuard restarted(config, progress);  // the count is part of the run's state
  for (int64_t step = 17; step <= 21; ++step) restarted.refused(step, bad(kNan, false));
  expect_error([&] { restarted.refused(22, bad(kNan, false)); }, "10 updates in a row were skipped");
}

TEST(StepGuard, RollbackGivesUpUnlessTheRunGetsFurther) {
  const TrainingConfig config = training("rollback");
  RunProgress progress;
  StepGuard guard(config, progress);
  for (int n = 0; n < 10; ++n) {
    EXPECT_TRUE(guard.refused(20, bad(kNan, false)).rollback);
    guard.updated(19, 1), guard.updated(20, 1);  // as far as before
  }
  expect_error([&] { guard.refused(20, bad(kNan, false)); }, "10 rollbacks in a row did not help");
  guard.updated(21, 1);
  for (int n = 0; n < 10; ++n) EXPECT_TRUE(guard.refused(22, bad(kNan, false)).rollback);
  EXPECT_EQ(progress.skipped_updates, 0);
}

}  // namespace
}  // namespace halftone
