#pragma once
#include "halftone/checkpoint/loaded_step.h"
#include "halftone/config/job_config.h"

namespace halftone {

// The model that a checkpoint holds, as the configuration of a forward pass: of a run's step what it was trained with, reduced to that.
JobConfig config_of(const LoadedStep& step, int64_t vocab_size);

// What a Hugging Face folder holds beside the model; empty where there is nothing.
std::string ignored_text(const LoadedStep& step);

}  // namespace halftone
