#include "halftone/train/estimate_mesh.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "halftone/base/error.h"
#include "halftone/nn/model.h"
#include "halftone/nn/moe.h"
#include "halftone/parallel/data_parallel.h"
#include "halftone/parallel/expert.h"
#include "halftone/parallel/tensor.h"
#include "halftone/train/engine.h"
#include "halftone/train/transfers.h"

namespace halftone {
namespace {

// The shard that the first of so many ranks holds.
nn::Parameter first_shard(nn::Parameter p, int64_t shards) {
  if (shards > 1 && p.numel() > 0) p.shard = nn::share_of(p, {shards, 0});
  return p;
}

std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("{}", fmt::join(shape, " x ")); }

// "0 1 2 ... 7"
std::string ranks_text(const std::vector<int64_t>& ranks) {
  if (ranks.size() <= 5) return fmt::format("{}", fmt::join(ranks, " "));
  return fmt::format("{} {} {} ... {}", ranks[0], ranks[1], ranks[2], ranks.back());
}

}  // namespace

bool RankPart::has(int64_t unit) const {
  return stages.empty() || std::any_of(stages.begin(), stages.end(), [&](const parallel::StageUnits& s) { return s.has(unit); });
}

bool RankPart::has_blocks() const {
  return stages.empty() || std::any_of(stages.begin(), stages.end(), [&](const parallel::StageUnits& s) {
           return std::max<int64_t>(s.first, 1) < std::min(s.end, layers + 1);
         });
}

int64_t RankPart::shards_of(const nn::Parameter& p) const { return p.buffer ? 1 : p.expert ? efsdp : fsdp; }

StepMesh::StepMesh(const JobConfig& config, int64_t world, int64_t layers) : mesh(config.parallelism, world) {
  const ParallelismConfig& p = config.parallelism;
  const TrainingConfig& t = config.training;
  RankPart all;
  all.tp = mesh.size("tp"), all.cp = mesh.size("cp"), all.pp = mesh.size("pp"), all.ep = mesh.size("ep");
  all.fsdp = mesh.size("fsdp"), all.efsdp = all.ep > 1 ? mesh.size("efsdp") : all.fsdp, all.replicas = mesh.size("dp_replicate");
  all.batch = mesh.size("batch"), all.layers = layers;
  all.sequence = p.enable_sequence_parallel ? all.tp : 1;
  all.cuts_experts = p.cuts_experts();
  all.reshard = parallel::reshards(p);
  parts.assign(static_cast<size_t>(all.pp), all);
  if (all.pp == 1) return;
  const std::vector<parallel::StageUnits> stages = parallel::split_stages(p, layers);
  const parallel::Schedule schedule = parallel::schedule_of(p, stages, parallel::microbatches_of_step(p, t, all.batch));
  const double bubble = parallel::simulate(schedule, schedule.expected).bubble;
  for (size_t r = 0; r < parts.size(); ++r) {
    RankPart& part = parts[r];
    part.stage_rank = static_cast<int64_t>(r), part.rank = part.stage_rank * (world / all.pp);
    part.bubble = bubble;
    for (size_t s = 0; s < stages.size(); ++s) {
      if (schedule.rank_of[s] == part.stage_rank) part.stages.push_back(stages[s]), part.stage_numbers.push_back(static_cast<int64_t>(s));
    }
  }
}

void cut_model(nn::Model& model, const RankPart& part) {
  const nn::ModelSize size = model.size();
  check(part.pp == 1 || !size.tied,
        "parallelism.pipeline_parallel_degree = {}: the head shares the embedding's weights (tied), which are in another stage", part.pp);
  if (part.ep > 1) parallel::split_experts(model, 0, part.ep);
  parallel::split_tensors(model, {part.tp, 0, part.sequence > 1, part.cuts_experts});
}

std::vector<std::string> plan_lines(nn::Model& model, const StepMesh& m) {
  const parallel::Mesh& mesh = m.mesh;
  std::vector<std::string> lines = {
      fmt::format("mesh of {} ranks, {} per node; groups of rank 0:", mesh.world_size(), std::min(kGpusOfNode, mesh.world_size()))};
  for (const char* axis : {"pp", "dp_replicate", "fsdp", "cp", "tp", "efsdp", "ep", "etp"}) {
    const std::string_view name = axis;
    const bool of_experts = name == "efsdp" || name == "ep" || name == "etp";
    if (mesh.size(name) == 1 || (of_experts && m.parts[0].ep == 1)) continue;
    const std::vector<int64_t> ranks = mesh.ranks(0, name);
    const Link link = link_of(ranks);
    lines.push_back(
        fmt::format("  {:<12} {:>6}  ranks {:<22} {} at {:.0f} GB/s", name, ranks.size(), ranks_text(ranks), link.name, link.rate / 1e9));
  }
  if (m.parts[0].pp > 1) {
    lines.emplace_back("pipeline stages:");
    for (const RankPart& part : m.parts) {
      for (size_t i = 0; i < part.stages.size(); ++i)
        lines.push_back("  " + parallel::stage_text(part.stage_numbers[i], part.stages[i], part.rank, part.layers));
    }
  }
  lines.emplace_back("parameter shapes: full, held by one rank's layers, shard:");
  std::set<std::string> told;
  model.for_each_parameter([&](const nn::Parameter& p) {
    if (p.numel() == 0 || p.buffer) return;
    // Each name once: all blocks are alike.
    std::string name = p.fqn;
    const std::string block = fmt::format("layers.{}.", p.block);
    if (name.starts_with(block)) name = "layers.*." + name.substr(block.size());
    if (!told.insert(name).second) return;
    lines.push_back(fmt::format("  {:<42} {:>20} {:>18} {:>18}", name, shape_text(p.whole_shape()), shape_text(p.shape),
                                shape_text(first_shard(p, m.parts[0].shards_of(p)).local_shape())));
  });
  return lines;
}

}  // namespace halftone
