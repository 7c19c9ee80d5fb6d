#pragma once
#include <array>
#include <functional>
#include <string>
#include <vector>

#include "halftone/train/engine.h"
#include "halftone/train/processes.h"

// How long the ranks of a pipeline wait in a step.
namespace halftone::bench {

struct Bubbles {
  // Shares of the ranks' time in which they wait, from when all begin to when the last one ends its passes: of the schedule if F, I and W
  // take one unit of time and B two; if they take what they took here, and messages nothing; as it was.
  double schedule = 0, passes = 0, measured = 0;
  double ms = 0;                                // from begin to end, of a step
  std::vector<double> busy_ms;                  // of each rank
  std::vector<std::array<double, 4>> stage_ms;  // F, I, W and B of each stage, the mean; 0: not in the schedule
};

// Of some more steps; all ranks call it. A pass counts from when what it reads is there to the end of its work, gathers of weights that it
// waits for included.
Bubbles measure_bubbles(Engine& engine, Processes& processes, int64_t microbatches, const std::function<void()>& step);
std::string bubbles_text(const Bubbles& bubbles);

}  // namespace halftone::bench
