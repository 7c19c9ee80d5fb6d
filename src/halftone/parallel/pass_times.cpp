#include "halftone/parallel/pass_times.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace halftone::parallel {

void PassTimes::begin_run() {
  actions_.clear(), events_.clear(), times_.clear();
  stamp();
}

void PassTimes::begin_pass(const Action& action) {
  actions_.push_back(action);
  stamp();
}

void PassTimes::stamp() {
  if (device_.is_cpu()) return times_.push_back(std::chrono::steady_clock::now());
  events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT)
      .record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

std::vector<PassTimes::Pass> PassTimes::passes() const {
  const auto seconds = [&](size_t i) {
    return device_.is_cpu() ? std::chrono::duration<double>(times_[i] - times_[0]).count() : events_[0].elapsedTime(events_[i]) * 1e-3;
  };
  std::vector<Pass> passes;
  for (size_t i = 0; i < actions_.size(); ++i) passes.push_back({actions_[i], seconds(2 * i + 1), seconds(2 * i + 2)});
  return passes;
}

}  // namespace halftone::parallel
