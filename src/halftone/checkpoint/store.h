#pragma once
#include <atomic>
#include <exception>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "halftone/checkpoint/host_copies.h"
#include "halftone/checkpoint/loaded_step.h"
#include "halftone/checkpoint/step_writer.h"

// Steps of a run: `folder/step-N/{index.json, model-<k>.safetensors, optim-<k>.safetensors, state.json, tokenizer files}`; with several
// ranks model-<rank>-<k> and optim-<rank>-<k>. One rename publishes a step after all its files are on the disk, so a crash at any moment
// leaves only complete steps.
namespace halftone {

// `path` itself if it is a step or Hugging Face folder; otherwise the newest valid step below `path` or `path`/checkpoint.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& path, const CheckpointRanks& ranks = {});

// Discards what an interrupted save or deletion left in the folder of the steps. A full disk leaves half a step that fills it, so this
// comes before anything is written, and waits where space is short. For rank 0, while no other process writes there.
void remove_step_leftovers(const std::filesystem::path& folder);

// Every rank of the job has one and calls the same functions in the same order. Rank 0 alone renames and deletes steps: in prepare(),
// before anybody has passed it; in set_aside_after(), after everybody has arrived there; after a save, which everybody then has left
// (those steps are older than any that is read again). Nobody reads a step that rank 0 has not named.
class CheckpointStore {
 public:
  explicit CheckpointStore(CheckpointOptions options);
  ~CheckpointStore();  // waits; logs a failure that was not collected

  // Start of a run: makes the folder, removes the leftovers in it, then fails unless it is writable. Collective.
  void prepare();
  // Writes step-N (replacing an older one of that number) and then, after a full step of finite tensors, discards the oldest full ones
  // beyond keep_latest_k. First waits for the save before; its failure is raised here. With options.async, unless `synchronous`, this
  // returns after the copy to the host, on a GPU after it was queued: then before_update() must follow. A failure is that of write_step().
  void save(const StepState& state, bool synchronous = false);
  // options.async: allocates memory for the copies of such a state, in the background.
  void reserve(const StepState& like);
  // Call before queuing work that writes to saved tensors.
  void before_update() { copies_.before_update(); }
  // The last save of a run, in Hugging Face's layout: a model-only step, always synchronous.
  void save_hf(int64_t step, const HfExport& content);
  // Waits for the background write and rethrows its failure: call it before exit.
  void wait();

  std::vector<int64_t> valid_steps() const;  // increasing; valid as in inspect_step, without checksums
  bool resumable() const;                    // one of them is a full step
  // The newest step up to `at_most` that rank 0 sees and every rank finds valid (verify_on_load: checksums too); invalid ones are skipped
  // with a warning. Collective. Error if there are step folders but none is valid: starting anew beside them would lose data that may be
  // repairable.
  std::optional<int64_t> latest_valid(bool full_only, int64_t at_most = std::numeric_limits<int64_t>::max()) const;
  // Renames the steps after `step`, so that steps of an abandoned course of the run are not taken for this one's; returns their new
  // paths, on rank 0. Collective: every rank has finished reading before.
  std::vector<std::filesystem::path> set_aside_after(int64_t step);
  LoadedStep open(int64_t step) const;
  std::filesystem::path step_folder(int64_t step) const;

 private:
  void write(const StepState& state);
  void purge_old(int64_t newest);
  std::vector<int64_t> full_steps() const;
  // inspect_step with verify_on_load, by all ranks; each step is read once per start, and again after it was rewritten.
  const StepSummary& inspect(int64_t step) const;
  CheckpointOptions options_;
  bool first() const { return options_.ranks.rank == 0; }
  std::thread worker_;
  std::exception_ptr failure_;
  std::atomic<bool> abandoned_ = false;  // by an exception: the background write stops waiting for peers
  mutable std::map<int64_t, StepSummary> inspected_;
  HostCopies copies_;
};

}  // namespace halftone
