#include "halftone/train/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/ops/device.h"
#include "halftone/train/metrics_file.h"
#include "train/small_run.h"

namespace halftone {
namespace {

using testing::expect_error;
using testing::SmallRuns;
using Options = std::vector<std::string>;
using Losses = std::vector<std::pair<int64_t, double>>;

const Options kRollback = {"--training.nonfinite=rollback", "--training.spike_factor=2"};
const Options kSkip = {"--training.nonfinite=skip", "--training.spike_factor=2"};

RunSummary train(const SmallRuns& runs, const std::string& name, int64_t steps, Options more) {
  more.push_back("--training.steps=" + std::to_string(steps));
  Processes alone({}, {});
  return run_training(runs.config(name, more), alone, "test");
}

Losses losses(const SmallRuns& runs, const std::string& name) {
  Losses found;
  for (const MetricsLine& line : read_metrics(runs / name / "metrics.jsonl")) {
    if (line.kind == "train") found.emplace_back(*line.step, *find_scalar(line.scalars, "loss_metrics/global_avg_loss"));
  }
  return found;
}

int64_t events(const SmallRuns& runs, const std::string& name, const std::string& part) {
  const std::vector<MetricsLine> lines = read_metrics(runs / name / "metrics.jsonl");
  return std::count_if(lines.begin(), lines.end(), [&](const MetricsLine& l) { return l.message.find(part) != std::string::npos; });
}

// A digest of a step's tensors, model and optimizer, without the file headers, which name the step.
size_t tensors(const SmallRuns& runs, const std::string& name, int64_t step) {
  const std::filesystem::path folder = runs / name / "checkpoint" / ("step-" + std::to_string(step));
  std::string bytes;
  for (const char* file : {"model-0.safetensors", "optim-0.safetensors"}) {
    const std::string text = testing::read_file(folder / file);
    EXPECT_GT(text.size(), 10'000) << folder / file;
    bytes += text.substr(std::min(text.size(), text.find("}}")));
  }
  return std::hash<std::string>()(bytes);
}

TEST(Trainer, GoesOnFromACheckpointAsTheStraightRun) {
  const SmallRuns runs;
  const Options int4 = {"--quantize.scheme=int4", "--quantize.stochastic_rounding"};
  train(runs, "straight", 10, int4);
  for (const int64_t steps : {3, 8, 10}) EXPECT_EQ(train(runs, "restarted", steps, int4).step, steps);
  EXPECT_EQ(losses(runs, "restarted"), losses(runs, "straight"));
  EXPECT_EQ(tensors(runs, "restarted", 10), tensors(runs, "straight", 10));
  EXPECT_EQ(train(runs, "restarted", 10, int4).end, RunEnd::already_complete);
}

// Documents of 8 and of 4 predictions in rows of 31.
TEST(Trainer, CountsNoPadding) {
  const SmallRuns runs;
  std::string lines;
  for (int i = 0; i < 20; ++i)
    lines += R"({"input_ids": [300, 301, 302, 303, 300, 301, 302, 303, 300]})"
             "\n"
             R"({"input_ids": [300, 301, 302, 303, 300]})"
             "\n";
  testing::write_file(runs / "documents.jsonl", lines);
  train(runs, "run", 3,
        {"--training.dataset=jsonl", "--training.dataset_path=" + (runs / "documents.jsonl").string(), "--training.dataloader.packing=none",
         "--training.dataloader.add_bos=false", "--training.dataloader.add_eos=false", "--training.local_batch_size=2",
         "--metrics.log_freq=1"});
  double step = 0;
  for (const MetricsLine& line : read_metrics(runs / "run" / "metrics.jsonl")) {
    if (line.kind != "train") continue;
    EXPECT_EQ(*find_scalar(line.scalars, "n_tokens_seen"), 12 * ++step);
    const double tokens = *find_scalar(line.scalars, "throughput(tps)") * *find_scalar(line.scalars, "time_metrics/end_to_end(s)");
    EXPECT_NEAR(tokens, 12, 1e-6);
  }
  EXPECT_EQ(step, 3);
}

TEST(Trainer, ARollbackLeavesNothingOfTheBadRows) {
  const SmallRuns good, two({24, 25});  // good rows are all alike: without the two bad ones the run equals the plain one
  train(good, "run", 26, kRollback), train(two, "run", 26, kRollback);
  EXPECT_EQ(losses(two, "run"), losses(good, "run"));
  EXPECT_EQ(tensors(two, "run", 26), tensors(good, "run", 26));
  EXPECT_EQ(events(good, "run", "back to the checkpoint"), 0);
  EXPECT_EQ(events(two, "run", "rolling back to the checkpoint of step 20 and skipping the rows of step 24"), 2);
}

TEST(Trainer, ARollbackNeedsACheckpoint) {
  const SmallRuns runs({24});
  Options none = kRollback;
  none.push_back("--checkpoint.interval=100");
  expect_error([&] { train(runs, "run", 26, none); }, "there is no checkpoint to roll back to");
}

TEST(Trainer, ASkippedUpdateChangesNoWeightsAndSurvivesARestart) {
  const SmallRuns runs({24, 25});
  train(runs, "straight", 26, kSkip);
  EXPECT_EQ(events(runs, "straight", "update skipped"), 2);
  train(runs, "restarted", 22, kSkip), train(runs, "restarted", 26, kSkip);
  EXPECT_EQ(events(runs, "restarted", "update skipped"), 2);
  EXPECT_EQ(tensors(runs, "restarted", 26), tensors(runs, "straight", 26));
  train(runs, "before", 23, kSkip), train(runs, "skipped", 25, kSkip);
  EXPECT_EQ(tensors(runs, "skipped", 25), tensors(runs, "before", 23));
}

// On a GPU a result is known only once the next step is queued: that step is repeated after a rollback.
TEST(Trainer, BadRowsOnCudaAreFoundAStepLater) {
  try {
    select_device("cuda", 0);
  } catch (const Error& reason) {
    GTEST_SKIP() << reason.what();
  }
  const auto on_cuda = [](Options more) {
    more.push_back("--training.device=cuda"), more.push_back("--validation.enable=false");
    return more;
  };
  const SmallRuns good, two({24, 25});
  train(good, "run", 26, on_cuda(kRollback)), train(two, "run", 26, on_cuda(kRollback)), train(two, "skipped", 26, on_cuda(kSkip));
  EXPECT_EQ(events(two, "run", "rolling back to the checkpoint of step 20 and skipping the rows of step 24"), 2);
  EXPECT_EQ(events(two, "skipped", "update skipped"), 2);
  const Losses wanted = losses(good, "run"), found = losses(two, "run");
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(found[i].first, wanted[i].first);
    EXPECT_NEAR(found[i].second, wanted[i].second, 0.02 * wanted[i].second);
  }
}

TEST(Trainer, AStepThatIsNotFiniteEndsTheRun) {
  const SmallRuns runs;
  const Options diverging = {"--optimizer.lr=1e30", "--optimizer.weight_decay=0", "--lr_scheduler.warmup_steps=0"};
  const auto with = [&](const std::string& nonfinite) {
    Options more = diverging;
    more.push_back("--training.nonfinite=" + nonfinite);
    return more;
  };
  EXPECT_THROW(train(runs, "abort", 30, with("abort")), NonFiniteError);
  expect_error([&] { train(runs, "abort2", 30, with("abort")); }, "is not finite at step 2");
  EXPECT_EQ(losses(runs, "abort").size(), 1);
  expect_error([&] { train(runs, "skip", 30, with("skip")); }, "10 updates in a row were skipped");
  EXPECT_EQ(events(runs, "skip", "update skipped"), 10);
}

TEST(Trainer, TracesTheLastStepsOfACycle) {
  const SmallRuns runs;
  Processes alone({}, {});
  run_training(runs.config("traced", {"--training.steps=4", "--profiling.enable_profiling", "--profiling.profile_freq=4",
                                      "--profiling.profiler_active=2", "--profiling.profiler_warmup=1"}),
               alone, "test");
  const std::string trace = testing::read_file(runs / "traced" / "profile_traces" / "iteration_4" / "rank0_trace.json");
  for (const int step : {1, 2, 3, 4}) EXPECT_EQ(trace.find("ProfilerStep#" + std::to_string(step)) != std::string::npos, step > 2) << step;
}

}  // namespace
}  // namespace halftone
