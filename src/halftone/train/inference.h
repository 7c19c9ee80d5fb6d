#pragma once
#include <filesystem>
#include <string>

#include "halftone/checkpoint/loaded_step.h"
#include "halftone/config/job_config.h"
#include "halftone/train/engine.h"

namespace halftone {

class Processes;

// Which checkpoint's model runs, and how, without training it.
struct InferenceOptions {
  std::filesystem::path checkpoint;  // step folder, run folder or Hugging Face folder
  std::filesystem::path tokenizer;   // empty: the checkpoint's own copy
  std::string device = "auto";
  std::string dtype;              // float32 or bfloat16, to compute in; empty: a run's own, that of a Hugging Face folder's weights
  bool recipe = true;             // multiplies as the weights are stored: a run's with its recipe's products; false: in `dtype`
  bool batch_invariant = false;   // debug.batch_invariant, as a run with it does anyway
  ParallelismConfig parallelism;  // of several processes: tensor and expert parallelism; all others of them share the rows of weights
};

// The configuration of the step's model with these options, but for the parallelism. Sets the process's batch invariance.
JobConfig inference_config(const LoadedStep& step, const InferenceOptions& options);
// For an engine of this configuration, whose parallelism is decided; its positions are not set. processes: null, or those that compute
// together, connected by this call. Error for degrees that need more of them.
Engine::Options inference_engine(const JobConfig& config, const std::string& device, Processes* processes);

}  // namespace halftone
