#include "halftone/parallel/axes.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "halftone/ops/device.h"
#include "parallel/layouts.h"

namespace halftone::data_parallel_test {
namespace {

const std::vector<std::string> kPlain = {"--quantize.scheme=none"};
const std::string kReplicas = "--parallelism.data_parallel_replicate_degree=";
const std::string kTied =
    R"(--model.overrides={"dim":64,"n_layers":3,"n_heads":2,"n_kv_heads":1,"ffn_dim":192,"vocab_size":256,"tied":true})";

std::vector<Layout> layouts(int64_t world) {
  const std::string replicas = kReplicas + std::to_string(world), never = "--parallelism.fsdp_reshard_after_forward=never";
  if (world == 8) return {{"ddp", {replicas}}, {"fsdp", {}}, {"hsdp", {kReplicas + "2"}}};  // each takes long
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

// Every layout matches the single-process run except for summation order; layouts that add the same numbers are equal bit for bit.
void train_as_one(const Rank& rank, const std::vector<std::string>& options, double first, double others, at::Device device) {
  std::map<std::string, Results> results;
  std::map<std::pair<int64_t, std::string>, Results> references;  // by what one rank sees of a layout
  for (const Layout& layout : layouts(rank.world)) {
    results[layout.name] = together(rank, layout, layout.together(options, rank.world), 20, device);
    Results& reference = references[{layout.passes, layout.model}];
    if (reference.empty()) reference = alone(layout.alone(options), 20, rank.world, layout, device);
    check_close(results[layout.name], reference, first, others, layout.name);
  }
  if (!device.is_cpu()) return;
  for (const auto& [a, b] :
       {std::pair{"ddp", "fsdp"}, {"fsdp", "never"}, {"fsdp", "recomputed"}, {"ddp of 3 passes", "never of 3 passes"}}) {
    if (!results.contains(a) || !results.contains(b)) continue;
    for (size_t i = 0; i < results[a].size(); ++i) {
      const StepResult &x = results[a][i], &y = results[b][i];
      check(x.loss_sum == y.loss_sum, "loss of step {}: {} with {}, {} with {}", i + 1, x.loss_sum, a, y.loss_sum, b);
    }
  }
}

// Quantised weights equal those of one process; only the summation order differs.
void train_in(const Rank& rank, const std::vector<std::string>& schemes, at::Device device) {
  for (const std::string& scheme : schemes) {
    const std::vector<std::string> recipe = recipe_options(scheme);
    const Layout fsdp{scheme.c_str(), {}};
    check_close(together(rank, fsdp, fsdp.together(recipe, rank.world), 3, device), alone(fsdp.alone(recipe), 3, rank.world, fsdp, device),
                1e-6, 2e-2, scheme.c_str());
  }
}

// De-oscillation with per-tensor scales of sharded weights.
void train_without_oscillation(const Rank& rank) {
  const Layout fsdp{"oscillation", {}};
  const std::vector<std::string> recipe = {"--quantize.scheme=nvfp4", "--quantize.deosc_step=1", "--quantize.deosc_period=2"};
  check_close(together(rank, fsdp, fsdp.together(recipe, rank.world), 6, at::kCPU),
              alone(fsdp.alone(recipe), 6, rank.world, fsdp, at::kCPU), 1e-6, 2e-2, fsdp.name);
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
const comm::Ranks kAllRecipes("all recipes", [](const Rank& rank) {
  be_quiet();
  train_in(rank, recipe_files(false), at::kCPU);
});
// Reductions in bfloat16; weights and moments in bfloat16, with stochastic rounding.
const comm::Ranks kBfloat16("bfloat16", [](const Rank& rank) {
  be_quiet();
  const Layout reduced{"reductions", {"--training.mixed_precision_reduce=bfloat16"}};
  const Layout stored{"weights", {"--training.dtype=bfloat16", "--optimizer.stochastic_rounding", "--optimizer.state_dtype=bfloat16"}};
  const Layout sgd{"SGD", {"--training.dtype=bfloat16", "--optimizer.stochastic_rounding", "--optimizer.name=SGD", "--optimizer.nesterov"}};
  for (const Layout& layout : {reduced, stored, sgd}) {
    check_close(together(rank, layout, layout.together(kPlain, rank.world), 5, at::kCPU),
                alone(layout.together(kPlain, 1), 5, rank.world, layout, at::kCPU), 1e-6, 1e-2, layout.name);
  }
});
const comm::Ranks kDevices("devices", [](const Rank& rank) {
  be_quiet(4);
  const at::Device device = select_device("cuda", static_cast<int>(rank.rank));
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  train_as_one(rank, kPlain, 1e-5, 1e-3, device);
  train_in(rank, {"int8", "fp8_tensorwise", "fp8_rowwise", "mxfp8_e4m3", "mxfp4", "nvfp4", "int8_weight"}, device);
});

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
}  // namespace halftone::data_parallel_test
