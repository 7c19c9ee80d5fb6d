#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "halftone/nn/recipe_schedule.h"
#include "halftone/train/estimate.h"

namespace halftone {

// Estimates of a run with quantize.phases.
struct PhaseEstimates {
  std::vector<Estimate> phases;       // at least one
  std::optional<Estimate> plain;      // without quantisation, if several phases have times
  const Estimate& costliest() const;  // with most memory
};
// As estimate_step, which it calls.
PhaseEstimates estimate_phases(const JobConfig& config, int64_t vocab_size, const EstimateDevice& device, int64_t world = 1);

// One line a phase: its steps, schemes and layers, and where times are known its predicted step time beside that of the compute dtype; then
// the run's. None for a run of one phase. estimates: null without.
std::vector<std::string> plan_lines(const nn::RecipeSchedule& recipes, int64_t last_step, const PhaseEstimates* estimates);
// The same without an engine.
std::vector<std::string> plan_lines(const JobConfig& config, int64_t vocab_size, Hardware hardware, const PhaseEstimates& estimates);

}  // namespace halftone
