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
  int64_t all_stages = 1;
  std::vector<parallel::Action> actions;  // of a pipeline's schedule
  double bubble = 0;                      // fraction of the passes' time spent waiting, averaged over the pipeline's ranks

  bool has(int64_t unit) const;
  int64_t stage_of(int64_t unit) const;  // among this rank's stages
  bool has_blocks() const;
  int64_t shards_of(const nn::Parameter& p) const;
  double held(const nn::Parameter& p) const;   // elements of the largest shard
  double moved(const nn::Parameter& p) const;  // by an all-gather or reduce-scatter, over all ranks: every shard padded to the largest
  bool sharded() const { return fsdp > 1 || efsdp > 1; }
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

// Bytes that one rank receives from others in a step.
struct Traffic {
  std::string_view axis, collective, what;
  double bytes = 0;
  double ms = 0, exposed_ms = 0;  // of it, exposed
};

// Bandwidth of a group's collectives in bytes/s per GPU.
struct Link {
  std::string_view name;
  double rate;
};
constexpr int64_t kGpusOfNode = 8;
Link link_of(const std::vector<int64_t>& ranks);
// Seconds for one of these ranks to receive `bytes` from the others, in `calls` calls. Rings take one hop per rank; "all-to-all" and
// "send" leave a node through the GPU's own network card.
double transfer_seconds(const std::vector<int64_t>& ranks, std::string_view collective, double bytes, double calls = 1);

// Axes, stages and the shapes that one rank holds, as lines.
std::vector<std::string> plan_lines(nn::Model& model, const StepMesh& mesh);

}  // namespace halftone
