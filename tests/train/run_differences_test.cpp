#include "halftone/train/run_differences.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "checkpoint/support.h"
#include "halftone/checkpoint/store.h"
#include "halftone/train/run_state.h"
#include "train/small_engine.h"

namespace halftone {
namespace {

using Json = nlohmann::json;
using Strings = std::vector<std::string>;

const std::string kHead = "training_stage:\n  lpt_modifiers:\n    LowPrecisionTrainingModifier:\n";

class RunDifferences : public ::testing::Test {
 protected:
  // Writes a recipe file and returns a run's options with it.
  Strings recipe(const std::string& name, const std::string& arguments) {
    testing::write_file(folder_ / name, kHead + arguments);
    return {"--quantize.scheme=none", "--quantize.recipe=" + (folder_ / name).string()};
  }

  // A step that a run of these options wrote, its state.json changed by `edit`.
  LoadedStep step_of(const Strings& options, const std::function<void(Json&)>& edit = {}, const CheckpointRanks& ranks = {}) {
    const JobConfig config = small_config(options);
    Engine engine(config, small_options());
    engine.initialize();
    CheckpointOptions c;
    c.folder = folder_ / ("run" + std::to_string(runs_++)), c.ranks = ranks;
    CheckpointStore store(c);
    store.prepare();
    RunProgress progress;
    progress.step = 3;
    StepState state = collect_state(engine, progress, Json::object(), config, true);
    if (edit) {
      Json json = Json::parse(state.state_json);
      edit(json);
      state.state_json = json.dump();
    }
    store.save(state, true);
    return store.open(3);
  }

  Strings differences(const JobConfig& config, const LoadedStep& step) {
    Strings found = arithmetic_differences(config, step);
    for (std::string& line : found) {
      const std::string prefix = folder_.path().string() + "/";
      for (size_t at; (at = line.find(prefix)) != std::string::npos;) line.erase(at, prefix.size());
    }
    return found;
  }
  Strings differences(const Strings& options, const LoadedStep& step) { return differences(small_config(options), step); }

  testing::TemporaryFolder folder_;

