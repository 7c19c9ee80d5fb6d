#pragma once
#include <functional>
#include <optional>
#include <string>

#include "halftone/checkpoint/store.h"
#include "halftone/config/load.h"
#include "halftone/data/loader.h"
#include "halftone/train/engine.h"

// training.minutes: a run measures a few steps and takes as many as fit into the time on this machine.
namespace halftone {

struct RunSize {
  int64_t steps = 0, warmup_steps = 0;
  bool operator==(const RunSize&) const = default;
};

// Seconds that the parts of a run take.
struct RunCosts {
  double step = 0;  // with its optimizer
  double validation = 0, save = 0;
};

constexpr int64_t kLeastSteps = 200;  // a run of fewer shows little

// A run of `steps` steps, with the validations and checkpoints that `config` asks for.
double run_seconds(const RunCosts& costs, const JobConfig& config, int64_t steps);
// The longest run that fits into training.minutes, in tens of steps: kLeastSteps to training.steps, or that where it is less. The warm-up
// keeps its share of the steps.
RunSize fitting_size(const RunCosts& costs, const JobConfig& config);

// What a checkpoint's configuration says; none where it says nothing (a Hugging Face folder).
std::optional<RunSize> saved_size(const LoadedStep& step);

// What training.minutes makes of a run's configuration: steps and warm-up of their own instead of minutes, so that the configuration
// which the run writes and saves repeats it. What the command line says stands: training.steps there switches sizing off.
class Sizing {
 public:
  // `full_run`: the command of the run that is not cut; may be empty. Error where ranks that share a row would have to measure.
  Sizing(const LoadedConfig& loaded, std::string full_run, int64_t processes);
  // Before a checkpoint is loaded: a run that goes on has the length that it was started with.
  void keep(JobConfig& config, const CheckpointStore& store);
  // Afterwards: a run at step 0 measures steps over its first rows, beside bfloat16 and float32 where it is quantised on a CPU, and says
  // what they take and what the run will be. Models of its own do the work, so nothing of the engine changes.
  // `of_first`: rank 0's value (Processes::of_first).
  void measure(JobConfig& config, const Engine& engine, DataLoader& loader, const DataLoader* validation, int64_t step,
               const std::function<int64_t(int64_t)>& of_first);
  bool measured() const { return measured_; }
  bool taken() const { return taken_; }  // the configuration has another size than at the start

 private:
  void take(JobConfig& config, const RunSize& size);
  std::string full_run_;
  bool own_steps_, own_warmup_;  // from the command line
  bool measured_ = false, taken_ = false;
};

}  // namespace halftone
