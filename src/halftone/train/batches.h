#pragma once
#include <optional>
#include <vector>

#include "halftone/data/loader.h"
#include "halftone/train/engine.h"
#include "halftone/train/processes.h"

namespace halftone {

// A loader's batch on the engine's device; `first_row` as in MicroBatch. One micro-batch, or the pipeline's micro-batches of it.
std::vector<MicroBatch> to_device(const Batch& batch, const Engine& engine, int64_t first_row);
// Index of the first token of this loader's `a`-th micro-batch in the step's global batch.
int64_t first_token(const DataLoader& loader, int64_t a, const Batch& batch);
// The micro-batches of the loader's next step, without consuming them; fewer at the end of the data.
std::vector<MicroBatch> coming_step(DataLoader& loader, const Engine& engine);

// Agreement of all ranks before a step.
struct StepAgreement {
  bool has_rows = true;  // all of them
  int64_t valid_labels = 0, tokens = 0;
  int signal = 0;  // that one of them has received: the run ends behind this step
  // The longest wait for the loader, and whose it was; how much later than the first process the last one came to the step before, as
  // far as that is the host's doing.
  double data_seconds = 0, lag_seconds = 0;
  int64_t data_rank = 0, lag_rank = 0;
};
StepAgreement agree_on_step(Processes& processes, const std::optional<std::vector<MicroBatch>>& batches, int signal, double data_seconds);

// One pass over the loader's rows of all ranks, from the first.
struct Evaluation {
  double loss_sum = 0;  // nats over valid labels
  int64_t valid_labels = 0, tokens = 0;
  int64_t label_bytes = 0;  // as in Batch
  double seconds = 0;
  double loss() const { return loss_sum / static_cast<double>(valid_labels); }
};
Evaluation evaluate(Engine& engine, DataLoader& loader, Processes& processes);

}  // namespace halftone
