#pragma once
#include <string>
#include <vector>

#include "halftone/config/parallelism_config.h"
#include "halftone/config/training_config.h"
#include "halftone/parallel/schedule.h"

namespace halftone::parallel {

// A stage's units of a model, by position: 0 is the embedding, then the blocks, last the norm with the head.
struct StageUnits {
  int64_t first = 0, end = 0;
  bool has(int64_t unit) const { return unit >= first && unit < end; }
};

// The stages of a model of this many layers (platform.md 9.5). Error naming the fields if they are inconsistent.
std::vector<StageUnits> split_stages(const ParallelismConfig& config, int64_t layers);

// "stage 1   on rank 8       16 layers: 16 - 31, norm, output"
std::string stage_text(int64_t stage, const StageUnits& units, int64_t rank, int64_t layers);

// Number of micro-batches of a step for each of `batch` data-parallel ranks.
int64_t microbatches_of_step(const ParallelismConfig& config, const TrainingConfig& training, int64_t batch);

// The schedule of [parallelism] for this many micro-batches. A layer is expected to take 4, 5 and 3 (measured on H100s with rows of
// 8,192); the head, whose gradients are computed with its loss, as many layers as the last stage has fewer.
Schedule schedule_of(const ParallelismConfig& config, const std::vector<StageUnits>& stages, int64_t microbatches);

}  // namespace halftone::parallel
