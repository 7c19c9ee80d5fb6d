#pragma once
#include <functional>
#include <optional>
#include <string>

#include "halftone/checkpoint/store.h"
#include "halftone/config/load.h"
#include "halftone/data/loader.h"
#include "halftone/train/engine.h"

// training.minutes: a run measures a few steps and chooses the number of steps that fits the time on this machine.
namespace halftone {

struct RunSize {
  int64_t steps = 0, warmup_steps = 0;
  bool operator==(const RunSize&) const = default;
};

// Seconds per part of a run.
struct RunCosts {
  double step = 0;  // with its optimizer step
  double validation = 0, save = 0;
};

constexpr int64_t kLeastSteps = 200;  // shorter runs show little

// Duration of a run of `steps` steps, with the validations and checkpoints that `config` asks for.
double run_seconds(const RunCosts& costs, const JobConfig& config, int64_t steps);
// The longest run that fits training.minutes, in multiples of ten steps: from kLeastSteps (at most training.steps) to training.steps. The
// warm-up keeps its share of the steps.
RunSize fitting_size(const RunCosts& costs, const JobConfig& config);

// The size in a checkpoint's configuration; none if it has none (a Hugging Face folder).
std::optional<RunSize> saved_size(const LoadedStep& step);

// Replaces training.minutes in a run's configuration by explicit steps and warm-up, so that the configuration that the run writes and
// saves reproduces it. Command-line values take precedence: training.steps there disables sizing.
class Sizing {
 public:
  // `full_run`: the command of the run that is not cut; may be empty. Error where ranks that share a row would have to measure.
  Sizing(const LoadedConfig& loaded, std::string full_run, int64_t processes);
  // Before a checkpoint is loaded: a resumed run keeps the length that it was started with.
  void keep(JobConfig& config, const CheckpointStore& store);
  // Afterwards: a run at step 0 measures steps over its first rows, beside bfloat16 and float32 where it is quantised on a CPU, and says
  // what they take and what the run will be. Models of its own do the work, so nothing of the engine changes.
  // `of_first`: rank 0's value (Processes::of_first).
  void measure(JobConfig& config, const Engine& engine, DataLoader& loader, const DataLoader* validation, int64_t step,
               const std::function<int64_t(int64_t)>& of_first);
  bool measured() const { return measured_; }
  bool taken() const { return taken_; }  // the size differs from the configuration at the start

 private:
  void take(JobConfig& config, const RunSize& size);
  std::string full_run_;
  bool own_steps_, own_warmup_;  // from the command line
  bool measured_ = false, taken_ = false;
};

}  // namespace halftone
