#include "halftone/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "halftone/base/error.h"

namespace halftone {

DecayType decay_type(std::string_view name) {
  if (name == "linear") return DecayType::linear;
  if (name == "sqrt") return DecayType::sqrt;
  if (name == "cosine") return DecayType::cosine;
  fail("lr_scheduler.decay_type: expected linear, sqrt or cosine, found '{}'", name);
}

Schedule::Schedule(const Options& o) : steps_(o.steps), decay_(o.decay), min_factor_(o.min_factor) {
  check(o.steps >= 0, "lr_scheduler.total_steps: expected at least 0, found {}", o.steps);
  check(o.warmup_steps >= 0, "lr_scheduler.warmup_steps: expected at least 0, found {}", o.warmup_steps);
  check(!o.decay_ratio || (*o.decay_ratio >= 0 && *o.decay_ratio <= 1), "lr_scheduler.decay_ratio: expected 0 to 1, found {}",
        o.decay_ratio.value_or(0));
  check(o.min_factor >= 0 && o.min_factor <= 1, "lr_scheduler.min_lr_factor: expected 0 to 1, found {}", o.min_factor);
  warmup_ = std::min(o.warmup_steps, steps_);
  if (warmup_ < o.warmup_steps) {
    warnings_.push_back(fmt::format("lr_scheduler.warmup_steps ({}) exceeds the steps of the run, cut to {}", o.warmup_steps, warmup_));
  }
  const int64_t room = steps_ - warmup_;
  // nearbyint rounds halves to even in the default rounding mode.
  decay_steps_ = o.decay_ratio ? static_cast<int64_t>(std::nearbyint(static_cast<double>(steps_) * *o.decay_ratio)) : room;
  if (decay_steps_ > room) {
    warnings_.push_back(fmt::format("warm-up ({}) and decay ({}) together exceed the steps of the run ({}), decay cut to {}", warmup_,
                                    decay_steps_, steps_, room));
    decay_steps_ = room;
  }
  stable_ = steps_ + 1 - warmup_ - decay_steps_;
}

double Schedule::factor(int64_t step) const {
  check(step >= 0, "learning-rate schedule: expected a step of at least 0, found {}", step);
  const int64_t s = std::min(step, std::max<int64_t>(steps_ - 1, 0));
  if (s < warmup_) return static_cast<double>(s + 1) / static_cast<double>(warmup_);
  if (s < warmup_ + stable_) return 1;
  const double progress = static_cast<double>(s + 1 - warmup_ - stable_) / static_cast<double>(decay_steps_);
  double y = 1 - progress;
  if (decay_ == DecayType::sqrt) y = 1 - std::sqrt(progress);
  if (decay_ == DecayType::cosine) y = 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return min_factor_ + (1 - min_factor_) * y;
}

Schedule schedule_of(const JobConfig& config) {
  const LrSchedulerConfig& s = config.lr_scheduler;
  return Schedule({.steps = s.total_steps.value_or(std::max<int64_t>(config.training.steps, 1)),
                   .warmup_steps = s.warmup_steps,
                   .decay_ratio = s.decay_ratio,
                   .decay = decay_type(s.decay_type),
                   .min_factor = s.min_lr_factor});
}

}  // namespace halftone
