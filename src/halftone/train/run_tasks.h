#pragma once
#include <memory>
#include <vector>

#include "halftone/eval/run.h"
#include "halftone/train/console.h"
#include "halftone/train/engine_scorer.h"

namespace halftone {

// validation.tasks: judges the model of a run on tasks (docs/evaluation.md), on any mesh. The data are read and the questions are made
// once.
class RunTasks {
 public:
  // Error for unknown tasks, unusable data, and a task of kind generate on a mesh.
  RunTasks(const JobConfig& config, const Tokenizer& tokenizer, Engine& engine, Processes& processes);
  // eval/TASK/METRIC, eval/TASK/FILTER/METRIC of generated answers, and eval/time(s); the same on every rank.
  Scalars evaluate();

 private:
  eval::RunOptions options_;
  std::vector<eval::PreparedTask> tasks_;
  EngineScorer scorer_;
};

}  // namespace halftone
