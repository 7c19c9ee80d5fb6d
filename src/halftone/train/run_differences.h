#pragma once
#include <string>
#include <vector>

#include "halftone/checkpoint/loaded_step.h"
#include "halftone/config/job_config.h"

// What a run that goes on from a step does otherwise than the run that wrote it. Older steps may hold less of what is compared: what they
// do not tell is no difference.
namespace halftone {

// Hyper-parameters that differ from `model_json` (BuiltModel::overrides_json): "n_heads is 4, there 2".
std::vector<std::string> model_differences(const std::string& model_json, const LoadedStep& step);

// What the run computes and stores in: options of [quantize] and of converters that one of the two names, the dtypes of [training], the
// storage of the moments, and what the recipe file means, wherever it is: "quantize.scheme is int8, there mxfp4",
// "recipe.yaml:5: use_hadamard is true, there false".
std::vector<std::string> arithmetic_differences(const JobConfig& config, const LoadedStep& step);

}  // namespace halftone
