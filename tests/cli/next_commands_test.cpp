#include "halftone/cli/next_commands.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "halftone/config/load.h"
#include "source_dir.h"

namespace halftone {
namespace {

using Strings = std::vector<std::string>;

std::string next_after(const Strings& args, bool resumable = true) {
  RunSummary run;
  run.size = {30, 4};
  run.resumable = resumable, run.step = 30, run.checkpoint = "outputs/my run/checkpoint/step-30", run.device = "cpu";
  return next_commands(args, load_config(args, {1}).config, run);
}

// The line with this comment, without program, subcommand and comment; "" when there is none.
std::string line_of(const std::string& text, const std::string& comment) {
  const size_t end = text.find("   # " + comment);
  if (end == std::string::npos) return "";
  const size_t begin = text.rfind('\n', end) + 1;
  const std::string line = text.substr(begin, end - begin), head = "  build/release/bin/halftone train ";
  return line.starts_with(head) ? line.substr(head.size()) : line;
}

TEST(NextCommands, KeepTheOptionsThatTheUserGave) {
  const std::string file = source_dir() + std::string("/recipes/demo.toml");
  const std::string plain = next_after({"--config", file});
  EXPECT_EQ(line_of(plain, "continue training"), fmt::format("--config {} --training.steps 60", file));
  EXPECT_NE(plain.find("--prompt 'def forward(self, input: Tensor) -> Tensor:'   # your own prompt"), std::string::npos) << plain;
  EXPECT_EQ(line_of(plain, "the same run"),
            fmt::format("--config {} --training.steps 30 --lr_scheduler.warmup_steps 4 --quantize.scheme none --job.dump_folder "
                        "outputs/demo_bf16",
                        file));
  EXPECT_EQ(line_of(plain, "all 750 steps"), fmt::format("--config {} --training.steps 750 --job.dump_folder outputs/demo_full", file));
  const std::string bf16 = next_after({"--config", file, "--quantize.scheme", "none", "--job.dump_folder", "outputs/bf16"});
  EXPECT_EQ(line_of(bf16, "continue training"),
            fmt::format("--config {} --quantize.scheme none --job.dump_folder outputs/bf16 --training.steps 60", file));
  EXPECT_EQ(line_of(bf16, "the same run"), "");
  EXPECT_NE(bf16.find("  rm -r outputs/bf16   #"), std::string::npos);
  EXPECT_NE(bf16.find("--checkpoint 'outputs/my run/checkpoint/step-30' "), std::string::npos);
}

TEST(NextCommands, AWayOnFromAModelAlone) {
  const std::string file = source_dir() + std::string("/recipes/demo.toml");
  const std::string text = next_after({"--config", file, "--job.dump_folder", "outputs/a", "--checkpoint.initial_load_path", "b"}, false);
  EXPECT_EQ(line_of(text, "continue training"), "");
  EXPECT_EQ(
      line_of(text, "another run"),
      fmt::format("--config {} --checkpoint.initial_load_path 'outputs/my run/checkpoint/step-30' --job.dump_folder outputs/a_more", file));
}

TEST(NextCommands, ReplaceWhatTheySetThemselves) {
  const std::string file = source_dir() + std::string("/recipes/demo.toml");
  const std::string text = next_after({"--config=" + file, "--checkpoint.load_step=20", "--training.steps", "30", "--quantize.scheme=mxfp4",
                                       "--quantize.ignore", "output", "--quantize.use-hadamard", "--training.seq_len", "64",
                                       "--training.minutes=3", "--job.dump-folder=outputs/bf16"});
  EXPECT_EQ(line_of(text, "continue training"),
            fmt::format("--config={} --quantize.scheme=mxfp4 --quantize.ignore output --quantize.use-hadamard "
                        "--training.seq_len 64 --job.dump-folder=outputs/bf16 --training.steps 60",
                        file));
  const std::string same = line_of(text, "the same run");
  EXPECT_EQ(same, fmt::format("--config={} --training.seq_len 64 --training.steps 30 --lr_scheduler.warmup_steps 4 --quantize.scheme none "
                              "--job.dump_folder outputs/bf16_bf16",
                              file));
  EXPECT_EQ(line_of(text, "all "), "");
}

TEST(NextCommands, ConvertersAreTakenBackToo) {
  const std::string file = source_dir() + std::string("/recipes/llama3_debug.toml");
  const std::string text = next_after({"--config", file, "--model.converters=quantize.linear.mx",
                                       "--quantize.linear.mx.recipe_name=mxfp8_cublas", "--job.dump_folder", "outputs/mx"});
  EXPECT_EQ(line_of(text, "the same run"),
            fmt::format("--config {} --quantize.scheme none --model.converters '' --job.dump_folder outputs/mx_bf16", file));
  const LoadedConfig back = load_config(Strings{"--config", file, "--quantize.scheme", "none", "--model.converters", ""}, {1});
  EXPECT_TRUE(back.config.model.converters.empty());
}

// A shell parses the printed command back into the same words.
TEST(NextCommands, AreQuotedForAShell) {
  EXPECT_EQ(shell_word("outputs/a-b_c.d"), "outputs/a-b_c.d");
  const Strings words = {"",     "two words", "it's", R"(--model.overrides={"dim":64})", "re:layers\\.(0|5)\\.", "$HOME `x` *",
                         "a\nb", "--x=~"};
  std::string command = "printf '%s|'";
  for (const std::string& word : words) command += " " + shell_word(word);
  std::FILE* shell = popen(command.c_str(), "r");
  ASSERT_NE(shell, nullptr);
  std::string said, expected;
  for (int c = 0; (c = std::fgetc(shell)) != EOF;) said += static_cast<char>(c);
  EXPECT_EQ(pclose(shell), 0);
  for (const std::string& word : words) expected += word + "|";
  EXPECT_EQ(said, expected);
}

}  // namespace
}  // namespace halftone
