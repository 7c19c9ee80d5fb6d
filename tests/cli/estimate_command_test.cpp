#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/cli/commands.h"
#include "source_dir.h"

namespace halftone {
namespace {

TEST(EstimateCommand, PrintsOneLineOfJsonAndFailsWhereTheDeviceIsTooSmall) {
  const std::string recipe = (std::filesystem::path(source_dir()) / "recipes" / "bench_gpu.toml").string();
  for (const auto& [layers, status] : {std::pair{"2", 0}, {"32", 3}}) {
    const std::vector<std::string> args = {"--config", recipe, "--device", "h100", "--json", "--model.overrides.n_layers", layers};
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    EXPECT_EQ(estimate_command(args), status);
    const std::string out = testing::internal::GetCapturedStdout(), error = testing::internal::GetCapturedStderr();
    EXPECT_EQ(out.find('\n'), out.size() - 1);
    EXPECT_EQ(nlohmann::json::parse(out).at("fits").get<bool>(), status == 0);
    EXPECT_EQ(error.find("activation_checkpoint.mode = \"full\" saves") != std::string::npos, status != 0) << error;
  }
  EXPECT_THROW(estimate_command(std::vector<std::string>{"--config", recipe, "--device"}), Error);
  EXPECT_THROW(estimate_command(std::vector<std::string>{"--device=h100"}), Error);
}

TEST(EstimateCommand, DrawsTheScheduleOfAPipeline) {
  const std::string recipe = (std::filesystem::path(source_dir()) / "recipes" / "demo.toml").string();
  const std::string file = (std::filesystem::path(testing::TempDir()) / "schedule.svg").string();
  std::vector<std::string> args = {
      "--config", recipe, "--schedule", file, "--parallelism.pipeline_parallel_degree=2", "--training.local_batch_size=2"};
  testing::internal::CaptureStdout();
  EXPECT_EQ(estimate_command(args), 0);
  EXPECT_EQ(testing::internal::GetCapturedStdout(),
            "1F1B: 2 stages on 2 ranks, 2 micro-batches, 33.3% bubbles\n\n"
            "stage 0   on rank 0: tok_embeddings layers.0 - layers.2\n"
            "stage 1   on rank 1: layers.3 - layers.5 norm output\n\n"
            "rank 0   F0 F1       B0---    B1---\n"
            "rank 1      F0 B0--- F1 B1---\n"
            "F forward, B backward, each with its micro-batch\n"
            "Passes whose tensors a rank keeps at most: 2 1\n");
  EXPECT_GT(std::filesystem::file_size(file), 500U);
  args.push_back("--parallelism.pipeline_parallel_degree=1");
  args.erase(args.begin() + 4);
  EXPECT_THROW(estimate_command(args), Error);
}

}  // namespace
}  // namespace halftone
