#include "halftone/train/sizing.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "checkpoint/support.h"
#include "train/small_engine.h"

namespace halftone {
namespace {

// 750 steps, warm-up 100, validation and checkpoints every 200 steps.
JobConfig demo(double minutes) { return small_config({"--training.minutes=" + std::to_string(minutes)}); }

TEST(Sizing, SecondsOfARunCountValidationsAndCheckpoints) {
  const JobConfig config = demo(5);
  const auto seconds = [&](const RunCosts& costs, int64_t steps) { return run_seconds(costs, config, steps); };
  EXPECT_EQ(seconds({.step = 2}, 321), 642);
  for (const auto& [steps, validations, saves] :
       {std::array<int64_t, 3>{1, 1, 1}, {2, 2, 1}, {199, 2, 1}, {200, 2, 1}, {201, 3, 2}, {400, 3, 2}, {420, 4, 3}, {750, 5, 4}}) {
    EXPECT_EQ(seconds({.validation = 1}, steps), validations) << steps;  // after step 1, too
    EXPECT_EQ(seconds({.save = 1}, steps), saves) << steps;
  }
  JobConfig every = demo(5), none = demo(5);
  every.validation.freq = 1, every.checkpoint.enable_first_step_checkpoint = true;
  EXPECT_EQ(run_seconds({.validation = 1}, every, 30), 30);
  EXPECT_EQ(run_seconds({.save = 1}, every, 30), 2);
  none.validation.enable = none.checkpoint.enable = false;
  EXPECT_EQ(run_seconds({.step = 1, .validation = 10, .save = 10}, none, 30), 30);
}

TEST(Sizing, TakesTheStepsThatFitAndNoneMore) {
  for (const double minutes : {2.0, 5.0, 7.3}) {
    const JobConfig config = demo(minutes);
    for (const RunCosts& costs : {RunCosts{.step = 0.41}, RunCosts{.step = 0.5, .validation = 4, .save = 0.4}, RunCosts{.step = 0.31}}) {
      const RunSize size = fitting_size(costs, config);
      ASSERT_GE(size.steps, kLeastSteps);
      ASSERT_LE(size.steps, 750);
      EXPECT_TRUE(size.steps == 750 || run_seconds(costs, config, size.steps + 10) > 60 * minutes) << costs.step;
      EXPECT_TRUE(size.steps == kLeastSteps || run_seconds(costs, config, size.steps) <= 60 * minutes) << costs.step;
    }
  }
  EXPECT_EQ(fitting_size({.step = 0.5}, demo(5)).steps, 600);
  EXPECT_EQ(fitting_size({.step = 0.5, .validation = 4, .save = 0.4}, demo(5)).steps, 560);  // 280 + 16 + 1.2
  EXPECT_EQ(fitting_size({.step = 0.4}, demo(5)).steps, 750);
  EXPECT_EQ(fitting_size({.step = 0.4001}, demo(5)).steps, 740);
}

TEST(Sizing, StaysWithinItsLimits) {
  for (const double slow : {1.6, 3.0, 1e6, std::numeric_limits<double>::infinity()})
    EXPECT_EQ(fitting_size({.step = slow}, demo(5)).steps, 200);
  EXPECT_EQ(fitting_size({.step = 0}, demo(5)).steps, 750);
  JobConfig brief = demo(5);
  for (const int64_t steps : {1, 7, 199, 200}) {
    brief.training.steps = steps;
    EXPECT_EQ(fitting_size({.step = 100}, brief), (RunSize{steps, 100}));
  }
  brief.training.steps = 203;
  EXPECT_EQ(fitting_size({.step = 100}, brief).steps, 200);
  JobConfig endless = demo(5);
  endless.training.steps = std::numeric_limits<int64_t>::max() / 8;
  EXPECT_EQ(fitting_size({.step = 1}, endless).steps, 300);
}

TEST(Sizing, RanksThatShareRowsNeedTheirSteps) {
  const auto size = [](const std::vector<std::string>& args, int64_t ParallelismConfig::*degree) {
    LoadedConfig loaded = load_config_text("[training]\nminutes = 5\nsteps = 750\n", "demo.toml", args);
    loaded.config.parallelism.*degree = 2;
    return Sizing(loaded, "", 2);
  };
  const std::vector<std::string> steps = {"--training.steps=9"}, both = {"--training.steps=9", "--training.minutes=5"};
  using P = ParallelismConfig;
  for (const auto degree : {&P::tensor_parallel_degree, &P::context_parallel_degree, &P::pipeline_parallel_degree}) {
    EXPECT_NO_THROW(size(steps, degree));
    EXPECT_THROW(size({}, degree), Error);
    EXPECT_THROW(size(both, degree), Error);
  }
  EXPECT_NO_THROW(size({}, &P::data_parallel_shard_degree));
}

TEST(Sizing, TheWarmUpKeepsItsShare) {
  EXPECT_EQ(fitting_size({.step = 0.1}, demo(5)), (RunSize{750, 100}));
  EXPECT_EQ(fitting_size({.step = 0.5}, demo(5)), (RunSize{600, 80}));
  EXPECT_EQ(fitting_size({.step = 3}, demo(5)), (RunSize{200, 27}));
  JobConfig none = demo(5);
  none.lr_scheduler.warmup_steps = 0;
  EXPECT_EQ(fitting_size({.step = 3}, none), (RunSize{200, 0}));
}

TEST(Sizing, ReadsTheSizeThatACheckpointSays) {
  testing::TemporaryFolder folder;
  CheckpointOptions options;
  options.folder = folder.path();
  CheckpointStore store(options);
  store.prepare();
  const auto saved = [&](const std::string& json) {
    StepState state;
    state.step = 3, state.model_only = true, state.state_json = json;
    store.save(state, true);
    return saved_size(store.open(3));
  };
  EXPECT_EQ(saved(R"({"config": {"training": {"steps": 420}, "lr_scheduler": {"warmup_steps": 56}}})"), (RunSize{420, 56}));
  for (const char* none : {"{}", R"({"config": 3})", R"({"config": [1]})", R"({"config": {"training": {"steps": 420}}})",
                           R"({"config": {"training": {"steps": "420"}, "lr_scheduler": {"warmup_steps": 56}}})",
                           R"({"config": {"training": {"steps": 4.5}, "lr_scheduler": {"warmup_steps": 56}}})",
                           R"({"config": {"training": {"steps": 0}, "lr_scheduler": {"warmup_steps": 56}}})",
                           R"({"config": {"training": {"steps": 420}, "lr_scheduler": {"warmup_steps": -1}}})",
                           R"({"config": {"training": {"steps": 18446744073709551615}, "lr_scheduler": {"warmup_steps": 5}}})"})
    EXPECT_EQ(saved(none), std::nullopt) << none;
}

}  // namespace
}  // namespace halftone
