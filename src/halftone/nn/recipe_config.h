#pragma once
#include "halftone/config/job_config.h"
#include "halftone/nn/recipe.h"

namespace halftone::nn {

// quantize.scheme (one name or a table) or model.converters as rules; at most one of the sources may be active.
// Error naming the option when a value has no effect in this build.
RecipePlan recipe_plan(const QuantizeConfig& quantize, const ModelConfig& model, int64_t layers);

}  // namespace halftone::nn
