#pragma once
#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <vector>

#include "halftone/parallel/schedule.h"

namespace halftone::parallel {

// Begin and end times of one rank's passes in one run of a pipeline: from device events, or the clock on the CPU.
class PassTimes {
 public:
  explicit PassTimes(c10::Device device) : device_(device) {}
  void begin_run();                       // clears those of the previous run
  void begin_pass(const Action& action);  // its inputs have arrived
  void end_pass() { stamp(); }

  struct Pass {
    Action action;
    double begin = 0, end = 0;  // seconds from begin_run()
  };
  std::vector<Pass> passes() const;  // requires an idle device

 private:
  void stamp();

  c10::Device device_;
  std::vector<Action> actions_;
  std::vector<c10::Event> events_;                            // of the run, then two per pass
  std::vector<std::chrono::steady_clock::time_point> times_;  // the same
};

}  // namespace halftone::parallel
