#include "halftone/train/trained_codes.h"

#include <algorithm>
#include <nlohmann/json.hpp>

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

}  // namespace halftone
