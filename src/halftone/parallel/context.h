#pragma once
#include "halftone/config/parallelism_config.h"
#include "halftone/nn/model.h"
#include "halftone/parallel/context_rows.h"

namespace halftone::parallel {

// From [parallelism], for a model whose widest window is `window`.
ContextOptions context_options(const ParallelismConfig& parallelism, int64_t window);

// This rank's positions of context-parallel rows shared with `ranks`, for computation on `device`; `rows` is the same on all ranks and
// may be on another device. Each rank draws by row indices of its own.
nn::MicroBatch own_places(const nn::MicroBatch& rows, comm::Communicator& ranks, const ContextOptions& options, c10::Device device);

}  // namespace halftone::parallel
