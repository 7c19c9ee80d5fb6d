#pragma once
#include "halftone/config/job_config.h"
#include "halftone/nn/recipe.h"

namespace halftone::nn {

// Converts the active source of quantisation to rules: quantize.scheme (one name or a table), the recipe file that quantize.recipe names
// (or its text, if already read), or torchtitan's model.converters (platform.md 3.3), and of quantize.phases those of the phase. Error
// naming the option, and the line of a recipe file, if a value is invalid.
RecipeRules recipe_rules(const QuantizeConfig& quantize, const ModelConfig& model, int64_t layers, size_t phase = 0);

}  // namespace halftone::nn
