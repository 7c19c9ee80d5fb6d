#pragma once
#include <string>

#include "halftone/config/job_config.h"
#include "halftone/train/engine.h"
#include "halftone/train/run_state.h"

namespace halftone {

inline constexpr int kMostRefused = 10;  // skipped updates in a row, or rollbacks, before a run gives up

// training.nonfinite and training.spike_factor: which steps update the weights, and the consequence of one that does not.
class StepGuard {
 public:
  // Both must outlive it. The losses of the median and the skipped updates are in the progress, which checkpoints save.
  StepGuard(const TrainingConfig& config, RunProgress& progress) : config_(config), progress_(progress) {}

  // Mean loss above which the next step does not update: spike_factor times the running median, or infinite.
  double loss_limit() const;
  // Records that step `step` updated.
  void updated(int64_t step, double loss);
  struct Refusal {
    std::string what;  // a line for the log
    bool rollback;     // false: the update was skipped
  };
  // Step `step` did not update although it had labels. NonFiniteError by default, or after too many refusals.
  Refusal refused(int64_t step, const StepResult& result);
  // Counts a rollback from step `step`; NonFiniteError, starting with `what`, after too many.
  void rolls_back(int64_t step, const std::string& what);

 private:
  const TrainingConfig& config_;
  RunProgress& progress_;
  int rollbacks_ = 0;              // since a step beyond the furthest bad one updated
  int64_t furthest_bad_step_ = 0;  // among rolled-back steps
};

}  // namespace halftone
