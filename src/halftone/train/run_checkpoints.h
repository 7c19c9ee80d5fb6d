#pragma once
#include <memory>
#include <optional>
#include <string>

#include "halftone/checkpoint/store.h"
#include "halftone/config/job_config.h"
#include "halftone/train/engine.h"
#include "halftone/train/run_data.h"
#include "halftone/train/run_state.h"

namespace halftone {

// The checkpoints of the run's folder, which is created and must be writable; null if checkpoint.enable is off. Collective.
std::unique_ptr<CheckpointStore> open_checkpoints(const JobConfig& config, const CheckpointRanks& ranks = {});

// Start, saves and rollbacks of a run ([checkpoint]). All functions are collective: their decisions are based
// on values equal on every rank, or on rank 0's.
class RunCheckpoints {
 public:
  // The objects whose state a checkpoint holds; all must outlive this.
  struct Run {
    const JobConfig& config;
    const Tokenizer& tokenizer;
    Engine& engine;
    RunData& data;
    RunProgress& progress;  // its seed is that of a fresh run
    CheckpointRanks ranks{};
  };
  // `store` null: nothing is saved.
  RunCheckpoints(const Run& run, CheckpointStore* store) : run_(run), config_(run.config.checkpoint), store_(store) {}

  // Resumes this run, or starts from other weights or fresh ones; false if the run is already complete.
  bool load();
  // Saves the current step, unless already saved; `last`: as the last step of the run.
  void save(bool last);
  // Saves fresh weights as step 0, for runs that start from the same weights.
  void save_seed();
  // Rolls back to the newest full step before the current one and skips the current step's rows, which begin at `rows`; returns its
  // number. NonFiniteError, starting with `reason`, if there is none.
  int64_t go_back(const std::string& reason, const RowCursor& rows);
  int64_t go_back(const std::string& reason) { return go_back(reason, run_.data.rows()); }  // rows of the latest step

  std::optional<int64_t> started_from() const { return started_from_; }
  std::optional<int64_t> last_saved() const { return last_saved_; }

 private:
  bool start();
  bool resume(int64_t number);
  void load_initial();
  void restore(const LoadedStep& step, bool everything);
  void check_same_model(const LoadedStep& step) const;
  void warn_of_differences(const LoadedStep& step) const;
  bool excluded(const char* part) const;
  bool complete() const;
  std::vector<std::pair<std::string, std::filesystem::path>> carried_files() const;
  StepState collect(bool model_only) const;
  void saved_or_loaded(int64_t number);

  Run run_;
  const CheckpointConfig& config_;
  CheckpointStore* store_;
  std::optional<int64_t> started_from_;  // step of this run's folder that was loaded
  std::optional<int64_t> last_saved_;    // step of this run's folder with the current state
};

}  // namespace halftone
