#pragma once
#include <string>
#include <vector>

#include "halftone/config/job_config.h"
#include "halftone/parallel/mesh.h"
#include "halftone/parallel/stages.h"

// A distributed step, predicted before it runs (train/estimate.h).
namespace halftone {

namespace nn {
class Model;
}

// A rank's place in the pipeline; of the other axes, the first one.
struct RankPart {
  int64_t rank = 0, stage_rank = 0;     // in the job, along pp
  std::vector<int64_t> stages, blocks;  // by their numbers
};

// A mesh and the model's layout on it; micro-batches as in [training].
struct StepMesh {
  // Error naming the fields if mesh, model and batch do not fit together.
  StepMesh(const JobConfig& config, int64_t world, int64_t layers);
  parallel::Mesh mesh;
  std::vector<parallel::StageUnits> stages;  // none without a pipeline
  std::vector<RankPart> parts;               // one per position along pp
  double bubble = 0;                         // fraction of the passes' time spent waiting, averaged over the pipeline's ranks
};

// Axes, stages and the shapes that one rank holds, as lines. Splits the model, whose recipes are set, as for the first rank of the tensor
// and expert groups; Error if that is impossible.
std::vector<std::string> plan_lines(nn::Model& model, const ParallelismConfig& config, const StepMesh& mesh);

}  // namespace halftone
