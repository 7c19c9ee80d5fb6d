#pragma once
#include <vector>

#include "halftone/data/loader.h"
#include "halftone/train/engine.h"

namespace halftone {

// A loader's batch on the engine's device; `first_row` as in MicroBatch.
MicroBatch to_device(const Batch& batch, const Engine& engine, int64_t first_row);
// The micro-batches of the loader's next step, which stay its next ones; fewer where the data end.
std::vector<MicroBatch> coming_step(DataLoader& loader, const Engine& engine);

}  // namespace halftone
