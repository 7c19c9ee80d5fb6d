#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "halftone/cli/plan_choice.h"
#include "halftone/config/job_config.h"
#include "halftone/data/tokenizer.h"
#include "halftone/nn/model.h"
#include "halftone/ops/quantization_stats.h"
#include "halftone/train/engine.h"

namespace halftone::plan {

struct StepTime {
  double seconds = 0;            // of a step: median of the second half, on a CPU their minimum
  std::optional<double> joules;  // mean of these
};

// A configuration's model, weights and rows on this machine, without its run folder's checkpoints. Logs what it measures.
class Workbench {
 public:
  // Reads the data. `steps`: at least 4, of every run() below.
  Workbench(JobConfig config, int64_t steps);
  // Trains from fresh weights, or from checkpoint.initial_load_path, in the compute dtype; the weights that it reaches are those of the
  // functions below. Call first.
  StepTime reference();
  // Each candidate on each group of linear layers: errors over the micro-batches of one step, seconds by the shapes.
  std::vector<Group> try_formats(const std::vector<std::string>& candidates);
  // The same steps with a recipe file.
  StepTime run(const std::string& recipe);

  at::Device device() const { return device_; }
  const std::string& energy_missing() const { return energy_missing_; }

 private:
  std::unique_ptr<Engine> engine_of(const QuantizeConfig& quantize) const;
  StepTime train(Engine& engine);
  std::vector<QuantizationFigures> figures(Engine& engine) const;
  void time_groups(std::vector<Group>& groups, const std::vector<std::string>& candidates) const;

  JobConfig config_;
  int64_t steps_;
  at::Device device_;
  Tokenizer tokenizer_;
  std::vector<std::vector<nn::MicroBatch>> rows_;  // by step
  bool pads_ = false;
  std::vector<std::pair<std::string, at::Tensor>> weights_;  // in main memory
  std::vector<Group> groups_;                                // without trials
  int64_t layers_ = 0;                                       // linear layers of the blocks
  std::string energy_missing_;
};

}  // namespace halftone::plan
