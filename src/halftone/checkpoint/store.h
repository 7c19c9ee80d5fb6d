#pragma once
#include <exception>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "halftone/checkpoint/hf.h"
#include "halftone/checkpoint/loaded_step.h"
#include "halftone/checkpoint/tensor_io.h"

// Steps of a run: `folder/step-N/{index.json, model-<k>.safetensors, optim-<k>.safetensors, state.json, tokenizer files}`.
// A step appears by one rename after all its files are on the disk, so a crash at any moment leaves complete steps only.
namespace halftone {

struct StepState {
  int64_t step = 0;
  bool model_only = false;                    // never a resume point
  std::vector<NamedTensor> model;             // FQN -> tensor
  std::vector<NamedTensor> optim;             // "optim.state.{fqn}.{name}" and "optim.param_groups.{fqn}.{key}"; empty when model_only
  std::string state_json = "{}";              // the trainer's own: lr_scheduler, dataloader, train_state, rng, config, formats
  std::optional<at::ScalarType> model_dtype;  // floating-point model tensors are written as this (checkpoint.export_dtype)
  std::vector<std::pair<std::string, std::filesystem::path>> copy_files;  // name inside the step folder, file to copy
  int64_t world = 1;
  std::map<std::string, int64_t> mesh;
};

struct CheckpointOptions {
  std::filesystem::path folder;
  int keep_latest_k = 10;  // 0 keeps all
  bool checksum = true, verify_on_load = true;
  int64_t max_shard_bytes = int64_t{5} << 30;
  bool async = false;  // copy to the host, then write on a background thread
};

// `path` itself when it is a step or Hugging Face folder; else the newest valid step below `path` or `path`/checkpoint.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& path);

class CheckpointStore {
 public:
  explicit CheckpointStore(CheckpointOptions options);
  ~CheckpointStore();  // waits; a failure that nobody collected is logged

  // Start of a run: makes the folder, fails unless it is writable, deletes what an interrupted save or deletion left behind.
  void prepare();
  // Writes step-N (replacing an older one of that number) and then, after a full step, deletes the oldest full ones beyond
  // keep_latest_k. First waits for the save before; its failure is raised here. With options.async this returns after the copy to the
  // host, unless `synchronous`. On failure the step before is untouched and nothing of the new one stays.
  void save(const StepState& state, bool synchronous = false);
  // The last save of a run in Hugging Face's layout; a model-only step. Always synchronous.
  void save_hf(int64_t step, const HfExport& content);
  // Waits for the background write and raises its failure: call it before exit.
  void wait();

  std::vector<int64_t> valid_steps() const;  // increasing; index parses and all files have the stated sizes
  bool resumable() const;                    // one of them is a full step
  // The newest valid step up to `at_most`; with verify_on_load its checksums agree too, else it is skipped with a warning. Step folders
  // of which none is valid are an error: starting anew beside them would lose what can perhaps be repaired.
  std::optional<int64_t> latest_valid(bool full_only, int64_t at_most = std::numeric_limits<int64_t>::max()) const;
  // Renames the steps after `step`, so that none of another course of the run is taken for one of this; returns where they are now.
  std::vector<std::filesystem::path> set_aside_after(int64_t step);
  LoadedStep open(int64_t step) const;
  std::filesystem::path step_folder(int64_t step) const;

 private:
  void write(const StepState& state);
  void purge_old(int64_t newest);
  std::vector<int64_t> full_steps() const;
  // inspect_step with verify_on_load; each step is read once per start, and again after it was written.
  const StepSummary& inspect(int64_t step) const;
  CheckpointOptions options_;
  std::thread worker_, purger_;
  std::exception_ptr failure_;
  mutable std::map<int64_t, StepSummary> inspected_;
};

}  // namespace halftone
