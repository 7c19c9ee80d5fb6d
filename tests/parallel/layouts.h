#pragma once
// Runs of several ranks, compared step by step with single-process runs.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/ranks.h"
#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/parallel/axes.h"
#include "models/small_family.h"
#include "recipe_files.h"
#include "train/small_engine.h"

namespace halftone {

using comm::Rank;

inline const std::vector<std::string> kFloat32 = {"--quantize.scheme=none", "--training.mixed_precision_param=float32"};

inline void be_quiet(int threads = 1) {
  at::set_num_threads(threads);
  set_log_enabled(false);
}

inline void expect_success(const char* name, int64_t world) {
  for (const comm::Outcome& outcome : comm::run_ranks(name, world)) EXPECT_EQ(outcome.status, 0) << world << " processes: " << outcome.said;
}

// Options for a small model of the family, with these sizes and `more` in addition.
inline std::vector<std::string> model_options(const std::string& family, const OptionTable& sizes, const nlohmann::json& more = {}) {
  const auto& all = model_families();
  const auto found = std::ranges::find(all, family, &ModelFamily::name);
  check(found != all.end(), "no family {}", family);
  nlohmann::json overrides = nlohmann::json::object();
  for (const auto& [name, value] : small_family(**found, sizes)) overrides[name] = std::get<int64_t>(value);
  if (!more.is_null()) overrides.update(more);
  return {"--model.name=" + family, "--model.overrides=" + overrides.dump()};
}

inline constexpr int64_t kRows = 24;  // per step, over all ranks

// How a run is distributed over ranks.
struct Layout {
  const char* name;
  std::vector<std::string> options;  // of [parallelism] and other sections
  int64_t passes = 1;                // micro-batches per step
  std::string model = "";
  bool documents = false;  // three in a row
  bool padding = false;    // at the ends of rows

