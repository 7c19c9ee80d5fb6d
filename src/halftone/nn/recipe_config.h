#pragma once
#include "halftone/config/job_config.h"
#include "halftone/nn/recipe.h"

namespace halftone::nn {

// The one source of quantisation that is active as rules: quantize.scheme (one name or a table), the recipe file that
// quantize.recipe names (its text where that was read), or torchtitan's model.converters (platform.md 3.3). Error naming the option, and
// the line of a recipe file, when a value cannot work.
RecipePlan recipe_plan(const QuantizeConfig& quantize, const ModelConfig& model, int64_t layers);

}  // namespace halftone::nn
