#include "halftone/train/saved_model.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "halftone/base/error.h"
#include "halftone/config/load.h"
#include "halftone/models/registry.h"
#include "halftone/train/run_state.h"

namespace halftone {
namespace {

// Whether the step holds the tensors of the model without recipes. Weights that exist as codes alone and tensors that a recipe adds
// (bitnet's norms, low-rank factors) are read by a model with that recipe only; all other recipes leave the model as it is.
bool holds_plain_model(const LoadedStep& step, const ModelConfig& model) {
  const BuiltModel plain = build_model(model, 0);
  const auto found = step.model_names();
  size_t known = 0;
  plain.model->for_each_parameter([&](const nn::Parameter& p) { known += step.has(p.fqn) ? 1 : 0; });
  return known == found.size();
}

}  // namespace

std::string stored_dtype(const LoadedStep& step) {
  std::map<FileDType, int64_t> elements;
  for (const std::string& name : step.model_names()) {
    const TensorInfo info = step.info(name);
    elements[info.dtype] += std::accumulate(info.shape.begin(), info.shape.end(), int64_t{1}, std::multiplies<>());
  }
  const auto most = std::max_element(elements.begin(), elements.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const FileDType type = most == elements.end() ? FileDType::f32 : most->first;
  return type == FileDType::bf16 ? "bfloat16" : type == FileDType::f16 ? "float16" : type == FileDType::f32 ? "float32" : name_of(type);
}

JobConfig config_of(const LoadedStep& step, bool recipe) {
  JobConfig config;
  if (step.hf_config()) {
    config.model.name = step.hf_config()->model->family().name;
    config.model.overrides = step.hf_config()->model->hyper_parameters();
    config.training.mixed_precision_param = stored_dtype(step) == "float32" ? "float32" : "bfloat16";
    return config;
  }
  nlohmann::json state = saved_state(step);
  const auto model = state.find("model");
  check(state.contains("config") && state["config"].is_object() && model != state.end() && model->is_object(),
        "{}/state.json: it holds no configuration; is it a halftone checkpoint?", step.folder().string());
  state["config"]["model"]["overrides"] = model->value("hyper_parameters", nlohmann::json::object());  // all of them
  const JobConfig trained = config_from_json(state["config"].dump());
  config.model = trained.model;
  config.training.mixed_precision_param = trained.training.mixed_precision_param;
  if (!recipe && holds_plain_model(step, config.model)) {
    config.model.converters.clear();
  } else {
    config.quantize = trained.quantize;
    // A pass of this step also depends on its residual stream and on the phase that fractions of the steps place.
    config.training.mixed_precision_residual = trained.training.mixed_precision_residual;
    config.training.steps = trained.training.steps, config.lr_scheduler.total_steps = trained.lr_scheduler.total_steps;
    config.debug.batch_invariant = trained.debug.batch_invariant;
    if (state.contains("recipe") && state["recipe"].is_string()) config.quantize.recipe_text = state["recipe"].get<std::string>();
  }
  return config;
}

std::string ignored_text(const LoadedStep& step) {
  const int64_t ignored = step.hf_config() ? step.hf_config()->ignored_tensors : 0;
  if (ignored == 0) return {};
  return fmt::format("{}: skipped {} tensors of layers beyond num_hidden_layers (multi-token prediction), as in transformers",
                     step.folder().string(), ignored);
}

}  // namespace halftone
