#pragma once
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "halftone/checkpoint/hf.h"
#include "halftone/checkpoint/ranks.h"
#include "halftone/checkpoint/tensor_io.h"

// How a step gets onto the disk. Every rank writes its files into step-N.tmp, syncs them and then renames a manifest part-<rank>.json
// there into place: its files with sizes and checksums, its chunks. Rank 0 waits for the manifests, merges them into index.json, opens
// the step as a reader would and renames the folder, for which the others look. Folders are listed anew each time: file systems of
// networks answer a question for one name from their memory.
namespace halftone {

struct StepState {
  int64_t step = 0;
  bool model_only = false;                      // never a resume point
  std::vector<NamedTensor> model{};             // FQN -> tensor; of many ranks: what this one writes
  std::vector<NamedTensor> optim{};             // "optim.state.{fqn}.{name}" and "optim.param_groups.{fqn}.{key}"; empty when model_only
  TensorSource read{};                          // where set, tensors of `model` have no contents (device meta), and this reads them
  std::string state_json = "{}";                // the trainer's own: lr_scheduler, dataloader, train_state, rng, config, formats
  std::optional<at::ScalarType> model_dtype{};  // floating-point model tensors are written as this (checkpoint.export_dtype)
  std::vector<std::pair<std::string, std::filesystem::path>> copy_files{};  // name inside the step folder, file to copy
};

struct CheckpointOptions {
  std::filesystem::path folder;
  int keep_latest_k = 10;  // 0 keeps all
  bool checksum = true, verify_on_load = true;
  int64_t max_shard_bytes = int64_t{5} << 30;
  bool async = false;  // copy to the host, then write on a background thread
  CheckpointRanks ranks{};
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  // of a save's wait for other ranks
};

inline constexpr const char* kTemporary = ".tmp";  // ending of a step that is being written
inline constexpr const char* kReplaced = ".old";

// Writes this rank's part of the step `target`, and on return that is complete: rank 0 gives the name of the first tensor in it that is
// not finite, if there is one. On failure what was there before is untouched, and of the new step at most `target`.tmp stays, which
// nothing reads.
std::optional<std::string> write_step(const std::filesystem::path& target, const StepState& state, const CheckpointOptions& options);

// Writes `target` in Hugging Face's layout. Many ranks write their parts in this program's layout into step-N.tmp/parts; rank 0 makes the
// other from it, a tensor at a time.
void write_hf_step(const std::filesystem::path& target, int64_t step, const HfExport& content, const CheckpointOptions& options);

void rename_or_fail(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace halftone
