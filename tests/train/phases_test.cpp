#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/ops/device.h"
#include "halftone/train/metrics_file.h"
#include "halftone/train/phase_estimates.h"
#include "halftone/train/run_differences.h"
#include "halftone/train/trainer.h"
#include "train/small_engine.h"
#include "train/small_run.h"

namespace halftone::phases_test {
namespace {

using Args = std::vector<std::string>;

constexpr int64_t kSwitch = 7;  // the first step of the second phase
const std::string kFrom = R"("from": 7)";
const Args kAdam = {"--lr_scheduler.warmup_steps=0", "--optimizer.lr=1e-2", "--training.steps=12"};

std::string phases(const std::string& entries) { return "--quantize.phases=[" + entries + "]"; }

Args with(Args a, const Args& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Losses of steps 1 to 12.
std::vector<double> losses(const Args& args, const Engine::Options& options = small_options()) {
  Engine engine(small_config(with(kAdam, args)), options);
  engine.initialize();
  at::manual_seed(5);
  std::vector<double> all;
  for (int64_t step = 1; step <= 12; ++step) {
    std::vector<MicroBatch> batches = small_step();
    for (MicroBatch& b : batches) b.input.tokens = b.input.tokens.to(options.device), b.labels = b.labels.to(options.device);
    all.push_back(engine.step(batches, step, 1.0).loss_sum);
  }
  return all;
}

// Equal before step `first`, and others from it on.
void expect_switch(const std::vector<double>& plain, const std::vector<double>& phased, int64_t first) {
  for (int64_t step = 1; step < first; ++step) EXPECT_EQ(plain[step - 1], phased[step - 1]) << step;
  for (int64_t step = first; step <= 12; ++step) EXPECT_NE(plain[step - 1], phased[step - 1]) << step;
}

struct Case {
  Args first;
  std::string second;
  int64_t differs = kSwitch;  // the first step with another loss
};
const Case kCases[] = {
    {{"--quantize.scheme=mxfp4"}, R"("scheme": "bf16")"},                                       // without codes at the end
    {{"--quantize.scheme=none"}, R"("scheme": "nvfp4")"},                                       // 4 bits from a step on
    {{"--quantize.scheme=int8"}, R"("output": false)"},                                         // forward in the compute dtype
    {{"--quantize.scheme=int8"}, R"("last_layers": 1, "scheme": "mxfp8_e4m3")"},                // by depth
    {{"--quantize.scheme=fp8_blockwise", "--training.dtype=bfloat16"}, R"("scheme": "int4")"},  // QAT of int4
    {{"--quantize.scheme=mxfp4", "--quantize.deosc_step=2", "--quantize.deosc_period=2"},
     R"("wgrad_hp": true, "use_hadamard": false)",
     kSwitch + 1},
};

TEST(Phases, TheRunBeforeTheSwitchIsThatWithoutPhases) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.second);
    expect_switch(losses(c.first), losses(with(c.first, {phases("{" + kFrom + ", " + c.second + "}")})), c.differs);
  }
}

// The steps behind a switch to other schemes are those of a run with them from the start, but for the weights.
TEST(Phases, AnEngineInThePhaseOfAStep) {
  const Args args = {"--quantize.scheme=int8", phases("{" + kFrom + R"(, "scheme": "mxfp4", "preset": "alto"})")};
  at::manual_seed(5);
  const std::vector<MicroBatch> batches = small_step();
  const auto loss = [&](const Args& a, int64_t step) {
    Engine engine(small_config(with(kAdam, a)), small_options());
    engine.initialize();
    engine.enter_phase_of(step);
    return engine.evaluate(batches);
  };
  EXPECT_EQ(loss(args, 6), loss({"--quantize.scheme=int8"}, 1));
  EXPECT_EQ(loss(args, 7), loss({"--quantize.scheme=mxfp4", "--quantize.preset=alto"}, 1));
  EXPECT_NE(loss(args, 6), loss(args, 7));
}

TEST(Phases, ValidationRunsInTheRecipesOfTheLatestStep) {
  Engine engine(small_config(with(kAdam, {"--quantize.scheme=int8", phases("{" + kFrom + R"(, "scheme": "bf16"})")})), small_options());
  engine.initialize();
  at::manual_seed(5);
  const std::vector<MicroBatch> batches = small_step();
  const auto now = [&] { return engine.recipes().phase(); };
  for (int64_t step = 5; step <= 8; ++step) {
    engine.step(batches, step, 1.0);
    engine.evaluate(batches);
    EXPECT_EQ(now(), step >= kSwitch ? 1u : 0u) << step;
  }
  engine.prepare_states(6);  // a rollback
  EXPECT_EQ(now(), 0u);
}

TEST(Phases, RecomputationFollows) {
  const Args budget = {"--activation_checkpoint.mode=memory_budget", "--activation_checkpoint.memory_budget=0.5", "--quantize.scheme=int8",
                       phases("{" + kFrom + R"(, "scheme": "bf16"})")};
  const Args none = {"--quantize.scheme=int8", phases("{" + kFrom + R"(, "scheme": "bf16"})")};
  EXPECT_EQ(losses(budget), losses(none));
}

// A run of the trainer, stopped after the steps given and started again each time.
using testing::SmallRuns;

