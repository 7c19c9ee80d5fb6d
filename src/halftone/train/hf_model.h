#pragma once
#include "halftone/checkpoint/hf_config.h"
#include "halftone/config/job_config.h"

namespace halftone {

// Where model.name is "hf": family and hyper-parameters of config.json in model.hf_assets_path, under those of model.overrides. Where a
// family scales RoPE for long rows alone and weights are not read from such a folder: model.rope_scaling_mode by training.seq_len.
void resolve_model(JobConfig& config);
// Error listing the hyper-parameters in which the configured model differs from the folder's config.json, with both values and the
// options that set the folder's.
void check_matches_hf(const ModelDescription& model, const ModelDescription& file, const std::string& folder);
// What was imported, completed by the tokenizer's: its BOS where there is none, its EOS where it is not among them.
HfTokenIds exported_token_ids(HfTokenIds imported, std::optional<int32_t> bos, std::optional<int32_t> eos);

}  // namespace halftone
