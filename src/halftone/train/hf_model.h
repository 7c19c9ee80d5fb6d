#pragma once
#include "halftone/checkpoint/hf.h"
#include "halftone/config/model_config.h"
#include "halftone/nn/model.h"

namespace halftone {

// model.overrides that describe the weights of a Hugging Face folder.
OptionTable overrides_from_hf(const HfLlamaConfig& config);
// Error listing the hyper-parameters in which the configured model differs from the folder's config.json, with both values and the
// options that set the folder's.
void check_matches_hf(const std::string& overrides_json, const HfLlamaConfig& config, const std::string& folder);
HfLlamaConfig hf_config_of(const std::string& overrides_json);
// What was imported, completed by the tokenizer's: its BOS where there is none, its EOS where it is not among them.
HfTokenIds exported_token_ids(HfTokenIds imported, std::optional<int32_t> bos, std::optional<int32_t> eos);

}  // namespace halftone
