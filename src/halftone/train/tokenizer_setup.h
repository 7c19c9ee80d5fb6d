#pragma once
#include "halftone/config/job_config.h"
#include "halftone/data/tokenizer.h"

namespace halftone {

// The tokenizer of model.hf_assets_path. If it is missing and model.train_tokenizer asks for it, trains one on (a fixed sample of) the
// training text and saves it there.
Tokenizer prepare_tokenizer(const JobConfig& config);

}  // namespace halftone
