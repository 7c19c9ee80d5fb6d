// A run in which no step updated a weight ends as such, with the reason and its checkpoint; a run with nothing left to do is complete.
#include <gtest/gtest.h>

#include "halftone/train/trainer.h"
#include "train/small_run.h"

namespace halftone {
namespace {

using testing::SmallRuns;
using Options = std::vector<std::string>;

RunSummary train_on(const SmallRuns& runs, const std::string& name, int64_t steps, Options more) {
  more.push_back("--training.steps=" + std::to_string(steps));
  Processes alone({}, {});
  return run_training(runs.config(name, more), alone, "test");
}

void expect_nothing(const RunSummary& run, const std::string& reason, bool finite) {
  EXPECT_EQ(run.end, RunEnd::learned_nothing);
  EXPECT_NE(run.reason.find(reason), std::string::npos) << run.reason;
  EXPECT_EQ(run.finite, finite);
}

TEST(LearnedNothing, WithoutAValidLabel) {
  const SmallRuns runs;
  // Documents of one token predict nothing; behind them are some that do.
  std::string bytes;
  for (int64_t i = 0; i < 200; ++i) {
    const auto id = static_cast<uint16_t>(i < 10 || i % 8 == 7 ? 2047 : 300 + i % 4);  // 2047 ends a document
    bytes.append(reinterpret_cast<const char*>(&id), sizeof id);
  }
  testing::write_file(runs / "single.bin", bytes);
  const Options data = {"--training.dataset_path=" + (runs / "single.bin").string(), "--training.dataloader.packing=none",
                        "--checkpoint.last_save_model_only=false"};
  const RunSummary run = train_on(runs, "labels", 3, data);
  expect_nothing(run, "no step updated a weight: no label was valid in 3 steps", true);
  EXPECT_TRUE(std::filesystem::exists(runs / "labels/checkpoint/step-3")) << "the checkpoint is saved all the same";
  EXPECT_EQ(train_on(runs, "labels", 3, data).end, RunEnd::already_complete);
  EXPECT_EQ(train_on(runs, "labels", 16, data).end, RunEnd::completed);  // resumes, and meets labels
}

TEST(LearnedNothing, WhenEveryUpdateIsSkipped) {
  const SmallRuns runs;
  const RunSummary run = train_on(runs, "skipped", 3, {"--training.nonfinite=skip", "--training.z_loss=1e38"});
  expect_nothing(run, "all 3 updates were skipped", false);
  EXPECT_EQ(train_on(runs, "plain", 3, {"--training.nonfinite=skip"}).end, RunEnd::completed);
}

// Nothing is left to do for a run that resumes where its data ended.
TEST(LearnedNothing, WithoutAStepLeftARunIsComplete) {
  const SmallRuns runs;
  const Options few = {"--training.global_batch_size=60", "--training.dataloader.repeat=false", "--checkpoint.last_save_model_only=false"};
  for (int start = 0; start < 2; ++start) {
    const RunSummary run = train_on(runs, "one", 5, few);  // of 100 rows
    EXPECT_EQ(run.end, RunEnd::completed);
    EXPECT_EQ(run.step, 1);
  }
}

TEST(LearnedNothing, ValidationAloneIsNoTraining) {
  const SmallRuns runs;
  EXPECT_EQ(train_on(runs, "validated", 0,
                     {"--validation.enable", "--validation.dataset=bin", "--validation.dataset_path=" + (runs / "rows.bin").string(),
                      "--validation.seq_len=31", "--validation.local_batch_size=1", "--validation.steps=2"})
                .end,
            RunEnd::completed);
  EXPECT_EQ(train_on(runs, "seed", 3, {"--checkpoint.create_seed_checkpoint"}).end, RunEnd::completed);
}

}  // namespace
}  // namespace halftone