  JobConfig together(std::vector<std::string> more, int64_t processes) const {
    more.insert(more.end(), options.begin(), options.end());
    return alone(std::move(more), processes);
  }
  // Configuration for a single process.
  JobConfig alone(std::vector<std::string> more, int64_t processes = 1) const {
    if (!model.empty()) more.push_back(model);
    return small_config(more, processes);
  }
};

// Rows of a step, the same in every process; some of their labels are ignored, and all of the last one's.
inline MicroBatch rows_of(int64_t step, int64_t first, int64_t count, at::Device device, bool documents, bool padding) {
  at::manual_seed(1000 + static_cast<uint64_t>(step));
  const at::Tensor all = at::randint(kSmallVocabulary, {kRows, kSmallPositions + 1}, at::kLong);
  MicroBatch b;
  at::Tensor labels = all.narrow(1, 1, kSmallPositions).clone();
  labels.narrow(1, 0, 3).masked_fill_(all.narrow(1, 0, 3).lt(100), -100);
  labels[kRows - 1].fill_(-100);
  if (padding) {
    const at::Tensor filled = kSmallPositions - at::arange(kRows).mul_(7).remainder_(40);
    filled[kRows - 1].zero_();
    const at::Tensor pad = at::arange(kSmallPositions).unsqueeze(0).ge(filled.unsqueeze(1));
    labels.masked_fill_(pad, -100), all.narrow(1, 0, kSmallPositions).masked_fill_(pad, 0);
    b.input.padding = pad.narrow(0, first, count).contiguous().to(device);
  }
  labels = labels.narrow(0, first, count).contiguous();
  b.valid_labels = labels.ge(0).sum().item<int64_t>(), b.first_row = first * kSmallPositions;
  b.input.tokens = all.narrow(0, first, count).narrow(1, 0, kSmallPositions).contiguous().to(device), b.labels = labels.to(device);
  if (documents) {
    const at::Tensor start = at::arange(kSmallPositions, at::kInt).floor_divide(24).mul_(24);
    b.input.documents = documents_of(start.unsqueeze(0).expand({count, kSmallPositions}).contiguous(), device);
  }
  return b;
}

// The micro-batches of rank `index` of `processes`.
inline std::vector<MicroBatch> step_of(int64_t step, int64_t index, int64_t processes, const Layout& layout, at::Device device) {
  const int64_t passes = layout.passes;
  const int64_t count = kRows / (processes * passes);
  std::vector<MicroBatch> batches;
  for (int64_t a = 0; a < passes; ++a)
    batches.push_back(rows_of(step, (a * processes + index) * count, count, device, layout.documents, layout.padding));
  return batches;
}

using Results = std::vector<StepResult>;  // its steps

inline Results train(Engine& engine, int64_t steps, int64_t index, int64_t processes, const Layout& layout) {
  Results results;
  for (int64_t step = 1; step <= steps; ++step) {
    int64_t valid = 0;
    Layout whole = layout;
    whole.passes = 1;
    for (const MicroBatch& b : step_of(step, 0, 1, whole, at::kCPU)) valid += b.valid_labels;
    engine.accumulate(step_of(step, index, processes, layout, engine.device()), step, valid);
    engine.update(1);
    results.push_back(engine.result());
  }
  return results;
}

// A single process with the micro-batches of all ranks: its sums differ only in order.
inline Results alone(const JobConfig& config, int64_t steps, int64_t processes, Layout layout, at::Device device) {
  Engine::Options options = small_options();
  options.device = device;
  Engine engine(config, options);
  engine.initialize();
  layout.passes *= processes;
  return train(engine, steps, 0, 1, layout);
}

// One run on all ranks, verified to start from the weights of a single-process run.
inline Results together(const Rank& rank, const Layout& layout, const JobConfig& config, int64_t steps, at::Device device) {
  comm::Watch watch = rank.watch();
  const parallel::Mesh mesh(config.parallelism, rank.world);
  parallel::DataParallelOptions parallel;
  parallel.device = device, parallel.reshard = parallel::reshards(config.parallelism);
  if (config.training.mixed_precision_reduce == "bfloat16") parallel.reduce = at::kBFloat16;
  parallel::Axes axes(watch, mesh, config.parallelism, parallel);
  Engine::Options options = small_options();
  options.device = device, options.axes = &axes;
  Engine engine(config, options);
  engine.initialize();
  Engine::Options plain = small_options();
  plain.device = device;
  Engine one(config, plain);
  one.initialize();
  std::map<std::string, const nn::Parameter*> whole;
  for (const nn::Parameter* p : one.store().parameters()) whole[p->fqn] = p;
  for (const nn::Parameter* own : engine.store().parameters()) {
    at::Tensor expected = whole.at(own->fqn)->values();
    const std::vector<int64_t> first = own->first(), local = own->local_shape();
    for (size_t d = 0; d < local.size(); ++d) expected = expected.narrow(static_cast<int64_t>(d), first[d], local[d]);
    check(at::equal(own->values(), expected), "{}: {} begins with other weights than in one process", layout.name, own->fqn);
  }
  return train(engine, steps, mesh.coordinate(rank.rank, "batch"), mesh.size("batch"), layout);
}

// Compares a distributed run with a single-process one: the first step's loss within `first`, later ones within `others`.
inline void check_close(const Results& results, const Results& reference, double first, double others, const std::string& name) {
  for (size_t i = 0; i < results.size(); ++i) {
    const StepResult &got = results[i], &expected = reference[i];
    const double error = std::abs(got.loss_sum / expected.loss_sum - 1), norm = std::abs(got.grad_norm / expected.grad_norm - 1);
    check(got.updated && got.valid_labels == expected.valid_labels, "{}: step {} did not update", name, i + 1);
    check(error <= (i == 0 ? first : others), "{}: loss of step {} is {} off that of one process", name, i + 1, error);
    check(norm <= 100 * (i == 0 ? first : others), "{}: gradient norm of step {} is {} off that of one process", name, i + 1, norm);
    check(got.max_loss >= got.loss_sum / static_cast<double>(got.valid_labels) - 1e-9, "{}: the largest loss is below the mean", name);
  }
}

// A mesh, what runs on it, and the tolerances against one process.
struct MeshCase {
  std::string name;
  int64_t world;
  std::string family;
  std::vector<std::string> options;
  std::vector<std::string> recipe = kFloat32;
  int64_t steps = 20, passes = 1;
  double first = 1e-6, others = 1e-4;
  bool documents = false, padding = false;
};
inline void PrintTo(const MeshCase& c, std::ostream* out) { *out << c.name; }

inline std::string degree(const char* axis, int64_t n) { return fmt::format("--parallelism.{}_parallel_degree={}", axis, n); }
inline const std::string kTensor2 = degree("tensor", 2), kContext2 = degree("context", 2), kPipeline2 = degree("pipeline", 2),
                         kExperts2 = degree("expert", 2);
inline const std::string kZeroBubble = "--parallelism.pipeline_parallel_schedule=ZBVZeroBubble";

// One model per family: 4 heads, 2 KV heads, a vocabulary that is not divisible by the ranks. `width` 128: every rank's part of a layer
// consists of full blocks of all formats.
inline std::vector<std::string> model_of(const std::string& family, int64_t width = 32) {
  return model_options(family, {{"dim", 2 * width},
                                {"n_heads", int64_t{4}},
                                {"n_kv_heads", int64_t{2}},
                                {"n_layers", int64_t{2}},
                                {"head_dim", width},
                                {"ffn_dim", width == 32 ? 96 : 2 * width},
                                {"vocab_size", int64_t{257}}});
}

// The case's runs on these devices, one per rank, and the single-process run: {together, alone}.
inline std::pair<Results, Results> run_mesh(const Rank& rank, const MeshCase& c, at::Device device, int64_t width = 32) {
  const Layout layout{c.name.c_str(), c.options, c.passes, "", c.documents, c.padding};
  std::vector<std::string> options = c.recipe;
  for (std::string& option : model_of(c.family, width)) options.push_back(std::move(option));
  const JobConfig config = layout.together(options, rank.world);
  const int64_t rows = parallel::Mesh(config.parallelism, rank.world).size("batch");
  return {together(rank, layout, config, c.steps, device), alone(layout.alone(options), c.steps, rows, layout, device)};
}

// Every file of recipes/precision that a model with or without experts supports.
inline std::vector<std::string> recipe_files(bool experts) {
  std::vector<std::string> files;
  for (const std::string& name : recipe_names())
    if (experts || !needs_experts(name)) files.push_back(recipe_file(name).string());
  check(!files.empty(), "no recipes beside {}", recipe_file("").string());
  return files;
}
// The options that select a scheme or a recipe file.
inline std::vector<std::string> recipe_options(const std::string& recipe) {
  const bool file = recipe.ends_with(".yaml");
  return {"--quantize.scheme=" + (file ? "none" : recipe), "--quantize.recipe=" + (file ? recipe : "")};
}

}  // namespace halftone
