#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "halftone/train/console.h"
#include "halftone/train/event_file.h"
#include "halftone/train/metrics_file.h"

// Where the numbers of a run go: console, metrics.jsonl, TensorBoard. Names of scalars: docs/metrics.md.
namespace halftone {

struct MetricsOptions {
  std::filesystem::path dump_folder;  // job.dump_folder
  // Same names as the fields of [metrics]:
  bool enable_jsonl = true, enable_tensorboard = false, save_for_all_ranks = false, disable_color_printing = false;
  std::string save_tb_folder = "tb";
  int rank = 0;
  int writer_rank = 0;  // the rank that writes when save_for_all_ranks is off
  int64_t total_steps = 0;
};

// The first line of every start of a run: {"kind":"run", config, version, world, mesh, device}.
struct RunDescription {
  std::string config_json = "{}";  // the resolved configuration
  std::string version, device;
  int64_t world = 1;
  std::map<std::string, int64_t> mesh;
};

class MetricsLogger {
 public:
  // `resumed_step`: the step that was loaded (0 for a fresh run); metrics.jsonl is cut back to it.
  MetricsLogger(MetricsOptions options, int64_t resumed_step, const RunDescription& run);

  void log_train(int64_t step, const Scalars& scalars);
  void log_validate(int64_t step, const Scalars& scalars);
  // A line of its own in the log and in metrics.jsonl, e.g. log_event(40, "checkpoint saved", {{"seconds", 0.2}}).
  void log_event(int64_t step, const std::string& message, const Scalars& scalars = {});

  // Time left until total_steps, measured since the second logged interval (the first one holds warm-up).
  std::optional<Progress> progress(int64_t step, const Scalars& scalars);
  bool writes() const;

  std::function<double()> clock;  // seconds since 1970; tests replace it

 private:
  void record(const char* kind, int64_t step, const Scalars& scalars, const std::string& message);
  MetricsOptions options_;
  bool colors_ = false;
  MetricsWriter jsonl_;
  EventFile events_;
  std::optional<std::pair<int64_t, double>> pace_start_;  // step, time
};

}  // namespace halftone
