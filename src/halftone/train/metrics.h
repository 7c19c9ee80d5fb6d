#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "halftone/config/run_config.h"
#include "halftone/train/console.h"
#include "halftone/train/event_file.h"
#include "halftone/train/metrics_file.h"

// Where the numbers of a run go: console, metrics.jsonl, TensorBoard. Names of scalars: docs/metrics.md.
namespace halftone {

struct MetricsOptions {
  std::filesystem::path dump_folder;  // job.dump_folder
  MetricsConfig config;
  int rank = 0;
  int writer_rank = 0;  // the rank that writes when save_for_all_ranks is off
  int64_t total_steps = 0;
  std::optional<double> start{};  // of the job, in seconds since 1970, by which event files are named; none: by the clock
};

// The first line of every start of a run: {"kind":"run", config, recipe, version, world, mesh, device}.
struct RunDescription {
  std::string config_json = "{}";  // the resolved configuration
  std::string version{}, device{};
  int64_t world = 1;
  std::map<std::string, int64_t> mesh{};
  std::optional<std::string> recipe_text{};  // of the file that quantize.recipe names
};

double wall_clock();  // seconds since 1970

class MetricsLogger {
 public:
  // `resumed_step`: the step that was loaded, to which metrics.jsonl is cut back; none for a fresh run, which leaves the file of another
  // under another name.
  // `clock` gives seconds since 1970; tests pass their own.
  MetricsLogger(MetricsOptions options, std::optional<int64_t> resumed_step, const RunDescription& run,
                std::function<double()> clock = wall_clock);

  void log_train(int64_t step, const Scalars& scalars);
  void log_validate(int64_t step, const Scalars& scalars);
  // A line of its own kind, "quantization", in metrics.jsonl: what the quantisation of this step did to every layer
  // (docs/numerics_report.md); the console gets `summary`.
  void log_quantization(int64_t step, const Scalars& scalars, const std::string& summary);
  // A line of its own kind, "experts": the load of every expert (docs/metrics.md).
  void log_experts(int64_t step, const Scalars& scalars) { append("experts", step, clock_(), scalars, ""); }
  // The run went back to the state after `step` (training.nonfinite = "rollback"): metrics.jsonl is cut to it, so that every
  // step stands there once; event files, which cannot be cut, get the later values again.
  void rewind(int64_t step, const std::string& message);
  // A line of its own in the log and in metrics.jsonl, e.g. log_event(40, "checkpoint saved", {{"seconds", 0.2}}).
  void log_event(int64_t step, const std::string& message, const Scalars& scalars = {});

  // Whether this rank writes files and prints.
  bool writes() const;

 private:
  void append(const char* kind, int64_t step, double now, const Scalars& scalars, const std::string& message);
  // Time left until total_steps at the pace since the first logged step (which holds warm-up), with validation and checkpoints in it.
  std::optional<Progress> progress(int64_t step, double now, const Scalars& scalars);

  MetricsOptions options_;
  std::function<double()> clock_;
  bool colors_;
  std::filesystem::path jsonl_path_;
  MetricsWriter jsonl_;
  EventFile events_;
  std::optional<std::pair<int64_t, double>> pace_start_;  // step, time
};

}  // namespace halftone
