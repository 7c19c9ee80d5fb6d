#pragma once
#include <string>
#include <vector>

#include "halftone/config/job_config.h"
#include "halftone/nn/parameter.h"
#include "halftone/parallel/mesh.h"
#include "halftone/parallel/stages.h"

// A distributed step, predicted before it runs (train/estimate.h).
namespace halftone {

namespace nn {
class Model;
}

// One rank's part of a step. A single process has everything.
struct RankPart {
  int64_t rank = 0, stage_rank = 0;  // in the job, along pp
  int64_t tp = 1, cp = 1, pp = 1, ep = 1, fsdp = 1, efsdp = 1, replicas = 1;
  int64_t batch = 1;         // ranks with rows of their own
  int64_t sequence = 1;      // ranks that split the tokens between blocks
  int64_t layers = 0;        // of the full model
  bool reshard = true;       // weights are gathered for each pass (ZeRO-3)
  bool cuts_experts = true;  // ParallelismConfig::cuts_experts
  std::vector<int64_t> stage_numbers;
  std::vector<parallel::StageUnits> stages;  // none: the full model
  double bubble = 0;                         // fraction of the passes' time spent waiting, averaged over the pipeline's ranks

  bool has(int64_t unit) const;
  bool has_blocks() const;
  int64_t shards_of(const nn::Parameter& p) const;
};

// A mesh and the model's layout on it; micro-batches as in [training].
struct StepMesh {
  // Error naming the fields if mesh, model and batch do not fit together.
  StepMesh(const JobConfig& config, int64_t world, int64_t layers);
  parallel::Mesh mesh;
  std::vector<RankPart> parts;  // one per position along pp
};

// Splits a model, after its recipes are set, as for the first rank of the tensor and expert groups. Error if that is impossible.
void cut_model(nn::Model& model, const RankPart& part);

// Axes, stages and the shapes that one rank holds, as lines.
std::vector<std::string> plan_lines(nn::Model& model, const StepMesh& mesh);

}  // namespace halftone
