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

// Destinations of a run's metrics: console, metrics.jsonl, TensorBoard. Scalars are named in docs/metrics.md.
namespace halftone {

struct MetricsOptions {
  std::filesystem::path dump_folder;  // job.dump_folder
  MetricsConfig config;
  int rank = 0;
  int writer_rank = 0;  // the rank that writes when save_for_all_ranks is off
  int64_t total_steps = 0;
  std::optional<double> start{};  // of the job, in seconds since 1970, by which event files are named; none: by the clock
};

// The first line at every start of a run: {"kind":"run", config, recipe, version, world, mesh, device}.
struct RunDescription {
  std::string config_json = "{}";  // the resolved configuration
  std::string version{}, device{};
  int64_t world = 1;
  std::map<std::string, int64_t> mesh{};
  std::optional<std::string> recipe_text{};  // of the file named by quantize.recipe
};

double wall_clock();  // seconds since 1970

class MetricsLogger {
 public:
  // `resumed_step`: the loaded step, to which metrics.jsonl is truncated; none for a fresh run, which renames an existing file. `clock`
  // returns seconds since 1970; tests pass their own.
  MetricsLogger(MetricsOptions options, std::optional<int64_t> resumed_step, const RunDescription& run,
                std::function<double()> clock = wall_clock);

  void log_train(int64_t step, const Scalars& scalars);
  void log_validate(int64_t step, const Scalars& scalars);
  // A line of kind "eval": what validation.tasks say.
  void log_tasks(int64_t step, const Scalars& scalars);
  // A line of kind "quantisation" in metrics.jsonl: effect of this step's quantisation on every layer (docs/numerics_report.md); the
  // console prints `summary`.
  void log_quantization(int64_t step, const Scalars& scalars, const std::string& summary);
  // A line of kind "experts": the load of every expert (docs/metrics.md).
  void log_experts(int64_t step, const Scalars& scalars) { append("experts", step, clock_(), scalars, ""); }
  // A line of kind "alarms": what [alarms] measured.
  void log_alarms(int64_t step, const Scalars& scalars) { append("alarms", step, clock_(), scalars, ""); }
  // After a rollback to `step` (training.nonfinite = "rollback"): truncates metrics.jsonl, so that every step appears once; event files,
  // which cannot be truncated, get the later values again.
  void rewind(int64_t step, const std::string& message);
  // A separate line in the log and in metrics.jsonl, e.g. log_event(40, "checkpoint saved", {{"seconds", 0.2}}).
  void log_event(int64_t step, const std::string& message, const Scalars& scalars = {});

  // Whether this rank writes files and prints.
  bool writes() const;

 private:
  void append(const char* kind, int64_t step, double now, const Scalars& scalars, const std::string& message);
  // Time left until total_steps at the pace since the first logged step (which includes warm-up), validation and checkpoints included.
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
