// Runs on meshes of GPUs match those of one GPU.
#include <gtest/gtest.h>

#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdio>
#include <cstdlib>

#include "halftone/ops/device.h"
#include "parallel/layouts.h"

namespace halftone {
namespace {

using Options = std::vector<std::string>;

const Options kPlain = {"--quantize.scheme=none"};
Options scheme(const char* name, bool experts = false) {
  Options options = {std::string("--quantize.scheme=") + name};
  if (experts) options.insert(options.end(), {"--quantize.targets=Linear", "--quantize.targets=GroupedExperts"});
  return options;
}
std::string schedule(const char* name) { return std::string("--parallelism.pipeline_parallel_schedule=") + name; }

// Losses of step 1 agree within these bounds, gradient norms within a hundred times as much. The norm is what detects errors: the loss of
// new weights is that of no knowledge, whatever a layer does. In bf16 partial sums of two ranks are rounded before they are added: 1e-4
// of a loss; 1% of a norm would be a wrong term. In float32 only the summation order differs. Later steps amplify the first differences;
// experts whose tokens change their choice, and codes of partial sums, do so more.
constexpr double kRounded = 2e-4, kExact = 1e-5, kChoices = 1e-3, kLater = 1e-2, kCodes = 3e-2;

std::vector<MeshCase> meshes(const std::string& group) {
  const std::string ring = "--parallelism.context_parallel_rotate_method=alltoall", whole = "--parallelism.enable_sequence_parallel=false",
                    by_work = "--parallelism.context_parallel_load_balancer=ptrr",
                    mask = "--parallelism.context_parallel_ptrr_mask_key=sliding_window_mask",
                    room = "--parallelism.expert_parallel_capacity=2",
                    dispatch = "--parallelism.expert_parallel_dispatch_dtype=", op = "--activation_checkpoint.selective_ac_option=op",
                    some = "--activation_checkpoint.mode=selective";
  // {name, world, family, options, recipe, steps, passes, first, others, documents}
  static const std::map<std::string, std::vector<MeshCase>> all = {
      {"tp",
       {{"float32", 2, "llama3", {kTensor2}, kFloat32, 3, 1, kExact, 1e-3},
        {"llama3", 2, "llama3", {kTensor2}, kPlain, 3, 1, kRounded, kLater},
        {"whole_sequences", 2, "llama3", {kTensor2, whole}, kPlain, 3, 1, kRounded, kLater},
        {"gathered_loss", 2, "llama3", {kTensor2, "--parallelism.disable_loss_parallel"}, kPlain, 3, 1, kRounded, kLater},
        {"recomputed", 2, "llama3", {kTensor2, some, op}, kPlain, 3, 2, kRounded, kLater},
        {"qwen3_moe", 2, "qwen3_moe", {kTensor2}, kPlain, 3, 1, kChoices, kLater},
        {"deepseek_v3", 2, "deepseek_v3", {kTensor2}, kPlain, 3, 1, kChoices, kLater},
        {"gpt_oss", 2, "gpt_oss", {kTensor2}, kPlain, 3, 1, kChoices, kLater},
        {"fp8_rowwise", 2, "llama3", {kTensor2}, scheme("fp8_rowwise"), 3, 1, kChoices, kCodes},
        {"fp8_tensorwise", 2, "llama3", {kTensor2}, scheme("fp8_tensorwise"), 3, 1, kChoices, kCodes}}},
      {"cp",
       {{"float32", 2, "llama3", {kContext2}, kFloat32, 3, 1, kExact, 1e-3},
        {"headtail", 2, "llama3", {kContext2}, kPlain, 3, 1, kRounded, kLater},
        {"ring", 2, "llama3", {kContext2, ring}, kPlain, 3, 1, kRounded, kLater},
        {"ptrr_documents", 2, "qwen3", {kContext2, by_work, mask}, kPlain, 3, 1, kRounded, kLater, true},
        {"ring_documents", 2, "llama3", {kContext2, ring, some, op}, kPlain, 3, 1, kRounded, kLater, true},
        {"gpt_oss", 2, "gpt_oss", {kContext2, ring}, kPlain, 3, 1, kChoices, kLater},
        {"deepseek_v3", 2, "deepseek_v3", {kContext2}, kPlain, 3, 1, kChoices, kLater},
        {"fp8_rowwise", 2, "llama3", {kContext2}, scheme("fp8_rowwise"), 3, 1, kChoices, kCodes}}},
      {"pp",
       {{"float32", 2, "llama3", {kPipeline2, kZeroBubble}, kFloat32, 3, 8, kExact, 1e-3},
        {"one_stage", 2, "llama3", {kPipeline2, schedule("1F1B")}, kPlain, 3, 8, kRounded, kLater},
        {"interleaved", 2, "llama3", {kPipeline2, schedule("Interleaved1F1B")}, kPlain, 3, 8, kRounded, kLater},
        {"zero_bubble", 2, "llama3", {kPipeline2, kZeroBubble}, kPlain, 3, 8, kRounded, kLater},
        {"dual_pipe", 2, "llama3", {kPipeline2, schedule("DualPipeV")}, kPlain, 3, 8, kRounded, kLater},
        {"qwen3_moe", 2, "qwen3_moe", {kPipeline2, kZeroBubble}, kPlain, 3, 8, kChoices, kLater},
        {"fp8_rowwise", 2, "llama3", {kPipeline2, kZeroBubble}, scheme("fp8_rowwise"), 3, 8, kChoices, kCodes}}},
      {"ep",
       {{"float32", 2, "qwen3_moe", {kExperts2}, kFloat32, 3, 1, kExact, 1e-3},
        {"qwen3_moe", 2, "qwen3_moe", {kExperts2}, kPlain, 3, 1, kChoices, kLater},
        {"deepseek_v3", 2, "deepseek_v3", {kExperts2}, kPlain, 3, 2, kChoices, kLater},
        {"capacity", 2, "deepseek_v3", {kExperts2, room}, kPlain, 3, 1, kChoices, kLater},
        {"codes", 2, "qwen3_moe", {kExperts2, dispatch + "fp8_rowwise"}, kPlain, 3, 1, 2e-3, 2e-2},
        {"block_codes", 2, "deepseek_v3", {kExperts2, room, dispatch + "mxfp8"}, kPlain, 3, 1, 2e-3, 2e-2},
        {"fp8_rowwise", 2, "qwen3_moe", {kExperts2}, scheme("fp8_rowwise", true), 3, 1, kChoices, kCodes}}},
      {"four",
       {{"fsdp_tp", 4, "llama3", {kTensor2}, kPlain, 3, 1, kRounded, kLater},
        {"pp_fsdp", 4, "llama3", {kPipeline2, kZeroBubble}, kPlain, 3, 4, kRounded, kLater},
        {"cp_fsdp", 4, "llama3", {kContext2, ring}, kPlain, 3, 1, kRounded, kLater},
        {"pp_tp", 4, "llama3", {kPipeline2, kTensor2}, kPlain, 3, 4, kRounded, kLater},
        {"ep_tp", 4, "qwen3_moe", {kExperts2, kTensor2}, kPlain, 3, 1, kChoices, kLater}}},
  };
  return all.at(group);
}

double off(double a, double b) { return std::abs(a / b - 1); }

// All cases of a group, so that GPUs and programs start once. Differences from one process are reported at the end; an error stops all.
void run_meshes(const Rank& rank, const std::string& group, at::Device device) {
  std::string problems;
  for (const MeshCase& c : meshes(group)) {
    const auto [results, reference] = run_mesh(rank, c, device, 128);
    const StepResult &got = results[0], &expected = reference[0];
    if (rank.rank == 0)
      std::printf("%s on %s: loss of step 1 off by %.1e, gradient norm by %.1e, loss of step %zu by %.1e\n", c.name.c_str(), group.c_str(),
                  off(got.loss_sum, expected.loss_sum), off(got.grad_norm, expected.grad_norm), results.size(),
                  off(results.back().loss_sum, reference.back().loss_sum));
    std::fflush(stdout);
    try {
      check_close(results, reference, c.first, c.others, c.name);
    } catch (const Error& error) {
      problems += std::string(problems.empty() ? "" : "; ") + error.what();
    }
  }
  check(problems.empty(), "{}", problems);
}

constexpr const char* kGroup = "HALFTONE_TEST_MESHES";  // group to run in child processes
const comm::Ranks kMeshes("meshes", [](const Rank& rank) {
  be_quiet(4);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);  // as the program does (cli/early_environment.cpp)
  const at::Device device = select_device("cuda", static_cast<int>(rank.rank));
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  run_meshes(rank, std::getenv(kGroup), device);
});

class CudaMeshes : public testing::TestWithParam<std::string> {};
TEST_P(CudaMeshes, TrainAsOneGpu) {
  const int64_t world = meshes(GetParam()).front().world;
  try {
    select_device("cuda", static_cast<int>(world) - 1);
  } catch (const Error& error) {
    GTEST_SKIP() << world << " GPUs are missing: " << error.what();
  }
  setenv(kGroup, GetParam().c_str(), 1);
  for (const comm::Outcome& outcome : comm::run_ranks("meshes", world)) {
    EXPECT_EQ(outcome.status, 0) << outcome.said;
    if (outcome.status == 0) std::printf("%s", outcome.said.c_str());
  }
}
INSTANTIATE_TEST_SUITE_P(All, CudaMeshes, testing::Values("tp", "cp", "pp", "ep", "four"), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace halftone
