#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/config/job_config.h"

namespace halftone {

enum class DecayType { linear, sqrt, cosine };
DecayType decay_type(std::string_view name);  // Error naming the three types if unknown

// Learning-rate factor: linear warm-up, stable, decay (platform.md 5.3).
class Schedule {
 public:
  struct Options {
    int64_t steps = 0;  // lr_scheduler.total_steps or training.steps, at least 1
    int64_t warmup_steps = 0;
    std::optional<double> decay_ratio{};  // none: decay right after warm-up
    DecayType decay = DecayType::linear;
    double min_factor = 0;
  };
  // Error if an option is out of range; adjustments are listed in warnings().
  explicit Schedule(const Options& options);

  // Factor of step s = 0, 1, ...; after the last step that of the last step.
  double factor(int64_t step) const;

  int64_t warmup_steps() const { return warmup_; }
  int64_t stable_steps() const { return stable_; }  // includes the extra virtual step
  int64_t decay_steps() const { return decay_steps_; }
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  int64_t steps_, warmup_, decay_steps_, stable_;
  DecayType decay_;
  double min_factor_;
  std::vector<std::string> warnings_;
};

// For a run: over lr_scheduler.total_steps, or training.steps if unset.
Schedule schedule_of(const JobConfig& config);

}  // namespace halftone
