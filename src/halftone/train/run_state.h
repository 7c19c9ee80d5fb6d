#pragma once
#include <nlohmann/json_fwd.hpp>

#include "halftone/checkpoint/hf_config.h"
#include "halftone/checkpoint/store.h"
#include "halftone/config/job_config.h"
#include "halftone/train/engine.h"

namespace halftone {

// What of a run is not in the engine.
struct RunProgress {
  int64_t step = 0;  // optimizer steps done
  int64_t tokens_seen = 0;
  uint64_t seed = 0;
  int64_t last_epoch = 0;             // steps of the learning-rate schedule
  int64_t skipped_updates = 0;        // in a row (training.nonfinite = "skip")
  std::vector<double> recent_losses;  // behind the running median of training.spike_factor, oldest first
  HfTokenIds token_ids;               // of the Hugging Face folder that the weights began from
};
inline constexpr size_t kMedianWindow = 64;  // losses in it

// Everything that a resumed run needs, under the names of platform.md section 8; tensors alias the engine's. Of many ranks what this one
// writes: replicas share the tensors that they all hold, rank 0 has the numbers beside them.
StepState collect_state(Engine& engine, const RunProgress& progress, const nlohmann::json& loader, const JobConfig& config, bool model_only,
                        const CheckpointRanks& ranks = {});
// For each of the items of these sizes which of `count` replicas writes it: sums are about equal.
std::vector<int64_t> share_out(const std::vector<int64_t>& bytes, int64_t count);
// The model as numbers, as collect_state has it for a model alone.
std::vector<NamedTensor> model_numbers(Engine& engine, const CheckpointRanks& ranks = {});

// Model tensors (masters) from a step or a Hugging Face folder; other floating-point types are converted.
void restore_model(Engine& engine, const LoadedStep& step);
// Moments and the optimizer's step count.
void restore_optimizer(Engine& engine, const LoadedStep& step);
// state.json, an object (Error otherwise), and parts of it, each checked. Error naming the file's folder when one is missing or malformed.
nlohmann::json saved_state(const LoadedStep& step);
RunProgress restored_progress(const LoadedStep& step);
HfTokenIds saved_token_ids(const LoadedStep& step);  // of a Hugging Face folder, or what a run keeps of the one that it began from
nlohmann::json restored_loader_state(const LoadedStep& step);

// Names and files of a tokenizer, given by its folder or its tokenizer.json, that every checkpoint carries along.
std::vector<std::pair<std::string, std::filesystem::path>> tokenizer_files(const std::filesystem::path& folder_or_file);

}  // namespace halftone
