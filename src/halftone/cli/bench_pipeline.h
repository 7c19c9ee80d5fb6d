#pragma once
#include <array>
#include <functional>
#include <string>
#include <vector>

#include "halftone/train/engine.h"
#include "halftone/train/processes.h"

// Bubbles of a pipeline step.
namespace halftone::bench {

struct Bubbles {
  // Fraction of the ranks' time spent waiting, from the common start to the end of the last pass: of the schedule with F = I = W = 1 and
  // B = 2; with the measured times of passes and no communication; as measured.
  double schedule = 0, passes = 0, measured = 0;
  double ms = 0;                                // of a step
  std::vector<double> busy_ms;                  // of each rank
  std::vector<std::array<double, 4>> stage_ms;  // mean of F, I, W and B of each stage; 0: not in the schedule
};

// Measures a few more steps; all ranks call it. A pass lasts from the arrival of its input to the end of its work, with the weight gathers
// that it waits for.
Bubbles measure_bubbles(Engine& engine, Processes& processes, int64_t microbatches, const std::function<void()>& step);
std::string bubbles_text(const Bubbles& bubbles);

}  // namespace halftone::bench
