#include "halftone/parallel/pipeline.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "parallel/layouts.h"

namespace halftone::pipeline_test {
namespace {

using comm::run_ranks;

const std::string kLlama =
    R"(--model.overrides={"dim":64,"n_layers":6,"n_heads":2,"n_kv_heads":1,"ffn_dim":96,"vocab_size":256,"tied":false})";
const std::string kExperts =
    R"(--model.overrides={"dim":64,"n_layers":6,"n_heads":2,"n_kv_heads":1,"head_dim":32,"ffn_dim":96,"vocab_size":256,"tied":false,)"
    R"("num_experts":4,"experts_per_token":2,"expert_ffn_dim":32,"dense_layers":1,"balance":0.001})";
constexpr int64_t kPlaces = 32;  // per row

struct Case {
  std::string name;
  std::vector<std::string> model = kFloat32;  // also the single process's model
  std::vector<std::string> parallel = {};
  int64_t microbatches = 8;  // per step, over all data-parallel ranks; one row each
  int64_t steps = 3;
  double first = 1e-6, others = 1e-4;
};

JobConfig config_of(const Case& c, int64_t pp, int64_t processes) {
  std::vector<std::string> options = c.model;
  if (std::none_of(options.begin(), options.end(), [](const auto& o) { return o.starts_with("--model.overrides"); }))
    options.push_back(kLlama);
  if (pp > 1) {
    options.push_back("--parallelism.pipeline_parallel_degree=" + std::to_string(pp));
    options.insert(options.end(), c.parallel.begin(), c.parallel.end());
  }
  return small_config(options, processes);
}

// Micro-batches of one row, some of whose labels are ignored; those of rank `index` of `processes`.
std::vector<MicroBatch> rows_of(int64_t step, int64_t microbatches, int64_t index, int64_t processes) {
  at::manual_seed(700 + static_cast<uint64_t>(step));
  const at::Tensor all = at::randint(kSmallVocabulary, {microbatches, kPlaces + 1}, at::kLong);
  std::vector<MicroBatch> batches;
  for (int64_t i = index; i < microbatches; i += processes) {
    MicroBatch& b = batches.emplace_back();
    b.input.tokens = all.narrow(0, i, 1).narrow(1, 0, kPlaces).contiguous(), b.labels = all.narrow(0, i, 1).narrow(1, 1, kPlaces).clone();
    b.labels.narrow(1, 0, i).fill_(-100);
    b.valid_labels = kPlaces - i, b.first_row = i * kPlaces;
  }
  return batches;
}

struct Results {
  std::vector<StepResult> steps;
  double evaluation = 0;  // of this rank
};

Results train(Engine& engine, const Case& c, int64_t index, int64_t processes) {
  engine.initialize();
  Results results;
  for (int64_t step = 1; step <= c.steps; ++step) {
    int64_t valid = 0;
    for (const MicroBatch& b : rows_of(step, c.microbatches, 0, 1)) valid += b.valid_labels;
    engine.accumulate(rows_of(step, c.microbatches, index, processes), step, valid);
    engine.update(1);
    results.steps.push_back(engine.result());
  }
  results.evaluation = engine.evaluate(rows_of(0, c.microbatches, index, processes));
  return results;
}

Engine::Options options_of(parallel::Axes* axes) {
  Engine::Options options = small_options();
  options.positions = kPlaces, options.axes = axes;
  return options;
}

void compare(const Rank& rank, const Case& c, int64_t pp) {
  const JobConfig config = config_of(c, pp, rank.world);
  comm::Watch watch = rank.watch();
  const parallel::Mesh mesh(config.parallelism, rank.world);
  parallel::DataParallelOptions data;
  data.reshard = parallel::reshards(config.parallelism);
  parallel::Axes axes(watch, mesh, config.parallelism, data);
  Engine engine(config, options_of(&axes)), one(config_of(c, 1, 1), options_of(nullptr));
  for (const nn::Parameter* p : engine.store().parameters()) check(axes.pipeline()->has(*p), "{}: {} is of another stage", c.name, p->fqn);
  check(engine.store().parameters().size() < one.store().parameters().size(), "{}: this rank has all parameters", c.name);
  const Results got = train(engine, c, mesh.coordinate(rank.rank, "batch"), mesh.size("batch")), expected = train(one, c, 0, 1);
  check_close(got.steps, expected.steps, c.first, c.others, c.name);
  for (size_t i = 0; i < got.steps.size(); ++i) {
    const StepResult &a = got.steps[i], &b = expected.steps[i];
    check(a.experts.size() == b.experts.size(), "{}: loads of {} layers", c.name, a.experts.size());
    for (size_t l = 0; l < a.experts.size(); ++l) {
      check(i > 0 || (a.experts[l].bias == b.experts[l].bias && a.experts[l].share == b.experts[l].share), "{}: load of {} differs", c.name,
            a.experts[l].layer);
    }
  }
  at::Tensor sum = at::full({1}, got.evaluation, at::kDouble);
  axes.data().sum(sum);
  check(std::abs(sum.item<double>() / expected.evaluation - 1) <= c.others, "{}: evaluation gives {}, in one process {}", c.name,
        sum.item<double>(), expected.evaluation);
}

std::vector<std::string> schedule(const std::string& name) { return {"--parallelism.pipeline_parallel_schedule=" + name}; }

const comm::Ranks kSchedules("pipeline schedules", [](const Rank& rank) {
  be_quiet();
  compare(rank, {.name = "1F1B", .parallel = schedule("1F1B"), .steps = 20}, rank.world);
  for (const char* name : {"GPipe", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"})
    compare(rank, {.name = name, .parallel = schedule(name), .steps = 5}, rank.world);
});

const comm::Ranks kOptions("pipeline options", [](const Rank& rank) {
  be_quiet();
  const auto with = [](std::vector<std::string> a, std::initializer_list<std::string> more) { return a.insert(a.end(), more), a; };
  compare(rank,
          {.name = "recomputed", .model = with(kFloat32, {"--activation_checkpoint.mode=full"}), .parallel = schedule("ZBVZeroBubble")},
          rank.world);
  compare(
      rank,
      {.name = "selective", .model = with(kFloat32, {"--activation_checkpoint.mode=selective"}), .parallel = schedule("Interleaved1F1B")},
      rank.world);
  compare(rank,
          {.name = "budget",
           .model = with(kFloat32, {"--activation_checkpoint.mode=memory_budget", "--activation_checkpoint.memory_budget=0.6"}),
           .parallel = schedule("ZBVZeroBubble")},
          rank.world);
  compare(rank, {.name = "few", .parallel = schedule("Interleaved1F1B"), .microbatches = 3}, rank.world);
  const std::string file = (rank.folder / "schedule.csv").string();
  if (rank.rank == 0) {
    std::ofstream(file + ".new")
        << "0F0,0F1,3F0,3I0,0F2,3W0,0B0,3F1,3B1,3F2,3I2,0I1,3W2,0W1,0B2\n1F0,2F0,1F1,2F1,2I0,1F2,1B0,2W0,2F2,2B1,2B2,1B1,1B2\n";
    std::filesystem::rename(file + ".new", file);
  }
  while (!std::filesystem::exists(file)) {}
  compare(rank,
          {.name = "file",
           .parallel = with(schedule("PipelineScheduleMulti"), {"--parallelism.pipeline_parallel_schedule_csv=" + file}),
           .microbatches = 6},
          rank.world);
  compare(rank,
          {.name = "named",
           .parallel = {R"(--parallelism.module_fqns_per_model_part=[["tok_embeddings"],["layers.0","layers.1",)"
                        R"("layers.2","layers.3","layers.4","layers.5","norm","output"]])"}},
          rank.world);
});

const comm::Ranks kRecipes("pipeline recipes", [](const Rank& rank) {
  be_quiet();
  for (const char* scheme : {"int8", "mxfp4", "none"}) {
    compare(rank,
            {.name = scheme,
             .model = {std::string("--quantize.scheme=") + scheme},
             .parallel = schedule("ZBVZeroBubble"),
             .first = 1e-6,
             .others = 2e-2},
            rank.world);
  }
  for (const char* name : {"1F1B", "InterleavedZeroBubble"}) {
    std::vector<std::string> model = kFloat32;
    model.insert(model.end(), {"--model.name=qwen3_moe", kExperts});
    compare(rank, {.name = std::string("experts ") + name, .model = model, .parallel = schedule(name)}, rank.world);
  }
});

const comm::Ranks kSharded("pipeline with shards", [](const Rank& rank) {
  be_quiet();
  for (const char* name : {"1F1B", "ZBVZeroBubble", "DualPipeV"}) {
    for (const char* reshard : {"default", "always"}) {
      std::vector<std::string> options = schedule(name);
      options.push_back(std::string("--parallelism.fsdp_reshard_after_forward=") + reshard);
      compare(rank, {.name = std::string(name) + reshard, .parallel = options, .steps = 20}, 2);
    }
  }
  compare(rank, {.name = "int8", .model = {"--quantize.scheme=int8"}, .parallel = schedule("ZBVZeroBubble"), .others = 2e-2}, 2);
});

const comm::Ranks kFour("pipeline of four", [](const Rank& rank) {
  be_quiet();
  for (const char* name : {"1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"})
    compare(rank, {.name = name, .parallel = schedule(name), .steps = 20}, rank.world);
});

// One line, the same on all ranks.
const comm::Ranks kFaults("pipeline faults", [](const Rank& rank) {
  be_quiet();
  compare(rank, {.name = "stages", .parallel = {"--parallelism.pipeline_parallel_layers_per_stage=3"}}, rank.world);
});

TEST(Pipeline, EverySchedulesTrainsAsOne) { expect_success("pipeline schedules", 2); }
TEST(Pipeline, RecomputesAndReadsFiles) { expect_success("pipeline options", 2); }
TEST(Pipeline, TrainsRecipesAndExperts) { expect_success("pipeline recipes", 2); }
TEST(Pipeline, StagesThatDoNotFitAreAnError) {
  for (const comm::Outcome& outcome : run_ranks("pipeline faults", 2)) {
    EXPECT_EQ(outcome.status, 2);
    EXPECT_NE(outcome.said.find("parallelism.pipeline_parallel_layers_per_stage = 3 makes 3 stages"), std::string::npos) << outcome.said;
    EXPECT_EQ(std::count(outcome.said.begin(), outcome.said.end(), '\n'), 1) << outcome.said;
  }
}
TEST(PipelineDistributed, TrainsWithShards) { expect_success("pipeline with shards", 4); }
TEST(PipelineDistributed, FourRanksTrainAsOne) { expect_success("pipeline of four", 4); }

}  // namespace
}  // namespace halftone::pipeline_test
