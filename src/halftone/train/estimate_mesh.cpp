#include "halftone/train/estimate_mesh.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "halftone/nn/model.h"
#include "halftone/nn/parameter_store.h"
#include "halftone/parallel/expert.h"
#include "halftone/parallel/tensor.h"
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

StepMesh::StepMesh(const JobConfig& config, int64_t world, int64_t layers) : mesh(config.parallelism, world) {
  const ParallelismConfig& p = config.parallelism;
  const int64_t ranks = mesh.size("pp");
  parts.resize(static_cast<size_t>(ranks));
  std::vector<int64_t> rank_of = {0};
  if (ranks > 1) {
    stages = parallel::split_stages(p, layers);
    const parallel::Schedule schedule =
        parallel::schedule_of(p, stages, parallel::microbatches_of_step(p, config.training, mesh.size("batch")));
    bubble = parallel::simulate(schedule, schedule.expected).bubble, rank_of = schedule.rank_of;
  }
  for (int64_t r = 0; r < ranks; ++r)
    parts[static_cast<size_t>(r)].rank = r * (world / ranks), parts[static_cast<size_t>(r)].stage_rank = r;
  for (size_t s = 0; s < rank_of.size(); ++s) {
    RankPart& part = parts[static_cast<size_t>(rank_of[s])];
    part.stages.push_back(static_cast<int64_t>(s));
    for (int64_t i = 0; i < layers; ++i)
      if (stages.empty() || stages[s].has(i + 1)) part.blocks.push_back(i);
  }
}

std::vector<std::string> plan_lines(nn::Model& model, const ParallelismConfig& config, const StepMesh& m) {
  const parallel::Mesh& mesh = m.mesh;
  const bool experts = mesh.size("ep") > 1;
  if (experts) parallel::split_experts(model, 0, mesh.size("ep"));
  parallel::split_tensors(model, {mesh.size("tp"), 0, config.enable_sequence_parallel && mesh.size("tp") > 1, config.cuts_experts()});
  std::vector<std::string> lines = {
      fmt::format("mesh of {} ranks, {} per node; groups of rank 0:", mesh.world_size(), std::min(kGpusOfNode, mesh.world_size()))};
  for (const char* axis : {"pp", "dp_replicate", "fsdp", "cp", "tp", "efsdp", "ep", "etp"}) {
    const std::string_view name = axis;
    const bool of_experts = name == "efsdp" || name == "ep" || name == "etp";
    if (mesh.size(name) == 1 || (of_experts && !experts)) continue;
    const std::vector<int64_t> ranks = mesh.ranks(0, name);
    const Link link = link_of(ranks);
    lines.push_back(
        fmt::format("  {:<12} {:>6}  ranks {:<22} {} at {:.0f} GB/s", name, ranks.size(), ranks_text(ranks), link.name, link.rate / 1e9));
  }
  if (!m.stages.empty()) lines.emplace_back("pipeline stages:");
  for (const RankPart& part : m.parts) {
    if (m.stages.empty()) break;
    for (const int64_t s : part.stages)
      lines.push_back("  " + parallel::stage_text(s, m.stages[static_cast<size_t>(s)], part.rank, model.blocks()));
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
                                shape_text(first_shard(p, mesh.size(p.expert && experts ? "efsdp" : "fsdp")).local_shape())));
  });
  return lines;
}

}  // namespace halftone
