#pragma once
#include "halftone/checkpoint/loaded_step.h"
#include "halftone/config/job_config.h"

namespace halftone {

// The type that most of the weights are stored in: "float32", "bfloat16", "float16" or that of their codes.
std::string stored_dtype(const LoadedStep& step);

// The model that a checkpoint holds, as the configuration of a forward pass: of a run's step what it was trained with, reduced to that. A
// Hugging Face folder is computed in float32 where it is stored so, else in bfloat16. recipe: with the run's products, as far as the step
// holds a model that others can read too; otherwise in the compute dtype.
JobConfig config_of(const LoadedStep& step, bool recipe = false);

// Description of a Hugging Face folder's tensors that the model ignores; empty if there are none.
std::string ignored_text(const LoadedStep& step);

}  // namespace halftone
