#pragma once
#include "halftone/config/parallelism_config.h"
#include "halftone/ops/context_rows.h"
#include "halftone/train/step_graph.h"

namespace halftone {

// From [parallelism], for a model whose widest window is `window`.
ContextOptions context_options(const ParallelismConfig& parallelism, int64_t window);

// This rank's positions of context-parallel rows shared with `ranks`, for computation on `device`; `rows` is the same on all ranks and
// may be on another device. Each rank draws by row indices of its own.
MicroBatch own_places(const MicroBatch& rows, comm::Communicator& ranks, const ContextOptions& options, c10::Device device);

}  // namespace halftone
