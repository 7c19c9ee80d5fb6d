#pragma once
#include <string>
#include <vector>

#include "halftone/config/parallelism_config.h"
#include "halftone/config/training_config.h"
#include "halftone/parallel/schedule.h"

namespace halftone::parallel {

// Units of a model that one stage has, by their place: 0 is the embedding, then come the blocks, and last norm and head.
struct StageUnits {
  int64_t first = 0, end = 0;
  bool has(int64_t unit) const { return unit >= first && unit < end; }
};

// The stages of a model of so many layers (platform.md 9.5). Error naming the fields where they make none.
std::vector<StageUnits> split_stages(const ParallelismConfig& config, int64_t layers);

// "stage 1   on rank 8       16 layers: 16 - 31, norm, output"
std::string stage_text(int64_t stage, const StageUnits& units, int64_t rank, int64_t layers);

// What a step's rows are cut into, of each of `batch` processes that read rows of their own.
int64_t microbatches_of_step(const ParallelismConfig& config, const TrainingConfig& training, int64_t batch);

// What [parallelism] asks for, of so many micro-batches. A layer is expected to take 4, 5 and 3 (measured on H100s at rows of 8,192), and
// the head, whose gradients come with its loss, as many layers' times as the last stage has less.
Schedule schedule_of(const ParallelismConfig& config, const std::vector<StageUnits>& stages, int64_t microbatches);

}  // namespace halftone::parallel
