#pragma once
#include <string>
#include <vector>

#include "halftone/comm/mesh.h"
#include "halftone/config/job_config.h"
#include "halftone/nn/parameter.h"
#include "halftone/parallel/stages.h"

// A step of many processes, before it runs (train/estimate.h).
namespace halftone {

namespace nn {
class Model;
}

// What one process has of a step. One alone has everything.
struct RankPart {
  int64_t rank = 0, stage_rank = 0;  // of the job, along pp
  int64_t tp = 1, cp = 1, pp = 1, ep = 1, fsdp = 1, efsdp = 1, replicas = 1;
  int64_t batch = 1;         // processes with rows of their own
  int64_t sequence = 1;      // processes among which the tokens are shared out between blocks
  int64_t layers = 0;        // of the model
  bool reshard = true;       // weights are gathered for each pass (ZeRO-3)
  bool cuts_experts = true;  // ParallelismConfig::cuts_experts
  std::vector<int64_t> stage_numbers;
  std::vector<parallel::StageUnits> stages;  // none: the whole model
  int64_t all_stages = 1;
  std::vector<parallel::Action> actions;  // of a pipeline's schedule
  double bubble = 0;                      // share of the time of passes that they wait, on average of the pipeline's processes

  bool has(int64_t unit) const;
  int64_t stage_of(int64_t unit) const;  // among its own
  bool has_blocks() const;
  int64_t shards_of(const nn::Parameter& p) const;
  double held(const nn::Parameter& p) const;   // elements of the largest shard
  double moved(const nn::Parameter& p) const;  // by a gather or reduction of it, over all processes: every shard in the room of the largest
  bool sharded() const { return fsdp > 1 || efsdp > 1; }
};

// A mesh with what a model is on it; micro-batches as [training] has them.
struct StepMesh {
  // Error naming the fields where mesh, model and batch do not go together.
  StepMesh(const JobConfig& config, int64_t world, int64_t layers);
  comm::Mesh mesh;
  std::vector<RankPart> parts;  // one for each place along pp
};

// Cuts a model that has its recipes as the first process of the tensor and expert groups has it. Error where that cannot be.
void cut_model(nn::Model& model, const RankPart& part);

// Bytes that one process receives from others in a step.
struct Traffic {
  std::string_view axis, collective, what;
  double bytes = 0;
  double ms = 0, exposed_ms = 0;  // of it, what no work hides
};

// Bytes a second and GPU that collectives of a group move.
struct Link {
  std::string_view name;
  double rate;
};
constexpr int64_t kGpusOfNode = 8;
Link link_of(const std::vector<int64_t>& ranks);
// Seconds in which one of these ranks gets so many bytes from the others, in so many calls. Rings take a hop for each rank; "all-to-all"
// and "send" leave a node by the GPU's own network card.
double transfer_seconds(const std::vector<int64_t>& ranks, std::string_view collective, double bytes, double calls = 1);

// Axes, stages and the shapes of what one process holds, in lines.
std::vector<std::string> plan_lines(nn::Model& model, const StepMesh& mesh);

}  // namespace halftone
