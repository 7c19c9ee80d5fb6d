#include <gtest/gtest.h>

#include <regex>

#include "halftone/base/error.h"
#include "halftone/cli/commands.h"
#include "halftone/cli/config_command.h"
#include "halftone/cli/tokenize_command.h"
#include "halftone/cli/tokenizer_command.h"

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

// Also after other options, before anything is read or run.
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

std::string refusal(int (*command)(Arguments), const Strings& args) {
  try {
    command(args);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Both spellings of every option in a command's help are rejected for the same reason, never as unknown options.
TEST(Options, DashAndUnderscoreAreAlike) {
  struct Case {
    int (*command)(Arguments);
    Strings path;
  };
  const std::regex option("--[a-z][a-z_-]*[_-][a-z_-]*[a-z]");
  int tried = 0;
  for (const Case& c : {Case{&generate_command, {}},
                        {&tokenize_command, {}},
                        {&tokenizer_command, {"train"}},
                        {&tokenizer_command, {"encode"}},
                        {&tokenizer_command, {"decode"}},
                        {&tokenizer_command, {"bench"}},
                        {&bench_command, {"linear"}},
                        {&bench_command, {"mm"}},
                        {&bench_command, {"quantize"}},
                        {&bench_command, {"roofline"}},
                        {&bench_command, {"train"}}}) {
    Strings help = c.path;
    help.emplace_back("--help");
    const std::string text = printed(c.command, help);
    for (std::sregex_iterator at(text.begin(), text.end(), option), end; at != end; ++at) {
      std::string name = at->str(), other = name;
      for (char& letter : std::span(other).subspan(2)) letter = letter == '-' ? '_' : letter == '_' ? '-' : letter;
      // Followed by an unknown option: nothing runs, and only that option is rejected.
      std::vector<std::string> said;
      for (const std::string& spelling : {name, other}) {
        Strings args = c.path;
        args.insert(args.end(), {spelling, "1", "--no-such-option"});
        said.push_back(std::regex_replace(refusal(c.command, args), option, "OPTION"));
        EXPECT_EQ(refusal(c.command, args).find(spelling), std::string::npos) << refusal(c.command, args);
      }
      EXPECT_EQ(said[0], said[1]) << name;
      EXPECT_FALSE(said[0].empty()) << name;
      ++tried;
    }
  }
  EXPECT_GT(tried, 20);
  EXPECT_EQ(printed(train_command, {"--help", "activation-checkpoint"}), printed(train_command, {"--help", "activation_checkpoint"}));
  EXPECT_EQ(printed(config_command, {"--debug.no-deterministic", "--toml"}),
            printed(config_command, {"--debug.no_deterministic", "--toml"}));
  EXPECT_NE(refusal(generate_command, {"--max_new_tokens=x"}).find("--max-new-tokens"), std::string::npos);
}

}  // namespace
}  // namespace halftone
