#pragma once
#include <optional>
#include <string>

#include "halftone/base/stopwatch.h"
#include "halftone/ops/device.h"
#include "halftone/train/batches.h"
#include "halftone/train/metrics.h"
#include "halftone/train/run_data.h"

namespace halftone {

// Floating-point operations, for tflops and mfu.
struct RunFlops {
  double per_token = 0;
  double peak = 0;  // of the device per second; 0 on a CPU, which has no mfu
};
RunFlops run_flops(const Engine& engine, const JobConfig& config, const DeviceInfo& info);  // logs the peak that it uses

// Logs a run: its steps, over intervals of metrics.log_freq, and its validations.
class RunMetrics {
 public:
  // `resumed_step` as in MetricsLogger. The first interval begins here.
  RunMetrics(const JobConfig& config, Processes& processes, at::Device device, const DeviceInfo& info, const RunFlops& flops,
             const std::string& version, std::optional<int64_t> resumed_step);

  bool is_logged(int64_t step) const;
  void count_step(int64_t tokens) { tokens_ += tokens, ++steps_; }  // of all processes
  void count_waits(const StepAgreement& agreed);
  // Logs a step that updated and the interval that it ends: since its result is known, its gradients are complete.
  void log_step(int64_t step, const StepResult& result, double lr, int64_t tokens_seen, const RunData::Wait& wait);
  // Loss and labels of each source of a mixture over the interval, of all ranks: `sums` as Engine::source_sums, ever growing.
  void take_sources(const std::vector<std::string>& names, const at::Tensor& sums, Processes& processes);
  void log_validation(int64_t step, const Evaluation& evaluation);
  // Excludes time of validations and checkpoints from the interval.
  void leave_out(double seconds) { interval_.leave_out(seconds); }
  void start_interval();
  MetricsLogger& logger() { return logger_; }

 private:
  const JobConfig& config_;
  at::Device device_;
  double capacity_gib_;
  RunFlops flops_;
  MetricsLogger logger_;
  Stopwatch interval_;
  int64_t tokens_ = 0, steps_ = 0;                              // of the interval
  int64_t processes_;                                           // rates are of one
  std::vector<double> source_sums_;                             // at the last log: losses, then labels
  std::vector<std::pair<std::string, double>> source_scalars_;  // of the step that is logged next
  StepAgreement longest_;                                       // the longest waits of the interval's steps
};

}  // namespace halftone
