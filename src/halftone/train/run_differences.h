#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "halftone/checkpoint/loaded_step.h"
#include "halftone/config/job_config.h"

// What a run that goes on from a step does otherwise than the run that wrote it. Older steps may hold less of what is compared: what they
// do not tell is no difference.
namespace halftone {

// Hyper-parameters that differ from the model's: "n_heads is 4, there 2".
std::vector<std::string> model_differences(const ModelDescription& model, const LoadedStep& step);

// What the run computes and stores in: options of [quantize] and of converters that one of the two names, the dtypes of [training], the
// storage of the moments, and what the recipe file means, wherever it is: "quantize.scheme is int8, there mxfp4",
// "recipe.yaml:5: use_hadamard is true, there false".
std::vector<std::string> arithmetic_differences(const JobConfig& config, const LoadedStep& step);

// What else changes the course of a run: optimizer, schedule, batch and data, where a difference has an effect from the step on. A schedule
// that differs is followed by the learning rates of both at the step at which the run goes on. `loader_state` (DataLoader::state) says what
// the data are: settings that lead to the same rows are no difference. Nothing for step 0, before which there is no course.
std::vector<std::string> course_differences(const JobConfig& config, const LoadedStep& step, const nlohmann::json& loader_state);

}  // namespace halftone
