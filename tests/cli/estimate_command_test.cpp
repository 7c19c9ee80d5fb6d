#include <gtest/gtest.h>

#include <cstdlib>
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

// A dry run ends as an estimate for that many ranks, before it needs tokenizer, data or GPUs.
TEST(EstimateCommand, ADryRunIsOfSimulatedProcesses) {
  const std::string recipe = (std::filesystem::path(source_dir()) / "recipes" / "llama3_8b.toml").string();
  const auto output = [&](const char* processes, int expected, std::vector<std::string> more) {
    setenv("NGPU", processes, 1);
    more.insert(more.begin(), {"--config", recipe, "--comm.mode=fake_backend"});
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    std::string error;
    int status = 2;
    try {
      status = train_command(more);
    } catch (const Error& e) {
      error = e.what();
    }
    testing::internal::GetCapturedStderr();
    const std::string out = testing::internal::GetCapturedStdout();
    EXPECT_EQ(status, expected) << error;
    return out + error;
  };
  const std::string out = output(
      "16", 0, {"--parallelism.tensor_parallel_degree=2", "--parallelism.pipeline_parallel_degree=2", "--training.local_batch_size=4"});
  for (const char* line : {"mesh of 16 ranks", "  fsdp              4  ranks 0 2 4 6",
                           "stage 1   on rank 8       16 layers: 16 - 31, norm, output", "fsdp gathers: all-gather of BFloat16",
                           "tp: reduce-scatter of BFloat16", "pp streams up: recv of Float", "bubble of the pipeline", "per GPU, MFU"})
    EXPECT_NE(out.find(line), std::string::npos) << line << "\n" << out;
  EXPECT_NE(out.find("layers.*.attention.wq"), std::string::npos);
  output("1", 3, {});  // 8B with its moments
  EXPECT_NE(output("6", 2, {"--parallelism.tensor_parallel_degree=4"}).find("found 6 processes"), std::string::npos);
  EXPECT_NE(output("16", 2, {"--parallelism.tensor_parallel_degree=16"}).find("(8 key-value heads)"), std::string::npos);
  unsetenv("NGPU");

  testing::internal::CaptureStdout();
  EXPECT_EQ(estimate_command(std::vector<std::string>{"--config", recipe, "--device", "h100", "--world=8", "--json"}), 0);
  const auto json = nlohmann::json::parse(testing::internal::GetCapturedStdout());
  EXPECT_EQ(json.at("world").get<int>(), 8);
  EXPECT_GT(json.at("tokens_per_second_per_gpu").get<double>(), 1000);
  EXPECT_THROW(estimate_command(std::vector<std::string>{"--config", recipe, "--world", "many"}), Error);
}

TEST(EstimateCommand, HasAJsonRowForEachPhase) {
  const std::string recipe = (std::filesystem::path(source_dir()) / "recipes" / "bench_gpu.toml").string();
  testing::internal::CaptureStdout();
  EXPECT_EQ(estimate_command(std::vector<std::string>{"--config", recipe, "--device", "h200", "--training.steps=1000", "--json",
                                                      "--quantize.scheme=fp8_rowwise",
                                                      R"(--quantize.phases=[{"from": "90%", "scheme": "bf16"}])"}),
            0);
  const auto json = nlohmann::json::parse(testing::internal::GetCapturedStdout());
  const auto& phases = json.at("phases");
  ASSERT_EQ(phases.size(), 2U);
  EXPECT_EQ(phases[0].at("first_step"), 1);
  EXPECT_EQ(phases[1].at("first_step"), 901);
  EXPECT_LT(phases[0].at("ms_per_step").get<double>(), 0.9 * phases[1].at("ms_per_step").get<double>());
  EXPECT_EQ(phases[1].at("ms_per_step"), json.at("unquantised_ms_per_step"));
}

TEST(EstimateCommand, DrawsTheScheduleOfAPipeline) {
  const std::string recipe = (std::filesystem::path(source_dir()) / "recipes" / "demo.toml").string();
  const std::string file = (std::filesystem::path(testing::TempDir()) / "schedule.svg").string();
  std::vector<std::string> args = {
      "--config", recipe, "--schedule", file, "--parallelism.pipeline_parallel_degree=2", "--training.local_batch_size=2"};
  testing::internal::CaptureStdout();
  EXPECT_EQ(estimate_command(args), 0);
  EXPECT_EQ(testing::internal::GetCapturedStdout(),
            "1F1B: 2 stages on 2 ranks, 2 micro-batches, 36.4% bubbles expected, 33.3% as drawn\n\n"
            "stage 0   on rank 0        3 layers: 0 - 2, tok_embeddings\n"
            "stage 1   on rank 1        3 layers: 3 - 5, norm, output\n\n"
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
