#pragma once
#include <array>
#include <vector>

#include "halftone/config/job_config.h"
#include "halftone/formats/support.h"
#include "halftone/nn/model.h"

namespace halftone {

// Per token of a block, by nn::Recompute: bytes kept for backward, and multiply-adds that are recomputed.
struct RecomputeCost {
  std::array<double, 3> bytes{}, work{};
};

// Costs of the blocks of a run's model, from dry runs in each mode.
std::vector<RecomputeCost> recompute_costs(JobConfig config, int64_t layers, Hardware hardware);
// The plan of [activation_checkpoint] for blocks with these costs, which only memory_budget uses: it keeps at most full + memory_budget *
// (none - full) bytes, with the least recomputation.
nn::RecomputePlan recompute_plan(const ActivationCheckpointConfig& config, const std::vector<RecomputeCost>& blocks);
// The same for a model with its recipes. own: the blocks of this rank's stages, among which every n-th is counted and which share the
// budget; none: all.
nn::RecomputePlan recompute_plan(nn::Model& model, const JobConfig& config, Hardware hardware, const std::vector<int64_t>& own = {});
// "memory_budget (10 blocks full, 4 op, 18 none)"; other modes by their name.
std::string recompute_text(const ActivationCheckpointConfig& config, const nn::RecomputePlan& plan);

}  // namespace halftone
