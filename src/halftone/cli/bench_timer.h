#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace halftone::bench {

// Something to time; `turn` counts its calls, so that each can take other buffers.
using Work = std::function<void(int64_t turn)>;

// Times work on a device: by the device's own events on CUDA, by the wall clock on the CPU. On CUDA the work is queued behind a
// kernel that waits, so that short kernels follow each other without gaps and queueing is not what is measured.
class Stopwatch {
 public:
  explicit Stopwatch(c10::Device device) : device_(device) {}
  c10::Device device() const { return device_; }

  struct Laps {
    std::vector<double> seconds;  // of each part
    double queueing = 0;          // seconds that the host took to queue all of them
  };
  // The parts one after another; `queueing` is how long the device should wait first.
  Laps laps(const std::vector<std::function<void()>>& parts, double queueing) const;

 private:
  c10::Device device_;
};

// Keeps the device busy until its clock is that of work under load.
void warm_up(c10::Device device);

// Runs the works in turns, `rounds` times about `target` seconds of each (at most 200 calls), after a first round that does not
// count; the median of each one's seconds per call. A device that slows down slows all of them alike.
std::vector<double> time_in_turns(const Stopwatch& watch, const std::vector<Work>& works, int rounds, double target);

// The same for works of several parts: [work][part]. A turn of a work lasts about `target` seconds (at least one call of its parts),
// of which the first quarter does not count: under the power limit a device's clock follows what it did in the last tens of
// milliseconds, so a single call would be timed at the clock of the work before it.
using Parts = std::vector<std::function<void()>>;
std::vector<std::vector<double>> time_parts_in_turns(const Stopwatch& watch, const std::vector<Parts>& works, int rounds, double target);

double median(std::vector<double> values);

}  // namespace halftone::bench
