#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "halftone/base/environment.h"
#include "halftone/base/error.h"
#include "halftone/cli/commands.h"
#include "halftone/cli/dry_run.h"
#include "halftone/cli/parse.h"
#include "halftone/config/load.h"
#include "halftone/config/quantize_phases.h"
#include "halftone/models/registry.h"
#include "halftone/parallel/schedule_drawing.h"
#include "halftone/parallel/stages.h"
#include "halftone/train/hf_model.h"
#include "halftone/train/phase_estimates.h"
#include "halftone/train/silence.h"
#include "halftone/train/validate_settings.h"

namespace halftone {
namespace {

constexpr const char* kEstimateUsage =
    "halftone estimate --config FILE [--section.field value ...] [--device h100|h200|cpu|auto] [--world N] [--json]\n"
    "halftone estimate --config FILE [--section.field value ...] --schedule [FILE.svg]\n\n"
    "Predicts, without a GPU, the memory of a training step by owner, and its step time and tokens/s from measured rates.\n\n"
    "  --device  device to predict for; auto (default) = this machine's GPU, or an H100 if it has none\n"
    "  --world   ranks of the mesh of [parallelism], 1 by default; the figures are of the rank with most memory, with its traffic\n"
    "  --json    one line of JSON instead of tables\n"
    "  --schedule  draws the pipeline's schedule instead, as text and into FILE.svg if given\n\n"
    "The vocabulary is that of model.overrides or of the flavour, as in a run. The exit status is 3 when the\n"
    "memory is too small; the error names the two settings that lower the peak most. Other options are those of halftone train.\n\n"
    "  halftone estimate --config recipes/bench_gpu.toml --quantize.scheme fp8_tensorwise --device h100\n"
    "  halftone estimate --config recipes/bench_gpu.toml --world 8 --parallelism.tensor_parallel_degree 2\n";

constexpr int64_t kMostProcesses = 1 << 20;

// Removes --schedule and its file and returns the file; nullopt without --schedule.
std::optional<std::string> take_schedule(std::vector<std::string>& words) {
  const auto at =
      std::find_if(words.begin(), words.end(), [](const std::string& w) { return w == "--schedule" || w.starts_with("--schedule="); });
  if (at == words.end()) return std::nullopt;
  const bool joined = at->find('=') != std::string::npos, file = !joined && at + 1 != words.end() && !at[1].starts_with("-");
  std::string name = joined ? at->substr(at->find('=') + 1) : file ? at[1] : "";
  words.erase(at, at + (file ? 2 : 1));
  return name;
}

void draw_schedule(const JobConfig& config, const std::string& file) {
  const ParallelismConfig& p = config.parallelism;
  check(p.pipeline_parallel_degree > 1, "estimate: --schedule draws a pipeline; set parallelism.pipeline_parallel_degree");
  const int64_t layers = build_model(config.model, 0).model->blocks();
  const int64_t batch = p.data_parallel_replicate_degree * std::max<int64_t>(1, p.data_parallel_shard_degree);
  const std::vector<parallel::StageUnits> stages = parallel::split_stages(p, layers);
  const parallel::Schedule s = parallel::schedule_of(p, stages, parallel::microbatches_of_step(p, config.training, batch));
  const parallel::Timeline time = parallel::simulate(s);
  const std::string title =
      fmt::format("{}: {} stages on {} ranks, {} micro-batches, {:.1f}% bubbles expected, {:.1f}% as drawn", p.pipeline_parallel_schedule,
                  s.stages, p.pipeline_parallel_degree, s.microbatches, 100 * parallel::simulate(s, s.expected).bubble, 100 * time.bubble);
  std::string text = title + "\n\n";
  for (size_t i = 0; i < stages.size(); ++i) text += parallel::stage_text(static_cast<int64_t>(i), stages[i], s.rank_of[i], layers) + "\n";
  text += "\n" + parallel::schedule_text(s, time);
  text += fmt::format("Passes whose tensors a rank keeps at most: {}\n", fmt::join(time.most_alive, " "));
  print(text);
  if (file.empty()) return;
  std::ofstream out(file);
  out << parallel::schedule_svg(s, time, title);
  out.close();
  check(out.good(), "estimate: --schedule {}: can not be written", file);
}

// The costliest phase's figures, and of several phases those of each.
nlohmann::ordered_json phases_json(const JobConfig& config, const Estimate& costliest, const PhaseEstimates& all) {
  nlohmann::ordered_json out = estimate_json(costliest);
  const std::vector<PhaseStart> starts = phase_starts(config.quantize);
  if (starts.size() == 1) return out;
  for (size_t i = 0; i < starts.size(); ++i) {
    nlohmann::ordered_json& phase = out["phases"].emplace_back();
    phase["first_step"] = starts[i].first_step(scheduled_steps(config));
    phase["peak_memory_gib"] = all.phases[i].peak().bytes() / (1 << 30);
    if (all.plain) phase["ms_per_step"] = all.phases[i].step_ms();
  }
  if (all.plain) out["unquantised_ms_per_step"] = all.plain->step_ms();
  return out;
}

int show_estimate(const Estimate& e, const std::string& shown) {
  constexpr int kTooSmall = 3;
  print(shown);
  if (e.fits()) return 0;
  const std::string advice = estimate_advice(e);
  fmt::print(stderr, "halftone: estimate: {}: the step does not fit; {}\n", estimate_line(e),
             advice.empty() ? "lower training.seq_len or use a smaller model" : advice);
  return kTooSmall;
}

}  // namespace

int dry_run(JobConfig config, int64_t world) {
  resolve_model(config);
  config.comm.mode = "default";
  check_run(config, world);
  const PhaseEstimates all = estimate_phases(config, 0, estimate_device("auto", config.training.device), world);
  return show_estimate(all.costliest(), estimate_text(all.costliest()));
}

int estimate_command(Arguments args) {
  if (asked_help(args)) return print(kEstimateUsage), 0;
  std::vector<std::string> words(args.begin(), args.end());
  const std::string asked = take_value(words, "--device", "estimate").value_or("auto");
  const std::string processes = take_value(words, "--world", "estimate").value_or("");
  const bool json = std::erase_if(words, [](const std::string& word) { return is_option(word, "--json"); }) != 0;
  const std::optional<std::string> schedule = take_schedule(words);
  require_one_process(read_environment());
  int64_t world = 1;
  const char* end = processes.data() + processes.size();
  const auto [stop, error] = std::from_chars(processes.data(), end, world);
  check(processes.empty() || (error == std::errc() && stop == end && world >= 1 && world <= kMostProcesses),
        "estimate: --world: expected a number of processes from 1 to {}, found '{}'", kMostProcesses, processes);
  LoadedConfig loaded = load_config(words, {schedule && processes.empty() ? 0 : world});  // the ranks of a pipeline are not known yet
  resolve_model(loaded.config);
  const JobConfig& config = loaded.config;
  check(config.job.config_file.has_value(), "estimate: expected --config FILE, found none; for example --config recipes/bench_gpu.toml");
  if (schedule) return draw_schedule(config, *schedule), 0;
  std::string refused;
  try {
    std::optional<Silence> alone;  // only the line of JSON
    if (json) alone.emplace();
    check_run(config, world);
  } catch (const Error& e) {
    if (world == 1) throw;
    refused = e.what();
  }
  const EstimateDevice device = estimate_device(asked, config.training.device);
  const PhaseEstimates phases = estimate_phases(config, 0, device, world);
  Estimate e = phases.costliest();
  if (!refused.empty()) e.remarks.push_back("this build would refuse it: " + refused);
  const int status = show_estimate(e, json ? phases_json(config, e, phases).dump() : estimate_text(e));
  if (json) return status;
  for (const std::string& line : plan_lines(config, 0, device.hardware, phases)) print(line + "\n");
  return status;
}

}  // namespace halftone
