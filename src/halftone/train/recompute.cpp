#include "halftone/train/recompute.h"

#include <algorithm>
#include <numeric>

#include "halftone/base/log.h"
#include "halftone/ops/hardware.h"
#include "halftone/train/dry_run.h"

namespace halftone {
namespace {

using nn::Recompute;

// Fully recomputed blocks come first and those that keep everything last: backward starts with the latter and frees memory for the
// tensors of recomputed blocks. So the peak is that of the kept tensors, and counts alone describe a plan.
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
  const double allowed = (least + budget * (most - least)) * (1 + 1e-12);  // tolerance for sums in another order
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
  const size_t every = std::stoul(config.selective_ac_option);  // validated with the configuration
  for (size_t i = every - 1; i < plan.size(); i += every) plan[i] = Recompute::full;
  return plan;
}

std::vector<RecomputeCost> recompute_costs(JobConfig config, int64_t layers, Hardware hardware) {
  // One micro-batch in one process: other ranks' shares change all modes alike.
  config.parallelism = {}, config.training.global_batch_size = -1, config.training.offload.clear();
  std::vector<RecomputeCost> costs(static_cast<size_t>(layers));
  const double tokens = static_cast<double>(config.training.local_batch_size * config.training.seq_len);
  double embedded = 0;          // the output of the embedding
  std::vector<double> outputs;  // of the blocks before the last, if the next one is recomputed, which keeps it as its input
  for (const Recompute mode : {Recompute::full, Recompute::none, Recompute::op}) {
    config.activation_checkpoint.mode = mode == Recompute::none ? "none" : mode == Recompute::op ? "selective" : "full";
    config.activation_checkpoint.selective_ac_option = "op";
    const DryStep step = dry_step(config, 0, hardware);
    const auto m = static_cast<size_t>(mode);
    if (mode == Recompute::full) embedded = static_cast<double>(step.range("tok_embeddings forward")->kept) / tokens;
    for (int64_t i = 0; i < layers; ++i) {
      RecomputeCost& c = costs[static_cast<size_t>(i)];
      const double kept = static_cast<double>(step.range(fmt::format("layers.{} forward", i))->kept) / tokens;
      if (mode == Recompute::full) outputs.push_back(kept);
      const double input = i == 0 ? embedded : outputs[static_cast<size_t>(i) - 1];
      c.bytes[m] = mode == Recompute::none ? kept + (i == 0 ? embedded : 0) : kept - outputs[static_cast<size_t>(i)] + input;
      c.work[m] = step.range(fmt::format("layers.{} backward", i))->flops / 2 / tokens;
    }
  }
  for (RecomputeCost& c : costs) {
    for (const Recompute mode : {Recompute::full, Recompute::op}) c.work[static_cast<size_t>(mode)] -= c.work[0];
    c.work[0] = 0;
  }
  return costs;
}

nn::RecomputePlan recompute_plan(nn::Model& model, const JobConfig& config, Hardware hardware, const std::vector<int64_t>& own) {
  const ActivationCheckpointConfig& c = config.activation_checkpoint;
  std::vector<RecomputeCost> costs(static_cast<size_t>(model.blocks()));
  if (c.mode == "memory_budget") costs = recompute_costs(config, model.blocks(), hardware);
  nn::RecomputePlan plan(costs.size(), Recompute::none);
  std::vector<int64_t> blocks = own;
  if (own.empty()) blocks.resize(plan.size()), std::iota(blocks.begin(), blocks.end(), 0);
  std::vector<RecomputeCost> of_blocks;
  for (const int64_t b : blocks) of_blocks.push_back(costs[static_cast<size_t>(b)]);
  const nn::RecomputePlan counted = recompute_plan(c, of_blocks);
  for (size_t i = 0; i < blocks.size(); ++i) plan[static_cast<size_t>(blocks[i])] = counted[i];
  if (c.mode == "memory_budget") log_info("Recomputation: {}", recompute_text(c, counted));
  return plan;
}

std::string recompute_text(const ActivationCheckpointConfig& config, const nn::RecomputePlan& plan) {
  if (config.mode != "memory_budget") return config.mode;
  const auto count = [&](Recompute mode) { return std::count(plan.begin(), plan.end(), mode); };
  return fmt::format("memory_budget {} ({} blocks full, {} op, {} none)", config.memory_budget, count(Recompute::full),
                     count(Recompute::op), count(Recompute::none));
}

}  // namespace halftone
