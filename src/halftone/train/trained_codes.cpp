#include "halftone/train/trained_codes.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "halftone/base/log.h"
#include "halftone/config/load.h"
#include "halftone/models/registry.h"
#include "halftone/nn/recipe_schedule.h"
#include "halftone/ops/hardware.h"
#include "halftone/train/run_state.h"
#include "halftone/train/silence.h"

namespace halftone {

TrainedCodes trained_codes(const LoadedStep& step) {
  TrainedCodes codes;
  if (step.hf_config() != nullptr) return codes;
  nlohmann::json state = saved_state(step);
  const auto config = state.find("config"), model = state.find("model");
  if (config == state.end() || !config->is_object() || model == state.end() || !model->is_object()) return codes;
  (*config)["model"]["overrides"] = model->value("hyper_parameters", nlohmann::json::object());
  JobConfig trained = config_from_json(config->dump());
  if (state.contains("recipe") && state["recipe"].is_string()) trained.quantize.recipe_text = state["recipe"].get<std::string>();
  codes.bf16 = trained.training.dtype == "bfloat16" || trained.training.mixed_precision_param == "bfloat16";
  const Silence silence;  // the run has said what the schedule says
  const BuiltModel built = build_model(trained.model, 0);
  const nn::RecipeSchedule recipes(*built.model, trained.quantize, trained.model, hardware_of(c10::DeviceType::CPU),
                                   built.model->size().layers, scheduled_steps(trained));
  for (const auto& [layer, recipe] : recipes.phases()[recipes.phase_of(std::max<int64_t>(step.step(), 1))].recipes)
    if (recipe.linear.w_forward.quantized())
      for (const nn::Parameter* p : layer->weights())
        codes.weights[p->fqn] = {recipe.linear.w_forward, recipe.linear.x_forward, std::string(recipe.linear.name)};
  return codes;
}

std::string lost_codes(const TrainedCodes& codes, const LoadedStep& step, const std::string& weight) {
  if (codes.weights.at(weight).weight.stored) return "its codes were saved as numbers";
  return codes.bf16 && step.info(weight).dtype == FileDType::f16 ? "the checkpoint rounded it to float16" : "";
}

void report_codes(int64_t trained, size_t weights, std::vector<AddedError> added) {
  constexpr size_t kMost = 20;
  log_info("{} of {} weights are written in the codes that training multiplied with", trained, weights);
  std::ranges::sort(added, {}, [](const AddedError& e) { return std::pair(e.decibels, e.weight); });
  for (const AddedError& e : std::span(added).first(std::min(added.size(), kMost)))
    log_info("  {}: signal to error {:.1f} dB as {} ({})", e.weight, e.decibels, e.form, e.why);
  if (added.size() > kMost) log_info("  and {} others from {:.1f} dB on", added.size() - kMost, added[kMost].decibels);
}

}  // namespace halftone
