#pragma once
#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <vector>

#include "halftone/parallel/schedule.h"

namespace halftone::parallel {

// When the passes of one rank begin and end in one run of a pipeline: by events of the device, or the clock of the CPU.
class PassTimes {
 public:
  explicit PassTimes(c10::Device device) : device_(device) {}
  void begin_run();                       // forgets those of the run before
  void begin_pass(const Action& action);  // what it reads is there
  void end_pass() { stamp(); }

  struct Pass {
    Action action;
    double begin = 0, end = 0;  // seconds from begin_run()
  };
  std::vector<Pass> passes() const;  // the device is idle

 private:
  void stamp();

  c10::Device device_;
  std::vector<Action> actions_;
  std::vector<c10::Event> events_;                            // of the run, then two of each pass
  std::vector<std::chrono::steady_clock::time_point> times_;  // likewise
};

}  // namespace halftone::parallel
