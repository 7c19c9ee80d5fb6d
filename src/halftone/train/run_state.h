#pragma once
#include <nlohmann/json_fwd.hpp>

#include "halftone/checkpoint/hf_config.h"
#include "halftone/checkpoint/store.h"
#include "halftone/config/job_config.h"
#include "halftone/train/engine.h"

namespace halftone {

// State of a run outside the engine.
struct RunProgress {
  int64_t step = 0;  // optimizer steps completed
  int64_t tokens_seen = 0;
  uint64_t seed = 0;
  int64_t last_epoch = 0;             // steps of the learning-rate schedule
  int64_t skipped_updates = 0;        // consecutive (training.nonfinite = "skip")
  std::vector<double> recent_losses;  // for the running median of training.spike_factor, oldest first
  HfTokenIds token_ids;               // of the Hugging Face folder that the weights came from
};
inline constexpr size_t kMedianWindow = 64;  // losses in the window

// The complete state for resuming, under the names of platform.md section 8; tensors alias the engine's. With several ranks, this rank's
// part: replicas split the tensors that they all hold, rank 0 has the other values.
StepState collect_state(Engine& engine, const RunProgress& progress, const nlohmann::json& loader, const JobConfig& config, bool model_only,
                        const CheckpointRanks& ranks = {});
// Assigns items of these sizes to `count` replicas with about equal sums; returns each item's writer.
std::vector<int64_t> share_out(const std::vector<int64_t>& bytes, int64_t count);
// The dequantised model, as collect_state returns it for a model only.
std::vector<NamedTensor> model_numbers(Engine& engine, const CheckpointRanks& ranks = {});

// Loads model tensors (masters) from a step or a Hugging Face folder; converts other floating-point types.
void restore_model(Engine& engine, const LoadedStep& step);
// Loads the moments and the optimizer's step count.
void restore_optimizer(Engine& engine, const LoadedStep& step);
// state.json, an object (Error otherwise), and parts of it, each checked. Error naming the file's folder if one is missing or malformed.
nlohmann::json saved_state(const LoadedStep& step);
RunProgress restored_progress(const LoadedStep& step);
HfTokenIds saved_token_ids(const LoadedStep& step);  // of a Hugging Face folder, or as saved by a run that started from one
nlohmann::json restored_loader_state(const LoadedStep& step);

// Name and path of the tokenizer files, given by folder or tokenizer.json, that every checkpoint copies.
std::vector<std::pair<std::string, std::filesystem::path>> tokenizer_files(const std::filesystem::path& folder_or_file);

}  // namespace halftone
