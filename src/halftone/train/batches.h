#pragma once
#include <vector>

#include "halftone/data/loader.h"
#include "halftone/train/engine.h"

namespace halftone {

// A loader's batch on the engine's device; `first_row` as in MicroBatch.
MicroBatch to_device(const Batch& batch, const Engine& engine, int64_t first_row);
// The micro-batches of the loader's next step, which stay its next ones; fewer where the data end.
std::vector<MicroBatch> coming_step(DataLoader& loader, const Engine& engine);

// One pass over the loader's rows, from the first.
struct Evaluation {
  double loss_sum = 0;  // nats over valid labels
  int64_t valid_labels = 0, tokens = 0;
  int64_t label_bytes = 0;  // as in Batch
  double seconds = 0;
  double loss() const { return loss_sum / static_cast<double>(valid_labels); }
};
Evaluation evaluate(Engine& engine, DataLoader& loader);

}  // namespace halftone
