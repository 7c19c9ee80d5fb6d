#pragma once
#include <array>
#include <vector>

#include "halftone/config/job_config.h"
#include "halftone/nn/model.h"

namespace halftone {

// Of a block, by nn::Recompute: the bytes that it keeps for the backward pass, and the multiply-adds that this does again, of a token.
struct RecomputeCost {
  std::array<double, 3> bytes{}, work{};
};

// What [activation_checkpoint] says of blocks with these costs, which memory_budget alone reads: with it they keep together
// at most full + memory_budget * (none - full) bytes, with the least work done again.
nn::RecomputePlan recompute_plan(const ActivationCheckpointConfig& config, const std::vector<RecomputeCost>& blocks);
// The same of a model with its recipes. own: the blocks of this process's stages, among which every n-th one is counted, and which share
// the budget; none: all.
nn::RecomputePlan recompute_plan(nn::Model& model, const JobConfig& config, c10::Device device, const std::vector<int64_t>& own = {});
// "memory_budget (10 blocks full, 4 op, 18 none)", other modes by their name.
std::string recompute_text(const ActivationCheckpointConfig& config, const nn::RecomputePlan& plan);

}  // namespace halftone
