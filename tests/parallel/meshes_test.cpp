// Runs on meshes of several axes match those of one process.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>

#include "parallel/layouts.h"

namespace halftone::meshes_test {
namespace {

const std::string kAsync = "--parallelism.enable_async_tensor_parallel";

const std::vector<MeshCase>& meshes() {
  static const std::vector<MeshCase> all = {
      {"tp", 2, "llama3", {kTensor2}},
      {"tp_async", 2, "llama3", {kTensor2, kAsync}},
      {"tp_without_sequence_shards", 2, "llama3", {kTensor2, "--parallelism.enable_sequence_parallel=false"}},
      {"tp_gathered_loss", 2, "llama3", {kTensor2, "--parallelism.disable_loss_parallel"}},
      {"tp_recomputed", 2, "llama3", {kTensor2, "--activation_checkpoint.mode=selective"}},
      {"tp_passes", 2, "qwen3", {kTensor2}, kFloat32, 20, 3},
      {"tp_biases", 2, "qwen2", {kTensor2}},
      {"tp_z_loss",
       2,
       "llama3",
       {kTensor2},
       {"--quantize.scheme=none", "--training.mixed_precision_param=float32", "--training.z_loss=1e-3"}},
      {"pp", 2, "llama3", {kPipeline2}, kFloat32, 20, 6},
      {"pp_experts", 2, "gpt_oss", {kPipeline2, kZeroBubble}, kFloat32, 20, 4},
      {"pp_tp", 4, "llama3", {kPipeline2, kTensor2}, kFloat32, 20, 6},
      {"pp_tp_latent", 4, "deepseek_v3", {kPipeline2, kTensor2, kZeroBubble, "--activation_checkpoint.mode=full"}, kFloat32, 20, 4},
      {"pp_ep", 4, "gpt_oss", {kPipeline2, degree("expert", 2), kZeroBubble}, kFloat32, 10, 4},
      {"pp_fsdp_tp", 8, "llama3", {kPipeline2, kTensor2, kZeroBubble}, kFloat32, 5, 4},
      {"fsdp_tp", 4, "llama3", {kTensor2}},
      {"fsdp_tp_latent", 4, "deepseek_v3", {kTensor2}},
      {"tp_experts", 2, "gpt_oss", {kTensor2}},
      {"pp_tp_async_latent", 4, "deepseek_v3", {kPipeline2, kTensor2, kAsync, kZeroBubble}, kFloat32, 20, 4},
      {"cp_ep", 2, "deepseek_v3", {kContext2, degree("expert", 2)}},
      {"cp_tp", 4, "gpt_oss", {kContext2, kTensor2}},
      {"pp_cp", 4, "llama3", {kPipeline2, kContext2}, kFloat32, 20, 4},
      {"cp_tp_latent", 4, "deepseek_v3", {kContext2, kTensor2, "--parallelism.context_parallel_rotate_method=alltoall"}},
  };
  return all;
}

constexpr const char* kMesh = "HALFTONE_TEST_MESH";  // mesh to run in child processes; unset: all meshes for this many ranks
const comm::Ranks kMeshes("mesh", [](const Rank& rank) {
  be_quiet();
  const char* one = std::getenv(kMesh);
  for (const MeshCase& mesh : meshes()) {
    if (mesh.world != rank.world || (one != nullptr && mesh.name != one)) continue;
    const auto [results, reference] = run_mesh(rank, mesh, at::kCPU);
    check_close(results, reference, mesh.first, mesh.others, mesh.name);
  }
});

// Every file of recipes/precision: only the summation order and, with column-split weights, per-row scales differ.
const std::map<std::string, MeshCase>& meshes_of_recipes() {
  static const std::map<std::string, MeshCase> all = {
      {"tp", {"tp", 2, "llama3", {kTensor2}}},
      {"cp", {"cp", 2, "llama3", {kContext2}}},
      {"pp", {"pp", 2, "llama3", {kPipeline2}, {}, 2, 2}},
      {"ep", {"ep", 2, "qwen3_moe", {degree("expert", 2)}}},
      {"fsdp_tp", {"fsdp_tp", 4, "llama3", {kTensor2}}},
      {"async_tp", {"async_tp", 2, "llama3", {kTensor2, kAsync}}},
  };
  return all;
}

const comm::Ranks kRecipes("recipes on a mesh", [](const Rank& rank) {
  be_quiet();
  const MeshCase& mesh = meshes_of_recipes().at(std::getenv(kMesh));
  for (const std::string& file : recipe_files(mesh.family == "qwen3_moe")) {
    const std::string name = std::filesystem::path(file).stem();
    if (name == "int8_weight" && mesh.name.ends_with("tp")) continue;  // rejected: one scale per row
    MeshCase c = mesh;
    c.name = name, c.recipe = recipe_options(file), c.steps = 2;
    const auto [results, reference] = run_mesh(rank, c, at::kCPU, 128);
    check_close(results, reference, 1e-3, 3e-2, name);
  }
});

class Meshes : public testing::TestWithParam<MeshCase> {
 protected:
  static void run(const MeshCase& mesh) {
    setenv(kMesh, mesh.name.c_str(), 1);
    expect_success("mesh", mesh.world);
  }
};

class RecipesOnMeshesDistributed : public testing::TestWithParam<std::string> {};
TEST_P(RecipesOnMeshesDistributed, Train) {
  setenv(kMesh, GetParam().c_str(), 1);
  expect_success("recipes on a mesh", meshes_of_recipes().at(GetParam()).world);
}
INSTANTIATE_TEST_SUITE_P(All, RecipesOnMeshesDistributed, testing::Values("tp", "cp", "pp", "ep", "fsdp_tp", "async_tp"));

std::vector<MeshCase> of_worlds(int64_t least, int64_t most) {
  std::vector<MeshCase> some;
  for (const MeshCase& p : meshes())
    if (p.world >= least && p.world <= most) some.push_back(p);
  return some;
}
std::string name_of(const testing::TestParamInfo<MeshCase>& info) { return info.param.name; }

TEST_P(Meshes, TrainAsOneProcess) { run(GetParam()); }
// A single start of two processes, which takes a second.
TEST(MeshesOfTwo, TrainAsOneProcess) {
  unsetenv(kMesh);
  expect_success("mesh", 2);
}
INSTANTIATE_TEST_SUITE_P(Distributed, Meshes, testing::ValuesIn(of_worlds(3, 8)), name_of);

}  // namespace
}  // namespace halftone::meshes_test
