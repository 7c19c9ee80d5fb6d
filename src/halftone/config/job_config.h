#pragma once
#include "halftone/config/alarms_config.h"
#include "halftone/config/checkpoint_config.h"
#include "halftone/config/model_config.h"
#include "halftone/config/parallelism_config.h"
#include "halftone/config/quantize_config.h"
#include "halftone/config/run_config.h"
#include "halftone/config/training_config.h"

namespace halftone {

// Values of the settings of other platforms that have no effect or are not available, by dotted name; config/walk.cpp has their table.
using IgnoredSettings = std::map<std::string, std::variant<std::monostate, bool, int64_t, double, std::string, std::optional<std::string>,
                                                           StringList, std::vector<StringList>>>;
IgnoredSettings ignored_settings();

// Every setting of a run, in torchtitan v0.2.2's sections and names.
struct JobConfig {
  JobSection job;
  ProfilingConfig profiling;
  MetricsConfig metrics;
  ModelConfig model;
  OptimizerConfig optimizer;
  LrSchedulerConfig lr_scheduler;
  TrainingConfig training;
  ParallelismConfig parallelism;
  CheckpointConfig checkpoint;
  ActivationCheckpointConfig activation_checkpoint;
  QuantizeConfig quantize;
  AlarmsConfig alarms;
  CommConfig comm;
  DebugConfig debug;
  ValidationConfig validation;
  SampleConfig sample;
  DataConfig data;
  IgnoredSettings ignored = ignored_settings();

  static void fields(auto& self, auto&& field) {
    field("job", self.job, "the run and its outputs");
    field("profiling", self.profiling, "traces and memory snapshots");
    field("metrics", self.metrics, "what is logged, and where");
    field("model", self.model, "model, flavour, tokenizer");
    field("optimizer", self.optimizer, "optimizer");
    field("lr_scheduler", self.lr_scheduler, "learning-rate schedule");
    field("training", self.training, "data, batch, steps, precision");
    field("parallelism", self.parallelism, "parallel degrees and schedules");
    field("checkpoint", self.checkpoint, "saving and loading");
    field("activation_checkpoint", self.activation_checkpoint, "recomputation in the backward pass");
    field("quantize", self.quantize, "low-precision training");
    field("alarms", self.alarms, "figures of a step that warn of divergence, stop the run or roll it back");
    field("comm", self.comm, "collectives");
    field("debug", self.debug, "seed and determinism");
    field("validation", self.validation, "validation passes");
    field("data", self.data, "where data sets lie, and how remote ones are read");
    field("sample", self.sample, "text generated at the end of a run");
  }
};

}  // namespace halftone
