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

// How a step is written. Every rank writes its files into step-N.tmp, syncs them and then renames a manifest part-<rank>.json into place
// there: its files with sizes and checksums, and its chunks. Rank 0 waits for the manifests, merges them into index.json, opens the step
// as a reader would and renames the folder, which the other ranks wait for. Waiting ranks list the folder anew each time: network file
// systems answer a lookup of one name from a cache.
namespace halftone {

struct StepState {
  int64_t step = 0;
  bool model_only = false;                      // never a resume point
  std::vector<NamedTensor> model{};             // FQN -> tensor; with several ranks: this rank's part
  std::vector<NamedTensor> optim{};             // "optim.state.{fqn}.{name}" and "optim.param_groups.{fqn}.{key}"; empty if model_only
  TensorSource read{};                          // if set, tensors of `model` have no data (device meta), and this reads them
  std::string state_json = "{}";                // the trainer's own: lr_scheduler, dataloader, train_state, rng, config, formats
  std::optional<at::ScalarType> model_dtype{};  // floating-point model tensors are written in this type (checkpoint.export_dtype)
  std::vector<std::pair<std::string, std::filesystem::path>> copy_files{};  // name in the step folder, file to copy
};

struct CheckpointOptions {
  std::filesystem::path folder;
  int keep_latest_k = 10;  // 0: keep all
  bool checksum = true, verify_on_load = true;
  int64_t max_shard_bytes = int64_t{5} << 30;
  bool async = false;  // copy to the host, then write on a background thread
  CheckpointRanks ranks{};
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  // how long a save waits for other ranks
};

inline constexpr const char* kTemporary = ".tmp";  // ending of a step that is being written
inline constexpr const char* kReplaced = ".old";

// Writes this rank's part of the step `target` and returns once the step is complete; rank 0 returns the name of its first non-finite
// tensor, if any. On failure the previous contents are untouched; of the new step at most `target`.tmp remains, which nothing reads.
std::optional<std::string> write_step(const std::filesystem::path& target, const StepState& state, const CheckpointOptions& options);

// Writes `target` in Hugging Face's layout. Several ranks write their parts in this program's layout into step-N.tmp/parts; rank 0
// converts them, one tensor at a time.
void write_hf_step(const std::filesystem::path& target, int64_t step, const HfExport& content, const CheckpointOptions& options);

void rename_or_fail(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace halftone
