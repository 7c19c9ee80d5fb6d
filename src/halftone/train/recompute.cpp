#include "halftone/train/recompute.h"

#include <algorithm>

#include "halftone/base/log.h"
#include "halftone/ops/hardware.h"
#include "halftone/train/estimate.h"

namespace halftone {
namespace {

using nn::Recompute;

// Blocks that are recomputed whole come first and those that keep everything last: the backward pass starts with these, and what they
// free makes room for the tensors of a block that is computed again. So the peak is that of what is kept, and counts describe a plan.
nn::RecomputePlan within_budget(double budget, const std::vector<RecomputeCost>& blocks) {
  const size_t n = blocks.size();
  const auto fill = [&](size_t full, size_t op) {
    nn::RecomputePlan plan(n, Recompute::none);
    std::fill_n(plan.begin(), full + op, Recompute::op);
    std::fill_n(plan.begin(), full, Recompute::full);
    return plan;
  };
  const auto sum = [&](const nn::RecomputePlan& plan, auto member) {
    double total = 0;
    for (size_t i = 0; i < n; ++i) total += (blocks[i].*member)[static_cast<size_t>(plan[i])];
    return total;
  };
  const double least = sum(fill(n, 0), &RecomputeCost::bytes), most = sum(fill(0, 0), &RecomputeCost::bytes);
  const double allowed = (least + budget * (most - least)) * (1 + 1e-12);  // sums in another order
  nn::RecomputePlan best = fill(n, 0);
  double best_work = sum(best, &RecomputeCost::work);
  for (size_t full = 0; full <= n; ++full) {
    for (size_t op = 0; full + op <= n; ++op) {
      nn::RecomputePlan plan = fill(full, op);
      const double work = sum(plan, &RecomputeCost::work);
      if (work < best_work && sum(plan, &RecomputeCost::bytes) <= allowed) best = std::move(plan), best_work = work;
    }
  }
  return best;
}

}  // namespace

nn::RecomputePlan recompute_plan(const ActivationCheckpointConfig& config, const std::vector<RecomputeCost>& blocks) {
  if (config.mode == "memory_budget") return within_budget(config.memory_budget, blocks);
  nn::RecomputePlan plan(blocks.size(), config.mode == "full" ? Recompute::full : Recompute::none);
  if (config.mode != "selective") return plan;
  if (config.selective_ac_option == "op") return nn::RecomputePlan(blocks.size(), Recompute::op);
  const size_t every = std::stoul(config.selective_ac_option);  // its form is checked with the configuration
  for (size_t i = every - 1; i < plan.size(); i += every) plan[i] = Recompute::full;
  return plan;
}

nn::RecomputePlan recompute_plan(nn::Model& model, const JobConfig& config, c10::Device device, const std::vector<int64_t>& own) {
  const ActivationCheckpointConfig& c = config.activation_checkpoint;
  if (c.mode != "memory_budget") {
    const auto blocks = static_cast<size_t>(model.blocks());
    const nn::RecomputePlan counted = recompute_plan(c, std::vector<RecomputeCost>(own.empty() ? blocks : own.size()));
    if (own.empty()) return counted;
    nn::RecomputePlan plan(blocks, Recompute::none);
    for (size_t i = 0; i < own.size(); ++i) plan[static_cast<size_t>(own[i])] = counted[i];
    return plan;
  }
  const EstimateDevice of = estimate_device("", hardware_of(device), 0);
  nn::RecomputePlan plan = StepShape(model, config, of).recompute;
  log_info("Recomputation: {}", recompute_text(c, plan));
  return plan;
}

std::string recompute_text(const ActivationCheckpointConfig& config, const nn::RecomputePlan& plan) {
  if (config.mode != "memory_budget") return config.mode;
  const auto count = [&](Recompute mode) { return std::count(plan.begin(), plan.end(), mode); };
  return fmt::format("memory_budget {} ({} blocks full, {} op, {} none)", config.memory_budget, count(Recompute::full),
                     count(Recompute::op), count(Recompute::none));
}

}  // namespace halftone
