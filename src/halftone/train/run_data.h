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

// training.global_batch_size, or what `processes` local ones make where that is not set; Error when it is no multiple of that.
int64_t rows_per_step(const TrainingConfig& config, int64_t processes = 1);

// The rows of a run: those of its steps and those of its validation.
class RunData {
 public:
  // Opens the data, which are tokenised where that was not done before.
  RunData(const JobConfig& config, const Tokenizer& tokenizer, const Engine& engine, const Processes& processes);

  // The next step's micro-batches on the engine's device, without the rows that are left out; none when the data ended.
  std::optional<std::vector<MicroBatch>> next_step();
  RowCursor rows() const { return rows_; }  // where those of the step given last begin
  // The rows of the step that begins there do not come again.
  void leave_out(const RowCursor& rows) { left_out_.insert(rows); }

  // What next_step waited for the loader since the last call.
  struct Wait {
    double seconds = 0;
    int64_t batches = 0;
  };
  Wait take_wait() { return std::exchange(wait_, {}); }
  double wait_of_step() const { return wait_of_step_; }  // seconds of next_step's last call

  DataLoader& loader() { return *loader_; }
  DataLoader* validation() const { return validation_.get(); }  // null without validation
  const nlohmann::json& first_rows() const { return first_rows_; }
  // What the rows are made of, by its name for messages: all ranks must have read the same.
  std::vector<std::pair<std::string, std::string>> contents() const;

 private:
  const Engine& engine_;
  std::unique_ptr<DataLoader> loader_, validation_;
  nlohmann::json first_rows_;     // the loader's state before it gave any
  RowCursor rows_;                // of the step given last
  std::set<RowCursor> left_out_;  // where those of steps that rollbacks leave out begin
  Wait wait_;
  double wait_of_step_ = 0;
};

}  // namespace halftone
