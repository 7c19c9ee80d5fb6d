#include "halftone/train/saved_model.h"

#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/config/load.h"
#include "halftone/models/registry.h"
#include "halftone/train/run_state.h"

namespace halftone {
namespace {

// Whether the step holds the tensors of the model without recipes. Weights that exist as codes alone and tensors that a recipe adds
// (bitnet's norms, low-rank factors) are read by a model with that recipe only; all other recipes leave the model as it is.
bool holds_plain_model(const LoadedStep& step, const ModelConfig& model, int64_t vocab_size) {
  const BuiltModel plain = build_model(model, vocab_size);
  const auto found = step.model_names();
  size_t known = 0;
  plain.model->for_each_parameter([&](const nn::Parameter& p) { known += step.has(p.fqn) ? 1 : 0; });
  return known == found.size();
}

}  // namespace

JobConfig config_of(const LoadedStep& step, int64_t vocab_size) {
  JobConfig config;
  if (step.hf_config()) {
    config.model.name = step.hf_config()->model->family().name;
    config.model.overrides = step.hf_config()->model->hyper_parameters();
    return config;
  }
  const nlohmann::json state = saved_state(step);
  check(state.contains("config"), "{}/state.json: no configuration in it; is it a checkpoint of halftone?", step.folder().string());
  const JobConfig trained = config_from_json(state["config"].dump());
  config.model = trained.model;
  config.training.mixed_precision_param = trained.training.mixed_precision_param;
  if (holds_plain_model(step, config.model, vocab_size)) {
    config.model.converters.clear();
  } else {
    config.quantize = trained.quantize;
    if (state.contains("recipe") && state["recipe"].is_string()) config.quantize.recipe_text = state["recipe"].get<std::string>();
  }
  return config;
}

std::string ignored_text(const LoadedStep& step) {
  const int64_t ignored = step.hf_config() ? step.hf_config()->ignored_tensors : 0;
  if (ignored == 0) return {};
  return fmt::format("{}: {} tensors of layers behind num_hidden_layers (multi-token prediction) are not read, as in transformers",
                     step.folder().string(), ignored);
}

}  // namespace halftone