void train(const SmallRuns& runs, const std::string& name, const std::vector<int64_t>& stops, const Args& more) {
  for (const int64_t steps : stops) {
    Processes alone({}, {});
    const RunSummary s =
        run_training(runs.config(name, with(more, {"--training.steps=" + std::to_string(steps), "--checkpoint.last_save_model_only=false",
                                                   "--metrics.log_freq=1", "--checkpoint.interval=100"})),
                     alone, "test");
    EXPECT_EQ(s.step, steps);
  }
}

std::string state(const SmallRuns& runs, const std::string& name, int64_t step) {
  const std::filesystem::path folder = runs / name / "checkpoint" / ("step-" + std::to_string(step));
  std::string bytes;
  for (const char* file : {"model-0.safetensors", "optim-0.safetensors"}) {
    const std::string text = testing::read_file(folder / file);
    EXPECT_GT(text.size(), 10'000u) << folder / file;
    bytes += text.substr(std::min(text.size(), text.find("}}")));
  }
  return bytes;
}

std::vector<double> logged(const SmallRuns& runs, const std::string& name) {
  std::vector<double> found;
  for (const MetricsLine& line : read_metrics(runs / name / "metrics.jsonl"))
    if (line.kind == "train") found.push_back(*find_scalar(line.scalars, "loss_metrics/global_avg_loss"));
  return found;
}

TEST(Phases, AStoppedRunGoesOnBitForBitBeforeAtAndAfterTheSwitch) {
  const SmallRuns runs;
  int number = 0;
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.second);
    // 16 wide layers of 32 columns, where mxfp4's sizes fit; total_steps is 100, which no entry uses.
    const Args args = with(c.first, {phases("{" + kFrom + ", " + c.second + "}"), "--debug.seed=7",
                                     R"(--model.overrides={"dim":32,"n_layers":2,"n_heads":2,"n_kv_heads":2,"ffn_dim":64})"});
    const std::string name = "run" + std::to_string(number++);
    train(runs, name, {12}, args);
    for (const int64_t stop : {4, 6, 7, 8}) {
      const std::string stopped = name + "-" + std::to_string(stop);
      train(runs, stopped, {stop, 12}, args);
      EXPECT_EQ(logged(runs, stopped), logged(runs, name)) << stop;
      EXPECT_TRUE(state(runs, stopped, 12) == state(runs, name, 12)) << stop;
    }
  }
}

TEST(Phases, AShareOfTheRunIsOneOfTheSchedule) {
  const SmallRuns runs;
  const Args args = {"--quantize.scheme=int8", phases(R"({"from": "6%", "scheme": "bf16"})")};  // lr_scheduler.total_steps is 100
  const Args at_7 = {"--quantize.scheme=int8", phases(R"({"from": 7, "scheme": "bf16"})")};
  train(runs, "share", {5, 12}, args);
  train(runs, "step", {12}, at_7);
  EXPECT_EQ(logged(runs, "share"), logged(runs, "step"));
}

const nlohmann::json kNoRows;

TEST(Phases, AResumeSaysThatAPhaseMoves) {
  const SmallRuns runs;
  const Args args = {"--quantize.scheme=int8", "--lr_scheduler.total_steps=20", "--lr_scheduler.warmup_steps=0",
                     phases(R"({"from": "50%", "scheme": "bf16"})")};
  train(runs, "run", {4}, args);
  const LoadedStep step = LoadedStep::open(runs / "run" / "checkpoint" / "step-4", true);
  const JobConfig same = runs.config("run", with(args, {"--training.steps=10"})).config,
                  other = runs.config("run", with(args, {"--training.steps=10", "--lr_scheduler.total_steps=40"})).config;
  const auto moved = [&](const JobConfig& config) {
    const std::vector<std::string> found = training_differences(config, step, {kNoRows});
    return std::ranges::any_of(found,
                               [](const std::string& s) { return s.find("50% begins at step 21, with the former") != std::string::npos; });
  };
  EXPECT_FALSE(moved(same));
  EXPECT_TRUE(moved(other));
}

// The estimate of a phase includes what the other phases' parameters need, and that of the run is the costliest one.
TEST(Phases, EstimatesOfEveryPhase) {
  const auto config = [](const Args& more) { return small_config(with({"--training.steps=100", "--training.minutes=0"}, more)); };
  const EstimateDevice device = estimate_device("h100", "cuda");
  const JobConfig nvfp4 = config({"--quantize.scheme=nvfp4"}),
                  phased = config({"--quantize.scheme=nvfp4", phases(R"({"from": "90%", "scheme": "bf16"})")});
  const PhaseEstimates one = estimate_phases(nvfp4, kSmallVocabulary, device), two = estimate_phases(phased, kSmallVocabulary, device);
  ASSERT_EQ(one.phases.size(), 1u);
  ASSERT_EQ(two.phases.size(), 2u);
  EXPECT_TRUE(plan_lines(nvfp4, kSmallVocabulary, device.hardware, one).empty());
  EXPECT_GT(two.phases[0].needed_bytes(), one.phases[0].needed_bytes());  // with the compute copies that bf16 reads
  EXPECT_EQ(two.costliest().needed_bytes(), std::max(two.phases[0].needed_bytes(), two.phases[1].needed_bytes()));
  const std::vector<std::string> lines = plan_lines(phased, kSmallVocabulary, device.hardware, two);
  ASSERT_GE(lines.size(), 2u);
  EXPECT_NE(lines[1].find("phase 2 of 2, steps 91 to 100 (from 90%)"), std::string::npos) << lines[1];
}

}  // namespace
}  // namespace halftone::phases_test
