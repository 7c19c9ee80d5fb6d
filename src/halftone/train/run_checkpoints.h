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

// The steps in the run's folder, which is made and must be one that can be written; null where checkpoint.enable is off. Collective.
std::unique_ptr<CheckpointStore> open_checkpoints(const JobConfig& config, const CheckpointRanks& ranks = {});

// From what a run starts, what it saves and to what it goes back ([checkpoint]). All functions are collective: what they decide by is
// the same on every rank, or rank 0's.
class RunCheckpoints {
 public:
  // What a checkpoint holds the state of; all outlive this.
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

  // Goes on with this run, or starts from other weights or fresh ones; false when the run is complete already.
  bool load();
  // The progress's step, unless it is saved already; `last`: as the last step of the run.
  void save(bool last);
  // A step 0 of fresh weights, for runs that start from the same.
  void save_seed();
  // Back to the newest full step before the progress's, without the rows of that one, which begin at `rows`; returns its number.
  // NonFiniteError, which opens with `reason`, where there is none.
  int64_t go_back(const std::string& reason, const RowCursor& rows);
  int64_t go_back(const std::string& reason) { return go_back(reason, run_.data.rows()); }  // of the step that was given last

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
  std::optional<int64_t> last_saved_;    // step of this run's folder with the present state
};

}  // namespace halftone
