#pragma once
#include "halftone/config/load.h"
#include "halftone/train/processes.h"
#include "halftone/train/sizing.h"

namespace halftone {

enum class RunEnd { completed, already_complete, interrupted, learned_nothing };

struct RunSummary {
  RunEnd end = RunEnd::completed;
  int signal = 0;  // interrupted: the signal's number
  int64_t step = 0;
  std::string reason;          // learned_nothing: why
  bool finite = true;          // learned_nothing: false when updates were skipped
  double validation_loss = 0;  // of the last pass; 0 when there was none
  std::string checkpoint;      // newest step folder, empty without checkpoints
  bool resumable = false;      // the same command with more steps finds a full step to resume from
  std::string device;          // "cpu" or "cuda"
  RunSize size;                // of the full run, as set by training.minutes
};

// A whole run (platform.md 5.1): tokenizer, data, model, checkpoint or fresh weights, steps, metrics, last save.
// Bad input throws Error before anything is overwritten. `full_run` as in Sizing. All `processes` call it and return the same end.
RunSummary run_training(const LoadedConfig& loaded, Processes& processes, const std::string& version, const std::string& full_run = "");

}  // namespace halftone
