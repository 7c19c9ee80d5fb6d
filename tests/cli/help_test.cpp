#include <gtest/gtest.h>

#include "halftone/base/error.h"
#include "halftone/cli/commands.h"
#include "halftone/cli/config_command.h"

namespace halftone {
namespace {

using Strings = std::vector<std::string>;

std::string printed(int (*command)(Arguments), const Strings& args) {
  testing::internal::CaptureStdout();
  const int status = command(args);
  const std::string out = testing::internal::GetCapturedStdout();
  EXPECT_EQ(status, 0);
  return out;
}

// Behind other options, too, before anything is read or run.
TEST(Help, IsGivenWhereverItIsAskedFor) {
  for (const char* ask : {"--help", "-h"}) {
    for (const auto& [command, name] :
         {std::pair{&train_command, "halftone train --config FILE"}, {&config_command, "halftone config [--config FILE]"}}) {
      for (const Strings& args : {Strings{ask}, Strings{"--config", "none.toml", ask}, Strings{ask, "--training.steps", "3"}}) {
        const std::string out = printed(command, args);
        EXPECT_TRUE(out.starts_with(name)) << out.substr(0, 80);
        EXPECT_NE(out.find("\n[training]"), std::string::npos);
        EXPECT_NE(out.find("\n[quantize]"), std::string::npos);
      }
      const std::string section = printed(command, {"--config", "none.toml", ask, "quantize"});
      EXPECT_TRUE(section.starts_with("[quantize]")) << section.substr(0, 80);
      EXPECT_EQ(section.find("[training]"), std::string::npos);
      EXPECT_THROW(command(Strings{ask, "quantise"}), Error);
    }
    EXPECT_NE(printed(formats_command, {ask}).find("--show"), std::string::npos);
  }
}

}  // namespace
}  // namespace halftone
