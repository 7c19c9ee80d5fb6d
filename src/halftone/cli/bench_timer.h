#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace halftone::bench {

// Parts of a work in order; `turn` counts the calls, so that each can use other buffers.
using Part = std::function<void(int64_t turn)>;
using Parts = std::vector<Part>;

struct Turns {
  int rounds = 0;
  double target = 0;      // seconds of a work in a round
  bool together = false;  // works of one part: the calls of a round are timed as one, for works as short as a launch
};

// Runs the works in turns, each for about `target` seconds a round (one call at least, 256 at most); returns the median seconds of each
// part: [work][part]. A device that slows down slows all works alike. The first quarter of a round's calls does not count unless they are
// timed together: under the power limit the clock depends on the last tens of milliseconds, so it would be that of the previous work.
//
// CUDA is timed by events, the CPU by the wall clock. On CUDA the work is queued behind a waiting kernel: short kernels then run without
// gaps, and launch time is not measured.
std::vector<std::vector<double>> time_in_turns(c10::Device device, const std::vector<Parts>& works, const Turns& turns);

// Keeps the device busy until its clock reaches that under load.
void warm_up(c10::Device device);

double median(std::vector<double> values);

}  // namespace halftone::bench
