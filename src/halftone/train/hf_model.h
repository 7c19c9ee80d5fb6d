#pragma once
#include "halftone/checkpoint/hf.h"
#include "halftone/config/model_config.h"
#include "halftone/nn/model.h"

namespace halftone {

// model.overrides that describe the weights of a Hugging Face folder.
OptionTable overrides_from_hf(const HfLlamaConfig& config);
// Error listing the hyper-parameters in which the configured model differs from the folder's config.json.
void check_matches_hf(const std::string& overrides_json, const HfLlamaConfig& config);
HfLlamaConfig hf_config_of(const std::string& overrides_json);

}  // namespace halftone
