#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/config/job_config.h"
#include "halftone/ops/activation_stats.h"
#include "halftone/ops/quantization_stats.h"
#include "halftone/train/engine.h"
#include "halftone/train/metrics_file.h"

namespace halftone {

// [alarms]: figures of a step that show divergence before the loss does (docs/metrics.md).
struct AlarmReading {
  std::string alarm;  // a field of AlarmsConfig
  std::string place;  // the layer, for operands "layers.3.attention.wo/x.fwd"
  double value;
};

// Watches the forward and backward passes of one step while it exists or until stop(); changes no result.
class AlarmProbe {
 public:
  AlarmProbe(const AlarmsConfig& config, bool pads);  // pads: as QuantizationStats
  ~AlarmProbe() { stop(); }
  AlarmProbe(const AlarmProbe&) = delete;
  AlarmProbe& operator=(const AlarmProbe&) = delete;
  void stop();
  // This rank's figures of the alarms with a threshold, as text for the other ranks. Waits for the device.
  std::string read(const AlarmsConfig& config, const StepResult& result) const;

 private:
  std::shared_ptr<ActivationStats> activations_;
  std::shared_ptr<QuantizationStats> codes_;
  bool owns_codes_ = false;  // else those of the numerics report
};

struct AlarmVerdict {
  Scalars scalars;                 // alarms/<alarm>/<place>, the largest of all ranks
  std::vector<std::string> lines;  // one an alarm that was raised
  std::string action;              // the strongest of the raised alarms' actions; "" without one
};

// The same on every rank, because every rank has what all of them said.
AlarmVerdict judge_alarms(const AlarmsConfig& config, int64_t step, const std::vector<std::string>& said);

// Whether a step is measured: every freq steps, and when checkpoint.interval or the end of the run asks for a checkpoint.
bool alarms_measure(const JobConfig& config, int64_t step);
// "residual_norm above 100: rollback; ..." of the alarms with a threshold; "" without one.
std::string alarms_text(const AlarmsConfig& config);

}  // namespace halftone
