#pragma once
#include <string>

#include "halftone/config/job_config.h"
#include "halftone/train/engine.h"
#include "halftone/train/run_state.h"

namespace halftone {

inline constexpr int kMostRefused = 10;  // updates skipped in a row, or rollbacks, before a run gives up

// training.nonfinite and training.spike_factor: which steps update the weights, and what follows from one that does not.
class StepGuard {
 public:
  // Both outlive it. The losses behind the median and the skipped updates belong to the progress, which a checkpoint keeps.
  StepGuard(const TrainingConfig& config, RunProgress& progress) : config_(config), progress_(progress) {}

  // Mean loss above which the next step may not update: spike_factor times the running median, or infinite.
  double loss_limit() const;
  // Step `step` updated.
  void updated(int64_t step, double loss);
  struct Refusal {
    std::string what;  // a line for the log
    bool rollback;     // else the update was skipped
  };
  // Step `step` did not update though it had labels. NonFiniteError where nothing else is asked for or it was asked for too often.
  Refusal refused(int64_t step, const StepResult& result);

 private:
  const TrainingConfig& config_;
  RunProgress& progress_;
  int rollbacks_ = 0;              // since a step beyond the furthest bad one updated
  int64_t furthest_bad_step_ = 0;  // of those that were rolled back
};

}  // namespace halftone
