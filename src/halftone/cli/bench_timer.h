#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace halftone::bench {

// Work to time; `turn` counts its calls, so that each can use other buffers.
using Work = std::function<void(int64_t turn)>;

// Times work by events on CUDA, by the wall clock on the CPU. On CUDA the work is queued behind a waiting kernel: short kernels then run
// without gaps, and launch time is not measured.
class Stopwatch {
 public:
  explicit Stopwatch(c10::Device device) : device_(device) {}
  c10::Device device() const { return device_; }

  struct Laps {
    std::vector<double> seconds;  // of each part
    double queueing = 0;          // seconds that the host needs to queue them
  };
  // Times the parts in order; the device first waits for `queueing` seconds.
  Laps laps(const std::vector<std::function<void()>>& parts, double queueing) const;

 private:
  c10::Device device_;
};

// Keeps the device busy until its clock reaches that under load.
void warm_up(c10::Device device);

// Runs the works in turns, `rounds` times for about `target` seconds each (at most 200 calls), after a warmup round; returns the median
// seconds per call of each. A device that slows down slows all works alike.
std::vector<double> time_in_turns(const Stopwatch& watch, const std::vector<Work>& works, int rounds, double target);

// The same for works of several parts: [work][part]. A turn lasts about `target` seconds (at least one call of the parts), and its first
// quarter does not count: under the power limit the clock depends on the last tens of milliseconds, so a single call would run at the clock
// of the previous work.
using Parts = std::vector<std::function<void()>>;
std::vector<std::vector<double>> time_parts_in_turns(const Stopwatch& watch, const std::vector<Parts>& works, int rounds, double target);

double median(std::vector<double> values);

}  // namespace halftone::bench
