#pragma once
#include <chrono>

namespace halftone {

// Wall time in seconds since construction, minus the excluded seconds.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count() - left_out_; }
  void leave_out(double seconds) { left_out_ += seconds; }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
  double left_out_ = 0;
};

}  // namespace halftone
