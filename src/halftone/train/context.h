#pragma once
#include "halftone/config/parallelism_config.h"
#include "halftone/ops/context_rows.h"
#include "halftone/train/step_graph.h"

namespace halftone {

// As [parallelism] says, for a model whose widest window is `window`.
ContextOptions context_options(const ParallelismConfig& parallelism, int64_t window);

// This process's places of rows that it shares with `ranks`, whose work goes on on `device`; `rows` is the same for all of them and may lie
// elsewhere. Draws of each process go by rows of its own.
MicroBatch own_places(const MicroBatch& rows, comm::Communicator& ranks, const ContextOptions& options, c10::Device device);

}  // namespace halftone
