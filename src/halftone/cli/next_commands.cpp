#include "halftone/cli/next_commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>

namespace halftone {
namespace {

constexpr const char* kProgram = "build/release/bin/halftone";

// "--training.local-batch-size=3" is training.local_batch_size (config/command_line.cpp); "" for a value.
std::string option_name(const std::string& word) {
  if (!word.starts_with("--") || word.size() == 2) return "";
  std::string name = word.substr(2, word.find('=') - 2);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// The user's words, each after a blank, without the options that a command sets itself: names, or sections that end in a dot.
std::string words_without(Arguments args, std::initializer_list<std::string_view> replaced) {
  std::string out;
  bool left_out = false;
  for (const std::string& word : args) {
    if (const std::string name = option_name(word); !name.empty()) {
      left_out = std::any_of(replaced.begin(), replaced.end(),
                             [&](std::string_view r) { return r.ends_with('.') ? name.starts_with(r) : name == r; });
    }
    if (!left_out) out += " " + shell_word(word);
  }
  return out;
}

}  // namespace

std::string shell_word(const std::string& word) {
  constexpr std::string_view kSafe = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./:=,+@%-";
  if (!word.empty() && word.find_first_not_of(kSafe) == std::string::npos) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

std::string full_run_command(Arguments args, const JobConfig& config) {
  return fmt::format("{} train{} --training.steps {} --job.dump_folder {}", kProgram,
                     words_without(args, {"training.steps", "training.minutes", "job.dump_folder", "checkpoint.load_step"}),
                     config.training.steps, shell_word(config.job.dump_folder + "_full"));
}

std::string next_commands(Arguments args, const JobConfig& config, const RunSummary& run) {
  const std::string prompt = config.sample.prompt.value_or("Once upon a time");
  std::string out = fmt::format("  {} generate --checkpoint {} --prompt {}   # your own prompt\n", kProgram, shell_word(run.checkpoint),
                                shell_word(prompt.substr(0, prompt.find('\n'))));
  if (run.resumable) {
    out +=
        fmt::format("  {} train{} --training.steps {}   # continue training\n", kProgram,
                    words_without(args, {"training.steps", "training.minutes", "checkpoint.load_step", "checkpoint.exclude_from_loading"}),
                    2 * run.step);
  } else {
    out += fmt::format("  {} train{} --checkpoint.initial_load_path {} --job.dump_folder {}   # another run from these weights\n", kProgram,
                       words_without(args, {"checkpoint.initial_load_path", "checkpoint.initial_load_in_hf", "job.dump_folder"}),
                       shell_word(run.checkpoint), shell_word(config.job.dump_folder + "_more"));
  }
  const bool converted = !config.model.converters.empty();
  if (!config.quantize.scheme.is_none() || !config.quantize.recipe.empty() || converted) {
    const std::string folder = shell_word(config.job.dump_folder + "_bf16");
    std::string same = words_without(args, {"quantize.", "model.converters", "job.dump_folder", "checkpoint.load_step"});
    if (config.training.minutes > 0) {  // would measure again
      same = words_without(args, {"quantize.", "model.converters", "job.dump_folder", "checkpoint.load_step", "training.minutes",
                                  "training.steps", "lr_scheduler.warmup_steps"}) +
             fmt::format(" --training.steps {} --lr_scheduler.warmup_steps {}", run.size.steps, run.size.warmup_steps);
    }
    out += fmt::format("  {} train{} --quantize.scheme none{} --job.dump_folder {}   # the same run unquantized\n", kProgram, same,
                       converted ? " --model.converters ''" : "", folder);
  }
  if (run.size.steps < config.training.steps && config.training.minutes > 0) {
    out += fmt::format("  {}   # all {} steps\n", full_run_command(args, config), config.training.steps);
  }
  return out + fmt::format("  rm -r {}   # start over\n", shell_word(config.job.dump_folder));
}

}  // namespace halftone