 private:
  int runs_ = 0;
};

TEST_F(RunDifferences, DefaultsOfAnotherVersion) {
  const Strings nvfp4 = {"--quantize.scheme=nvfp4"};
  const LoadedStep older = step_of(nvfp4, [](Json& state) {
    state["formats"] = {"quantize: nvfp4 on 14 Linear", "quantize: nvfp4 with use_2dblock_w, deosc_step = 2000"};
  });
  Engine engine(small_config(nvfp4), small_options());
  const Strings found = default_differences(engine.recipe_lines(), older);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_NE(found[0].find("it was 'quantize: nvfp4 with use_2dblock_w, deosc_step = 2000'"), std::string::npos) << found[0];
  EXPECT_NE(found[0].find("scale_choice = four_over_six"), std::string::npos) << found[0];
  EXPECT_EQ(default_differences(engine.recipe_lines(), step_of(nvfp4)), Strings{});
  EXPECT_EQ(default_differences(engine.recipe_lines(), step_of(nvfp4, [](Json& state) { state.erase("formats"); })), Strings{});
}

TEST_F(RunDifferences, RecipeFilesByWhatTheySay) {
  const Strings a = recipe("a.yaml", "      scheme: mxfp4\n      use_hadamard: false\n");
  const JobConfig started = small_config(a);
  const LoadedStep step = step_of(a);
  EXPECT_EQ(differences(started, step), Strings{});
  EXPECT_EQ(differences(recipe("b.yaml", "      # the same\n      use_hadamard: False\n      scheme: 'mxfp4'\n"), step), Strings{});
  EXPECT_EQ(differences(recipe("two.yaml",
                               "      scheme: mxfp4\n      use_hadamard: false\n      targets: [\"re:.*wq\"]\n"
                               "  more_modifiers:\n    LowPrecisionTrainingModifier: {scheme: int8, targets: [\"re:.*wk\"]}\n"),
                        step),
            (Strings{"two.yaml has 2 modifiers, it had 1", R"(two.yaml:3: targets is ["re:.*wq"], it was ["Linear"])"}));
  EXPECT_EQ(differences(recipe("a.yaml", "      scheme: mxfp4\n      use_hadamard: true\n"), step),
            Strings{"a.yaml:3: use_hadamard is true, it was false"});
  // A run means the text that it was started with, whatever becomes of the file.
  EXPECT_EQ(differences(started, step), Strings{});
  std::filesystem::remove(folder_ / "a.yaml");
  EXPECT_EQ(differences(started, step), Strings{});
  EXPECT_NO_THROW(Engine(started, small_options()));
}

TEST_F(RunDifferences, StepsWithoutATextOrWithAnUnreadableOne) {
  const Strings a = recipe("a.yaml", "      scheme: mxfp4\n"), b = recipe("b.yaml", "      scheme: mxfp4\n");
  const LoadedStep old = step_of(a, [](Json& state) { state.erase("recipe"); });
  EXPECT_EQ(differences(a, old), Strings{});
  EXPECT_EQ(differences(b, old), Strings{R"(quantize.recipe is "b.yaml", it was "a.yaml")"});
  const LoadedStep unreadable = step_of(a, [](Json& state) { state["recipe"] = kHead + "      scheme: mxfp5\n"; });
  EXPECT_EQ(differences(b, unreadable), Strings{"b.yaml named a recipe that this build cannot read"});
}

TEST_F(RunDifferences, DamagedStatesDifferInNothing) {
  for (const char* content : {R"([1, 2])", R"(3)", R"({"quantize": [1]})", R"({"quantize": 7, "model": {"converters": 7}})"}) {
    const LoadedStep damaged = step_of({}, [&](Json& state) { state["config"] = state["model"] = Json::parse(content); });
    EXPECT_EQ(model_differences(*build_model(small_config({}).model, 0).description, damaged), Strings{}) << content;
    EXPECT_NO_THROW(differences(Strings{"--quantize.scheme=int8"}, damaged)) << content;
  }
}

TEST_F(RunDifferences, OptionsDtypesAndTheConvertersInUse) {
  const Strings none = {"--quantize.scheme=none"};
  const auto with = [&](const std::string& option) { return Strings{none[0], option}; };
  const LoadedStep plain = step_of(none);
  EXPECT_EQ(differences(Strings{"--quantize.scheme=int8"}, plain), Strings{R"(quantize.scheme is "int8", it was "none")"});
  EXPECT_EQ(differences(with("--optimizer.lr=1"), plain), Strings{});
  EXPECT_EQ(differences(with("--training.dtype=bfloat16"), plain),
            Strings{R"(training.dtype is "bfloat16", it was "float32": its weights lose precision here)"});
  EXPECT_EQ(differences(none, step_of(with("--training.dtype=bfloat16"))), Strings{R"(training.dtype is "float32", it was "bfloat16")"});
  EXPECT_EQ(differences(with("--training.mixed_precision_param=float32"), plain),
            Strings{R"(training.mixed_precision_param is "float32", it was "bfloat16")"});
  EXPECT_EQ(differences(with("--optimizer.state_dtype=bfloat16"), plain),
            Strings{R"(optimizer.state_dtype is "bfloat16", it was "float32")"});

  Strings float8 = with("--model.converters=quantize.linear.float8");
  EXPECT_EQ(differences(float8, plain), Strings{R"(model.converters is ["quantize.linear.float8"], it was [])"});
  const LoadedStep converted = step_of(float8);
  float8.push_back("--quantize.linear.float8.recipe_name=rowwise");
  EXPECT_EQ(differences(float8, converted), Strings{R"(quantize.linear.float8.recipe_name is "rowwise", it was null)"});
  const LoadedStep idle = step_of(none, [](Json& state) {
    state["config"]["quantize"]["linear"]["mx"]["filter_fqns"] = {"of no converter"};
    state["config"]["quantize"].erase("emulate");  // as a build without that option writes it
  });
  EXPECT_EQ(differences(none, idle), Strings{});
}

// 20 steps of a schedule (all) or 3 are done, and the step has the same loader state.
class TrainingDifferences : public RunDifferences {
 protected:
  static constexpr const char* kSteps = "--training.steps=20";
  static Strings with(Strings more) {
    more.insert(more.begin(), {"--quantize.scheme=none", kSteps, "--lr_scheduler.warmup_steps=2"});
    return more;
  }
  LoadedStep step_at(int64_t epoch, const Strings& more = {}) {
    return step_of(with(more), [&](Json& state) {
      state["lr_scheduler"]["last_epoch"] = epoch;
      state["dataloader"] = loader_;
    });
  }
  Strings training(const Strings& more, const LoadedStep& step) { return training_differences(small_config(with(more)), step, {loader_}); }
  const Json loader_ = {{"source", "a"}, {"documents", "text"}, {"options", "packing=concat"}};
};

TEST_F(TrainingDifferences, TheScheduleAndTheRatesAtTheStep) {
  const LoadedStep step = step_at(20);  // a finished schedule stored as step 3
  EXPECT_EQ(training({}, step), Strings{});
  EXPECT_EQ(training({"--training.steps=40"}, step),
            (Strings{"training.steps is 40, it was 20", "the learning rate at step 4 is 0.0008807, by the former schedule 0.0001603"}));
  EXPECT_EQ(training({"--optimizer.lr=8e-2"}, step),
            (Strings{"optimizer.lr is 0.08, it was 0.0015", "the learning rate at step 4 is 0.008547, by the former schedule 0.0001603"}));
  EXPECT_EQ(training({"--lr_scheduler.decay_type=linear"}, step),
            (Strings{R"(lr_scheduler.decay_type is "linear", it was "cosine")",
                     "the learning rate at step 4 is 0.000225, by the former schedule 0.0001603"}));
  EXPECT_EQ(training({"--training.steps=40", "--lr_scheduler.total_steps=20"}, step), Strings{});
  EXPECT_EQ(training({"--training.steps=40", "--checkpoint.exclude_from_loading=lr_scheduler"}, step).back(),
            "the learning rate at step 4 is 0.00075, by the former schedule 0.0001603");
  // A longer stable phase differs later; a schedule without decay does not depend on the step count.
  const LoadedStep stable = step_at(3, {"--lr_scheduler.decay_ratio=0.5"}), constant = step_at(3, {"--lr_scheduler.decay_ratio=0"});
  EXPECT_EQ(training({"--lr_scheduler.decay_ratio=0.5", "--training.steps=40"}, stable),
            (Strings{"training.steps is 40, it was 20",
                     "the learning rate at step 4 is 0.0015, by the former schedule 0.0015; it first differs at step 12"}));
  EXPECT_EQ(training({"--lr_scheduler.decay_ratio=0", "--training.steps=40"}, constant), Strings{});
}

TEST_F(TrainingDifferences, OptimizerBatchAndGuards) {
  const LoadedStep step = step_at(3);
  const std::pair<Strings, const char*> cases[] = {
      {{"--optimizer.weight_decay=0"}, "optimizer.weight_decay is 0.0, it was 0.1"},
      {{"--optimizer.beta2=0.99"}, "optimizer.beta2 is 0.99, it was 0.95"},
      {{"--optimizer.name=Adam"}, R"(optimizer.name is "Adam", it was "AdamW")"},
      {{R"(--optimizer.param_groups=[{"pattern": "norm", "optimizer_name": "AdamW", "optimizer_kwargs": {"weight_decay": 0}}])"},
       R"(optimizer.param_groups is [{"optimizer_kwargs":{"weight_decay":0},"optimizer_name":"AdamW","pattern":"norm"}], it was [])"},
      {{"--training.max_norm=inf"}, R"(training.max_norm is "inf", it was 1.0)"},
      {{"--training.spike_factor=3"}, "training.spike_factor is 3.0, it was 0.0"},
      {{"--training.z_loss=0.5"}, "training.z_loss is 0.5, it was 0.0"},
      {{"--training.dataloader.document_positions"}, "training.dataloader.document_positions is true, it was false"},
      {{"--model.attn_mask_type=block_causal"}, R"(model.attn_mask_type is "block_causal", it was null)"},
  };
  for (const auto& [options, line] : cases) EXPECT_EQ(training(options, step), Strings{line});
}

TEST_F(TrainingDifferences, OptionsOfAnotherOptimizerAreNone) {
  const Strings sgd = {"--optimizer.name=SGD"}, nesterov = {sgd[0], "--optimizer.nesterov"};
  EXPECT_EQ(training({"--optimizer.momentum=0.5"}, step_at(3)), Strings{});
  const LoadedStep step = step_at(3, {sgd[0], "--optimizer.eps=1"});
  EXPECT_EQ(training(sgd, step), Strings{});
  EXPECT_EQ(training(nesterov, step), Strings{"optimizer.nesterov is true, it was false"});
  const LoadedStep earlier = step_of(with(sgd), [&](Json& state) {  // of a version that took the momentum from beta1
    state["dataloader"] = loader_, state["lr_scheduler"]["last_epoch"] = 3;
    state["config"]["optimizer"].erase("momentum"), state["config"]["optimizer"]["beta1"] = 0.5;
  });
  EXPECT_EQ(training(sgd, earlier), Strings{"optimizer.momentum is 0.9, it was 0.5"});
  EXPECT_EQ(training({sgd[0], "--optimizer.momentum=0.5"}, earlier), Strings{});
}

// Batches count for each of the ranks that read rows: what they are together is compared.
TEST_F(TrainingDifferences, RowsOfAllRanks) {
  const LoadedStep one = step_at(3);
  EXPECT_EQ(training({"--training.global_batch_size=16"}, one),
            Strings{"the global batch is 16 rows, it was 8 (training.global_batch_size = 16 with 1 data-parallel rank, "
                    "training.global_batch_size = -1, local_batch_size = 8 with 1 before)"});
  EXPECT_EQ(training({"--training.local_batch_size=4", "--training.global_batch_size=8"}, one), Strings{});
  const auto by = [&](int64_t ranks, const Strings& more, const LoadedStep& step, int64_t validation = 0, bool micro_batches = false) {
    return training_differences(small_config(with(more)), step, {loader_, ranks, validation, micro_batches});
  };
  const char* twice =
      "the global batch is 16 rows, it was 8 (training.global_batch_size = -1, local_batch_size = 8 with 2 data-parallel ranks, 1 before)";
  EXPECT_EQ(by(2, {}, one), Strings{twice});
  EXPECT_EQ(by(2, {"--training.local_batch_size=4"}, one), Strings{});
  EXPECT_EQ(by(2, {"--training.local_batch_size=4"}, one, 0, true),
            Strings{"a micro-batch is 4 rows, it was 8 (training.local_batch_size = 4 with 2 data-parallel ranks, "
                    "training.local_batch_size = 8 with 1 before)"});
  // The demo validates 20 batches of 8 rows.
  EXPECT_EQ(
      by(2, {"--training.local_batch_size=4"}, one, 1000),
      Strings{
          "a validation pass is 320 rows, it was 160 (validation.steps = 20, local_batch_size = 8 with 2 data-parallel ranks, 1 before)"});
  EXPECT_EQ(by(2, {"--training.local_batch_size=4"}, one, 160), Strings{}) << "there are no more rows";
  EXPECT_EQ(by(2, {"--training.local_batch_size=4", "--validation.steps=10"}, one, 1000), Strings{});
  EXPECT_EQ(by(1, {"--validation.steps=-1"}, one, 1000),
            Strings{"a validation pass is 1000 rows, it was 160 (validation.steps = -1 with 1 data-parallel rank, "
                    "validation.steps = 20, local_batch_size = 8 with 1 before)"});
  // The mesh of a step says how many ranks there were.
  CheckpointRanks ranks;
  ranks.mesh = {{"dp_replicate", 2}, {"dp_shard", 3}, {"tp", 2}};
  const LoadedStep six = step_of(
      with({}), [&](Json& state) { state["dataloader"] = loader_, state["lr_scheduler"]["last_epoch"] = 3; }, ranks);
  EXPECT_EQ(by(1, {"--training.global_batch_size=48"}, six), Strings{});
  EXPECT_EQ(by(6, {}, six), Strings{});
  EXPECT_EQ(
      by(1, {}, six),
      Strings{"the global batch is 8 rows, it was 48 (training.global_batch_size = -1, local_batch_size = 8 with 1 data-parallel rank, "
              "6 before)"});
}

TEST_F(TrainingDifferences, NothingOfWhatChangesNoResult) {
  const LoadedStep step = step_at(3);
  EXPECT_EQ(training({"--metrics.log_freq=1", "--checkpoint.interval=3", "--job.description=x", "--training.dataloader.num_workers=3",
                      "--training.device=cpu", "--training.global_batch_size=8", "--optimizer.implementation=foreach",
                      "--training.dataloader.add_bos", "--training.dataloader.repeat", "--activation_checkpoint.mode=full"},
                     step),
            Strings{});
  // For data the loader's state decides: a corpus may move.
  const Strings moved = {"--training.dataset_path=elsewhere"};
  EXPECT_EQ(training(moved, step), Strings{});
  Json other = loader_;
  other["source"] = "b";
  EXPECT_EQ(training_differences(small_config(with(moved)), step, {other}).size(), 1u);
  EXPECT_EQ(training_differences(small_config(with({"--training.seq_len=64", "--training.dataloader.packing=first_fit"})), step, {other}),
            (Strings{"training.seq_len is 64, it was 512", R"(training.dataloader.packing is "first_fit", it was "concat")",
                     "training.dataloader.document_positions is true, it was false"}));
  // Before a seed checkpoint nothing was trained, and a damaged state tells nothing.
  const LoadedStep damaged = step_of(with({}), [](Json& state) { state["config"] = Json::parse(R"({"training": [1], "optimizer": 2})"); });
  EXPECT_EQ(training({"--optimizer.lr=1e-2"}, damaged), Strings{});
}

TEST_F(RunDifferences, HyperParametersByName) {
  const LoadedStep step = step_of({});
  ModelConfig model = small_config({}).model;
  EXPECT_EQ(model_differences(*build_model(model, 0).description, step), Strings{});
  model.overrides["n_heads"] = int64_t{4}, model.overrides["depth_init"] = false;
  EXPECT_EQ(model_differences(*build_model(model, 0).description, step), Strings{"model.overrides.n_heads is 4, it was 2"});
  // A converted model has numbers where a flavour has rules.
  const auto description = build_model(small_config({}).model, 0).description;
  const LoadedStep converted = step_of({}, [&](Json& state) {
    Json& theirs = state["model"]["hyper_parameters"];
    for (const char* name : {"head_dim", "ffn_dim"}) theirs[name] = std::get<int64_t>(description->hf_parameters().at(name));
    theirs["multiple_of"] = 1, theirs["max_seq_len"] = 77;
  });
  EXPECT_EQ(model_differences(*description, converted), Strings{});
}

}  // namespace
}  // namespace halftone
