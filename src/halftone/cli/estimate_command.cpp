#include <nlohmann/json.hpp>
#include <vector>

#include "halftone/base/environment.h"
#include "halftone/base/error.h"
#include "halftone/cli/commands.h"
#include "halftone/cli/parse.h"
#include "halftone/config/load.h"
#include "halftone/train/estimate.h"
#include "halftone/train/hf_model.h"
#include "halftone/train/supported.h"

namespace halftone {
namespace {

constexpr const char* kEstimateUsage =
    "halftone estimate --config FILE [--section.field value ...] [--device h100|h200|cpu|auto] [--json]\n\n"
    "Says before a run, without a GPU, what a training step takes: memory by owner at its peak, and tokens/s by measured rates.\n\n"
    "  --device  the device to estimate for; auto (default): this machine's, an H100 where it has no GPU\n"
    "  --json    one line of JSON instead of tables\n\n"
    "The vocabulary is that of model.overrides or of the flavour; a run takes its tokenizer's. The exit status is 3 where the device's\n"
    "memory is too small, with the two settings that lower the peak most. The other options are those of halftone train.\n\n"
    "  halftone estimate --config recipes/bench_gpu.toml --quantize.scheme fp8_tensorwise --device h100\n";

// Takes `option` and its value, in both spellings, out of the words.
std::string take_value(std::vector<std::string>& words, const std::string& option, std::string otherwise) {
  for (size_t i = 0; i < words.size();) {
    const bool joined = words[i].starts_with(option + "=");
    if (!joined && words[i] != option) {
      ++i;
      continue;
    }
    check(joined || i + 1 < words.size(), "estimate: {}: expected a value behind it, found none; see halftone estimate --help", option);
    otherwise = joined ? words[i].substr(option.size() + 1) : words[i + 1];
    words.erase(words.begin() + static_cast<std::ptrdiff_t>(i), words.begin() + static_cast<std::ptrdiff_t>(joined ? i + 1 : i + 2));
  }
  return otherwise;
}

}  // namespace

int estimate_command(Arguments args) {
  if (asked_help(args)) return print(kEstimateUsage), 0;
  constexpr int kTooSmall = 3;
  std::vector<std::string> words(args.begin(), args.end());
  const std::string asked = take_value(words, "--device", "auto");
  const bool json = std::erase_if(words, [](const std::string& word) { return is_option(word, "--json"); }) != 0;
  require_one_process(read_environment());
  LoadedConfig loaded = load_config(words);
  resolve_model(loaded.config);
  const JobConfig& config = loaded.config;
  check(config.job.config_file.has_value(), "estimate: expected --config FILE, found none; for example --config recipes/bench_gpu.toml");
  refuse_unsupported(config);
  const Estimate e = estimate_step(config, 0, estimate_device(asked, config.training.device));
  print(json ? estimate_json(e).dump() : estimate_text(e));
  if (e.fits()) return 0;
  const std::string advice = estimate_advice(e);
  fmt::print(stderr, "halftone: estimate: {}: the step does not fit; {}\n", estimate_line(e),
             advice.empty() ? "lower training.seq_len or take a smaller model" : advice);
  return kTooSmall;
}

}  // namespace halftone
