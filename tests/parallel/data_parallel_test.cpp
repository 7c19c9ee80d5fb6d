#include "halftone/parallel/plan.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "comm/ranks.h"
#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/ops/device.h"
#include "train/small_engine.h"

namespace halftone {
namespace {

using comm::Rank;
using comm::run_ranks;

constexpr int64_t kRows = 24;  // of a step, over all processes

// How a run is spread over processes.
struct Layout {
  const char* name;
  std::vector<std::string> options;  // of [parallelism] and others
  int64_t passes = 1;                // micro-batches of a step
  std::string model = "";

  JobConfig together(std::vector<std::string> more, int64_t processes) const {
    more.insert(more.end(), options.begin(), options.end());
    return alone(std::move(more), processes);
  }
  // For one process.
  JobConfig alone(std::vector<std::string> more, int64_t processes = 1) const {
    if (!model.empty()) more.push_back(model);
    return small_config(more, processes);
  }
};

// Rows of a step, the same in every process; some of their labels are ignored, and all of the last one's.
MicroBatch rows_of(int64_t step, int64_t first, int64_t count, at::Device device) {
  at::manual_seed(1000 + static_cast<uint64_t>(step));
  const at::Tensor all = at::randint(kSmallVocabulary, {kRows, kSmallPositions + 1}, at::kLong);
  MicroBatch b;
  at::Tensor labels = all.narrow(1, 1, kSmallPositions).clone();
  labels.narrow(1, 0, 3).masked_fill_(all.narrow(1, 0, 3).lt(100), -100);
  labels[kRows - 1].fill_(-100);
  labels = labels.narrow(0, first, count).contiguous();
  b.valid_labels = labels.ge(0).sum().item<int64_t>(), b.first_row = first * kSmallPositions;
  b.input.tokens = all.narrow(0, first, count).narrow(1, 0, kSmallPositions).contiguous().to(device), b.labels = labels.to(device);
  return b;
}

// The micro-batches of process `index` of `processes`.
std::vector<MicroBatch> step_of(int64_t step, int64_t index, int64_t processes, int64_t passes, at::Device device) {
  const int64_t count = kRows / (processes * passes);
  std::vector<MicroBatch> batches;
  for (int64_t a = 0; a < passes; ++a) batches.push_back(rows_of(step, (a * processes + index) * count, count, device));
  return batches;
}

struct Course {
  std::vector<StepResult> steps;
  std::vector<at::Tensor> weights;  // at the end, what this process holds
};

Course train(Engine& engine, int64_t steps, int64_t index, int64_t processes, int64_t passes) {
  Course course;
  for (int64_t step = 1; step <= steps; ++step) {
    int64_t valid = 0;
    for (const MicroBatch& b : step_of(step, 0, 1, 1, at::kCPU)) valid += b.valid_labels;
    engine.accumulate(step_of(step, index, processes, passes, engine.device()), step, valid);
    engine.update(1);
    course.steps.push_back(engine.result());
  }
  for (const nn::Parameter* p : engine.store().parameters()) course.weights.push_back(p->values().to(at::kCPU).to(at::kFloat).clone());
  return course;
}

// One process with the micro-batches of all: its sums differ from theirs in order alone.
Course alone(const JobConfig& config, int64_t steps, int64_t processes, int64_t passes, at::Device device) {
  Engine::Options options = small_options();
  options.device = device;
  Engine engine(config, options);
  engine.initialize();
  return train(engine, steps, 0, 1, processes * passes);
}

// One run in this and the other processes, and the proof that it begins with the weights of a run alone.
Course together(const Rank& rank, const Layout& layout, const JobConfig& config, int64_t steps, at::Device device) {
  const auto store = c10::make_intrusive<c10d::PrefixStore>(layout.name, rank.store());
  comm::Watch watch(store, rank.rank, rank.world, std::chrono::seconds(60), std::chrono::milliseconds(200));
  const comm::Mesh mesh(config.parallelism, rank.world);
  parallel::DataParallelOptions parallel;
  parallel.device = device, parallel.reshard = config.parallelism.fsdp_reshard_after_forward != "never";
  if (config.training.mixed_precision_reduce == "bfloat16") parallel.reduce = at::kBFloat16;
  parallel::Plan plan(watch, mesh, config.parallelism, parallel);
  Engine::Options options = small_options();
  options.device = device, options.plan = &plan;
  Engine engine(config, options);
  engine.initialize();
  Engine::Options plain = small_options();
  plain.device = device;
  Engine one(config, plain);
  one.initialize();
  for (size_t i = 0; i < one.store().parameters().size(); ++i) {
    const nn::Parameter &own = *engine.store().parameters()[i], &whole = *one.store().parameters()[i];
    const at::Tensor expected = whole.values().narrow(0, own.first_row(), own.local_shape()[0]);
    check(at::equal(own.values(), expected), "{}: {} begins with other weights than in one process", layout.name, own.fqn);
  }
  return train(engine, steps, mesh.coordinate(rank.rank, "batch"), mesh.size("batch"), layout.passes);
}

void check_close(const Course& course, const Course& reference, double first, double others, const char* name) {
  for (size_t i = 0; i < course.steps.size(); ++i) {
    const StepResult &got = course.steps[i], &expected = reference.steps[i];
    const double error = std::abs(got.loss_sum / expected.loss_sum - 1), norm = std::abs(got.grad_norm / expected.grad_norm - 1);
    check(got.updated && got.valid_labels == expected.valid_labels, "{}: step {} did not update", name, i + 1);
    check(error <= (i == 0 ? first : others), "{}: loss of step {} is {} off that of one process", name, i + 1, error);
    check(norm <= 100 * (i == 0 ? first : others), "{}: gradient norm of step {} is {} off that of one process", name, i + 1, norm);
    check(got.max_loss >= got.loss_sum / static_cast<double>(got.valid_labels) - 1e-9, "{}: the largest loss is below the mean", name);
  }
}

const std::vector<std::string> kFloat32 = {"--quantize.scheme=none", "--training.mixed_precision_param=float32"};
const std::vector<std::string> kPlain = {"--quantize.scheme=none"};
const std::string kReplicas = "--parallelism.data_parallel_replicate_degree=";
const std::string kTied =
    R"(--model.overrides={"dim":64,"n_layers":3,"n_heads":2,"n_kv_heads":1,"ffn_dim":192,"vocab_size":256,"tied":true})";

std::vector<Layout> layouts(int64_t world) {
  const std::string replicas = kReplicas + std::to_string(world), never = "--parallelism.fsdp_reshard_after_forward=never";
  if (world == 8) return {{"ddp", {replicas}}, {"fsdp", {}}, {"hsdp", {kReplicas + "2"}}};  // each takes its time
  std::vector<Layout> result = {
      {"ddp", {replicas}}, {"fsdp", {}}, {"never", {never}}, {"recomputed", {"--activation_checkpoint.mode=full"}}, {"tied", {}, 1, kTied}};
  if (kRows % (3 * world) == 0) {
    result.push_back({"ddp of 3 passes", {replicas}, 3});
    result.push_back({"fsdp of 3 passes", {}, 3});
    result.push_back({"never of 3 passes", {never}, 3});
  }
  if (world == 4) result.push_back({"hsdp", {kReplicas + "2"}});
  return result;
}

// Every layout is the run of one process but for the order of sums, and those that add up the same numbers are equal bit for bit.
void train_as_one(const Rank& rank, const std::vector<std::string>& options, double first, double others, at::Device device) {
  std::map<std::string, Course> courses;
  for (const Layout& layout : layouts(rank.world)) {
    courses[layout.name] = together(rank, layout, layout.together(options, rank.world), 20, device);
    check_close(courses[layout.name], alone(layout.alone(options), 20, rank.world, layout.passes, device), first, others, layout.name);
  }
  if (!device.is_cpu()) return;
  for (const auto& [a, b] :
       {std::pair{"ddp", "fsdp"}, {"fsdp", "never"}, {"fsdp", "recomputed"}, {"ddp of 3 passes", "never of 3 passes"}}) {
    if (!courses.contains(a) || !courses.contains(b)) continue;
    for (size_t i = 0; i < courses[a].steps.size(); ++i) {
      const StepResult &x = courses[a].steps[i], &y = courses[b].steps[i];
      check(x.loss_sum == y.loss_sum, "loss of step {}: {} with {}, {} with {}", i + 1, x.loss_sum, a, y.loss_sum, b);
    }
  }
}

// Quantised weights are those of one process; what differs is the order of sums.
void train_in(const Rank& rank, const std::vector<std::string>& schemes, at::Device device) {
  for (const std::string& scheme : schemes) {
    const bool file = scheme.ends_with(".yaml");
    const std::vector<std::string> recipe = {"--quantize.scheme=" + (file ? "none" : scheme), "--quantize.recipe=" + (file ? scheme : "")};
    const Layout fsdp{scheme.c_str(), {}};
    check_close(together(rank, fsdp, fsdp.together(recipe, rank.world), 3, device), alone(fsdp.alone(recipe), 3, rank.world, 1, device),
                1e-6, 2e-2, scheme.c_str());
  }
}

// Weights that are set on their grid points by scales of whole weights, of which each process holds a part.
void train_without_oscillation(const Rank& rank) {
  const Layout fsdp{"oscillation", {}};
  const std::vector<std::string> recipe = {"--quantize.scheme=nvfp4", "--quantize.deosc_step=1", "--quantize.deosc_period=2"};
  check_close(together(rank, fsdp, fsdp.together(recipe, rank.world), 6, at::kCPU), alone(fsdp.alone(recipe), 6, rank.world, 1, at::kCPU),
              1e-6, 2e-2, fsdp.name);
}

void be_quiet(int threads = 1) {
  at::set_num_threads(threads);
  set_log_enabled(false);
}

const comm::Ranks kTrainAsOne("train as one", [](const Rank& rank) {
  be_quiet();
  train_as_one(rank, kFloat32, 1e-6, 1e-5, at::kCPU);
});
const comm::Ranks kSomeRecipes("some recipes", [](const Rank& rank) {
  be_quiet();
  train_in(rank, {"none", "int8", "fp8_rowwise", "int8_weight"}, at::kCPU);
  train_without_oscillation(rank);
});
// Every file of recipes/precision, which has all schemes.
std::vector<std::string> recipe_files() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(source_dir()) / "recipes/precision"))
    files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  return files;
}
const comm::Ranks kAllRecipes("all recipes", [](const Rank& rank) {
  be_quiet();
  train_in(rank, recipe_files(), at::kCPU);
});
// Reductions in bfloat16; weights and moments in it, with stochastic rounding.
const comm::Ranks kBfloat16("bfloat16", [](const Rank& rank) {
  be_quiet();
  const Layout reduced{"reductions", {"--training.mixed_precision_reduce=bfloat16"}};
  const Layout stored{"weights", {"--training.dtype=bfloat16", "--optimizer.stochastic_rounding", "--optimizer.state_dtype=bfloat16"}};
  for (const Layout& layout : {reduced, stored}) {
    check_close(together(rank, layout, layout.together(kPlain, rank.world), 5, at::kCPU),
                alone(layout.together(kPlain, 1), 5, rank.world, 1, at::kCPU), 1e-6, 1e-2, layout.name);
  }
});
const comm::Ranks kDevices("devices", [](const Rank& rank) {
  be_quiet(4);
  const at::Device device = select_device("cuda", static_cast<int>(rank.rank));
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  train_as_one(rank, kPlain, 1e-5, 1e-3, device);
  train_in(rank, {"int8", "fp8_tensorwise", "fp8_rowwise", "mxfp8_e4m3", "mxfp4", "nvfp4", "int8_weight"}, device);
});

void expect_success(const char* name, int64_t world) {
  for (const comm::Outcome& outcome : run_ranks(name, world)) EXPECT_EQ(outcome.status, 0) << world << " processes: " << outcome.said;
}

TEST(DataParallel, TrainsAsOne) { expect_success("train as one", 2); }
TEST(DataParallel, TrainsInRecipes) { expect_success("some recipes", 2); }
TEST(DataParallel, TrainsInBfloat16) { expect_success("bfloat16", 2); }
TEST(DataParallelDistributed, TrainsAsOne) {
  for (const int64_t world : {3, 4, 8}) expect_success("train as one", world);
}
TEST(DataParallelDistributed, TrainsInAllRecipes) { expect_success("all recipes", 2); }
TEST(DataParallel, CudaDevicesTrainAsOne) {
  int64_t devices = 0;
  try {
    devices = select_device("cuda", 1).index() + 1;
  } catch (const Error& error) {
    GTEST_SKIP() << "two GPUs are missing: " << error.what();
  }
  expect_success("devices", devices);
}

}  // namespace
}  // namespace halftone
