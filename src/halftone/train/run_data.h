#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "halftone/data/loader.h"
#include "halftone/train/engine.h"
#include "halftone/train/processes.h"

namespace halftone {

// training.global_batch_size, or the sum of `processes` local batches if unset; Error if it is not a multiple of that.
int64_t rows_per_step(const TrainingConfig& config, int64_t processes = 1);

// The training and validation rows of a run.
class RunData {
 public:
  // Opens the data; tokenises it if that has not been done before.
  RunData(const JobConfig& config, const Tokenizer& tokenizer, const Engine& engine, const Processes& processes);

  ~RunData() { stop_remote_reads(); }  // the loaders' threads may wait for a server
  RunData(const RunData&) = delete;
  RunData& operator=(const RunData&) = delete;

  // The next step's micro-batches on the engine's device, skipping left-out rows; none at the end of the data, or when a server does not
  // answer and `stops` is true.
  std::optional<std::vector<MicroBatch>> next_step(const std::function<bool()>& stops);
  RowCursor rows() const { return rows_; }  // start of the latest step's rows
  // Skips the rows of the step that begins there when they come up again.
  void leave_out(const RowCursor& rows) { left_out_.insert(rows); }

  // Time that next_step waited for the loader since the last call.
  struct Wait {
    double seconds = 0;
    int64_t batches = 0;
  };
  Wait take_wait() { return std::exchange(wait_, {}); }
  double wait_of_step() const { return wait_of_step_; }  // seconds in the latest next_step call

  DataLoader& loader() { return *loader_; }
  DataLoader* validation() const { return validation_.get(); }  // null without validation
  const nlohmann::json& first_rows() const { return first_rows_; }
  const std::vector<std::string>& sources() const { return sources_; }  // names of a mixture's sources
  // Digests of the data behind the rows, by a name for messages. All ranks must have read the same data.
  std::vector<std::pair<std::string, std::string>> contents() const;

 private:
  const Engine& engine_;
  std::unique_ptr<DataLoader> loader_, validation_;
  nlohmann::json first_rows_;  // the loader's initial state
  std::vector<std::string> sources_;
  RowCursor rows_;                // of the latest step
  std::set<RowCursor> left_out_;  // starts of the steps that rollbacks skip
  Wait wait_;
  double wait_of_step_ = 0;
};

}  // namespace halftone
