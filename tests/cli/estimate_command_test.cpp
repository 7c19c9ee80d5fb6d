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

}  // namespace
}  // namespace halftone
