#pragma once
#include "halftone/config/job_config.h"
#include "halftone/data/tokenizer.h"

namespace halftone {

// The tokenizer of model.hf_assets_path. Where there is none and model.train_tokenizer asks for it, one is trained on (a
// fixed sample of) the training text and kept there.
Tokenizer prepare_tokenizer(const JobConfig& config);

}  // namespace halftone
