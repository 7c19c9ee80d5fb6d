#pragma once
#include "halftone/config/checkpoint_config.h"
#include "halftone/config/model_config.h"
#include "halftone/config/parallelism_config.h"
#include "halftone/config/quantize_config.h"
#include "halftone/config/run_config.h"
#include "halftone/config/training_config.h"

namespace halftone {

// Everything a run can be told, in torchtitan v0.2.2's sections and names. Each section documents itself in fields().
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
  CompileConfig compile;
  QuantizeConfig quantize;
  CommConfig comm;
  MemoryEstimationConfig memory_estimation;
  FaultToleranceConfig fault_tolerance;
  ExperimentalConfig experimental;
  DebugConfig debug;
  ValidationConfig validation;

  static void fields(auto& self, auto&& field) {
    field("job", self.job, "the run and its output");
    field("profiling", self.profiling, "traces and memory snapshots");
    field("metrics", self.metrics, "what is logged and where");
    field("model", self.model, "model, flavour, tokenizer");
    field("optimizer", self.optimizer, "optimizer");
    field("lr_scheduler", self.lr_scheduler, "learning-rate schedule");
    field("training", self.training, "data, batch, steps, precision");
    field("parallelism", self.parallelism, "degrees and schedules");
    field("checkpoint", self.checkpoint, "saving and loading");
    field("activation_checkpoint", self.activation_checkpoint, "memory for recomputation");
    field("compile", self.compile, "torchtitan's compiler switches (accepted)");
    field("quantize", self.quantize, "low-precision training");
    field("comm", self.comm, "collectives");
    field("memory_estimation", self.memory_estimation, "accepted");
    field("fault_tolerance", self.fault_tolerance, "torchft (not applicable)");
    field("experimental", self.experimental, "Python extensions (not applicable)");
    field("debug", self.debug, "seed, determinism, checks");
    field("validation", self.validation, "validation passes");
  }
};

}  // namespace halftone
