#include "halftone/train/phase_estimates.h"

#include <algorithm>

#include "halftone/models/registry.h"
#include "halftone/train/console.h"
#include "halftone/train/silence.h"

namespace halftone {

const Estimate& PhaseEstimates::costliest() const {
  return *std::ranges::max_element(phases, {}, [](const Estimate& e) { return e.needed_bytes(); });
}

PhaseEstimates estimate_phases(const JobConfig& config, int64_t vocab_size, const EstimateDevice& device, int64_t world) {
  PhaseEstimates all;
  const size_t count = phase_starts(config.quantize).size();
  JobConfig one = config;
  for (size_t i = 0; i < count; ++i) {
    one.quantize.phase = i;
    all.phases.push_back(estimate_step(one, vocab_size, device, world));
  }
  if (count == 1 || std::ranges::any_of(all.phases, [](const Estimate& e) { return e.work.empty(); })) return all;
  one.quantize = {};
  all.plain = estimate_step(one, vocab_size, device, world);
  return all;
}

std::vector<std::string> plan_lines(const nn::RecipeSchedule& recipes, int64_t last_step, const PhaseEstimates* estimates) {
  std::vector<std::string> lines = recipes.plan_lines(last_step);
  if (lines.empty() || estimates == nullptr || !estimates->plain) return lines;
  const double plain = estimates->plain->step_ms();
  double run = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    const double ms = estimates->phases[i].step_ms();
    lines[i] += fmt::format("; predicted {:.1f} ms a step, {:.2f}x the unquantised speed", ms, plain / ms);
    const auto [first, last] = recipes.steps_of(i, last_step);
    run += static_cast<double>(std::max<int64_t>(0, last - first + 1)) * ms;
  }
  lines.push_back(fmt::format("quantize: predicted for {} steps: {}, {:.2f}x the unquantised speed", last_step, duration_text(run / 1e3),
                              static_cast<double>(last_step) * plain / run));
  return lines;
}

std::vector<std::string> plan_lines(const JobConfig& config, int64_t vocab_size, Hardware hardware, const PhaseEstimates& estimates) {
  const Silence silence;
  const BuiltModel built = build_model(config.model, vocab_size);
  const nn::RecipeSchedule recipes(*built.model, config.quantize, config.model, hardware, built.model->size().layers,
                                   scheduled_steps(config));
  return plan_lines(recipes, std::max<int64_t>(1, config.training.steps), &estimates);
}

}  // namespace halftone
