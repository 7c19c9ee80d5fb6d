#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "halftone/base/environment.h"
#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/checkpoint/discard.h"
#include "halftone/cli/commands.h"
#include "halftone/cli/dry_run.h"
#include "halftone/cli/next_commands.h"
#include "halftone/cli/version.h"
#include "halftone/config/load.h"
#include "halftone/train/generate.h"
#include "halftone/train/hf_model.h"
#include "halftone/train/trainer.h"

namespace halftone {
namespace {

constexpr const char* kTrainUsage =
    "halftone train --config FILE [--section.field value ...] [-v]\n"
    "halftone train --help [section]\n\n"
    "Trains a model, or resumes the run whose checkpoints are in its folder. halftone config prints a configuration.\n"
    "-v, --verbose logs more at the start, as HALFTONE_LOG=debug does.\n"
    "NGPU=256 halftone train ... --comm.mode=fake_backend predicts memory and step time of 256 ranks, without data or GPUs.\n\n";

// [sample]: what the model writes.
void show_sample(const RunSummary& run, const SampleConfig& sample) {
  std::string_view shown = *sample.prompt;
  while (shown.ends_with('\n')) shown.remove_suffix(1);
  std::printf("\nA sample of what the model writes after `%.*s`:\n\n", static_cast<int>(shown.size()), shown.data());
  GenerateOptions o;
  o.checkpoint = run.checkpoint, o.device = run.device, o.prompt = *sample.prompt, o.max_new_tokens = sample.tokens;
  o.sampling.temperature = 0.7, o.sampling.top_k = 50, o.sampling.seed = 1;
  generate(o, [](std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout), std::fflush(stdout); });
  std::printf("\n");
}

}  // namespace

int train_command(Arguments given) {
  std::vector<std::string> args(given.begin(), given.end());
  if (std::erase_if(args, [](const std::string& word) { return word == "-v" || word == "--verbose"; }) > 0) set_log_level(LogLevel::debug);
  if (const auto section = asked_help(args)) {
    print((section->empty() ? kTrainUsage : "") + describe_fields(*section));
    return 0;
  }
  const Environment environment = read_environment();
  // An error of this rank ends its peers, too, once they are connected.
  std::optional<LoadedConfig> loaded;
  std::exception_ptr problem;
  try {
    loaded = load_config(args, {environment.world_size, environment.simulated_world_size});
  } catch (const Error&) {
    problem = std::current_exception();
  }
  if (loaded && loaded->config.comm.mode == "fake_backend")
    return environment.rank == 0 ? dry_run(loaded->config, environment.simulated_world_size) : 0;
  Processes processes(environment, loaded ? loaded->config.comm : CommConfig{}, loaded ? loaded->config.job.dump_folder : "");
  RunSummary run;
  processes.run([&] {
    if (problem) std::rethrow_exception(problem);
    resolve_model(loaded->config);
    run = run_training(*loaded, processes, version(), full_run_command(args, loaded->config));
  });
  if (run.end == RunEnd::interrupted) return 128 + run.signal;
  // The peers have been told goodbye.
  constexpr std::chrono::seconds kDeletion{30};
  if (!finish_discards(kDeletion)) log_info("Old checkpoints are not deleted yet; the next start of this run removes the rest");
  if (run.end == RunEnd::already_complete && processes.first())
    std::printf("This run is complete: %lld steps, newest checkpoint %s\n", static_cast<long long>(run.step), run.checkpoint.c_str());
  if (run.end == RunEnd::learned_nothing) {
    if (!run.finite) throw NonFiniteError(run.reason);
    throw Error(run.reason);
  }
  if (processes.many() || run.checkpoint.empty()) return 0;
  if (loaded->config.sample.prompt) show_sample(run, loaded->config.sample);
  std::printf("\nTry next:\n%s", next_commands(args, loaded->config, run).c_str());
  return 0;
}

}  // namespace halftone
