#pragma once
#include "halftone/checkpoint/hf_config.h"
#include "halftone/config/job_config.h"

namespace halftone {

// If model.name is "hf": takes family and hyper-parameters from config.json in model.hf_assets_path; model.overrides override them. For
// families that scale RoPE only for long rows, without weights from such a folder: sets model.rope_scaling_mode by training.seq_len.
void resolve_model(JobConfig& config);
// Error listing the hyper-parameters in which the configured model differs from the folder's config.json, with both values and the
// options that would match the folder.
void check_matches_hf(const ModelDescription& model, const ModelDescription& file, const std::string& folder);
// The imported ids, completed by the tokenizer's: its BOS if there is none, its EOS if it is missing.
HfTokenIds exported_token_ids(HfTokenIds imported, std::optional<int32_t> bos, std::optional<int32_t> eos);

}  // namespace halftone
