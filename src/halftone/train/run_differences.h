#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "halftone/checkpoint/loaded_step.h"
#include "halftone/config/job_config.h"

// Differences between a run that resumes from a step and the run that wrote it. Older steps may lack some of the data: a missing value is
// no difference.
namespace halftone {

// Hyper-parameters that differ from the model's: "model.overrides.n_heads is 4, it was 2".
std::vector<std::string> model_differences(const ModelDescription& model, const LoadedStep& step);

// Differences in arithmetic and storage: options of [quantize] and of converters that one of the two names, the dtypes of [training], the
// storage of the moments, and what the recipe file means, wherever it is: "quantize.scheme is int8, it was
// mxfp4", "recipe.yaml:5: use_hadamard is true, it was false".
std::vector<std::string> arithmetic_differences(const JobConfig& config, const LoadedStep& step);

// The same [quantize] under another version's defaults, from the start lines that name the options in effect (Engine::recipe_lines).
std::vector<std::string> default_differences(const std::vector<std::string>& recipe_lines, const LoadedStep& step);

// Facts about a run's rows that its settings alone do not give.
struct RunRows {
  const nlohmann::json& loader_state;  // DataLoader::state
  int64_t ranks = 1;                   // data-parallel
  int64_t validation_rows = 0;         // of a whole pass; 0: no validation
  bool micro_batches_count = false;    // a step depends on how its rows are divided into micro-batches
};

// Other differences that change the course of a run: optimizer, schedule, batch and data, where a difference has an effect from the step
// on. A schedule that differs is followed by the learning rates of both at the step at which the run resumes. Settings that lead to the
// same rows are no difference, and rows are counted over all ranks: "the global batch is 2 rows, it was 4 (...)". Nothing for step 0,
// before which there is no course.
std::vector<std::string> training_differences(const JobConfig& config, const LoadedStep& step, const RunRows& run);

}  // namespace halftone
