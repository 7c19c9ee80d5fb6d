#pragma once
#include "halftone/config/field.h"

namespace halftone {

// [parallelism]
struct ParallelismConfig {
  int64_t data_parallel_replicate_degree = 1;
  int64_t data_parallel_shard_degree = -1;
  std::string fsdp_reshard_after_forward = "default";
  int64_t tensor_parallel_degree = 1;
  bool disable_loss_parallel = false;
  bool enable_async_tensor_parallel = false;
  int64_t pipeline_parallel_degree = 1;
  std::optional<std::vector<StringList>> module_fqns_per_model_part;
  int64_t pipeline_parallel_first_stage_less_layers = 1;
  int64_t pipeline_parallel_last_stage_less_layers = 1;
  std::optional<int64_t> pipeline_parallel_layers_per_stage;
  std::string pipeline_parallel_schedule = "1F1B";
  std::optional<std::string> pipeline_parallel_schedule_csv = "";
  int64_t pipeline_parallel_microbatch_size = 1;
  int64_t context_parallel_degree = 1;
  std::optional<std::string> context_parallel_load_balancer = "headtail";
  std::string context_parallel_rotate_method = "allgather";
  int64_t expert_parallel_degree = 1;
  int64_t expert_tensor_parallel_degree = 1;
  std::string expert_parallel_comm_backend = "standard";
  double expert_parallel_capacity = 0;
  std::string expert_parallel_dispatch_dtype;
  bool enable_sequence_parallel = true;
  std::optional<std::string> context_parallel_ptrr_mask_key;

  // Whether TP splits the width of each expert; otherwise a rank holds whole experts.
  bool cuts_experts() const { return expert_parallel_degree == 1 || expert_tensor_parallel_degree == tensor_parallel_degree; }

  static void fields(auto& self, auto&& field) {
    field("data_parallel_replicate_degree", self.data_parallel_replicate_degree, "replicas: DDP when the shard degree is 1, else HSDP",
          {.min = 1});
    field("data_parallel_shard_degree", self.data_parallel_shard_degree, "FSDP ranks; -1 = all remaining ranks");
    field("fsdp_reshard_after_forward", self.fsdp_reshard_after_forward,
          "free gathered weights after the forward pass; default = yes, no with a pipeline", {.choices = {"default", "always", "never"}});
    field("tensor_parallel_degree", self.tensor_parallel_degree, "ranks of tensor and sequence parallelism", {.min = 1});
    field("disable_loss_parallel", self.disable_loss_parallel, "gather the logits before the loss");
    field("enable_async_tensor_parallel", self.enable_async_tensor_parallel, "overlap TP collectives with chunks of the GEMMs");
    field("pipeline_parallel_degree", self.pipeline_parallel_degree, "pipeline ranks", {.min = 1});
    field("module_fqns_per_model_part", self.module_fqns_per_model_part, "modules of each pipeline stage");
    field("pipeline_parallel_first_stage_less_layers", self.pipeline_parallel_first_stage_less_layers, "cost of the embedding, in layers",
          {.min = 0});
    field("pipeline_parallel_last_stage_less_layers", self.pipeline_parallel_last_stage_less_layers, "cost of norm and head, in layers",
          {.min = 0});
    field("pipeline_parallel_layers_per_stage", self.pipeline_parallel_layers_per_stage, "layers of a virtual stage; sets their number",
          {.min = 1});
    field("pipeline_parallel_schedule", self.pipeline_parallel_schedule,
          "pipeline schedule; PipelineScheduleSingle and PipelineScheduleMulti read pipeline_parallel_schedule_csv",
          {.choices = {"1F1B", "GPipe", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV",
                       "PipelineScheduleSingle", "PipelineScheduleMulti"},
           .any_case = true});
    field("pipeline_parallel_schedule_csv", self.pipeline_parallel_schedule_csv, "CSV file with a schedule");
    field("pipeline_parallel_microbatch_size", self.pipeline_parallel_microbatch_size,
          "rows of a micro-batch; divides training.local_batch_size", {.min = 1});
    field("context_parallel_degree", self.context_parallel_degree, "ranks that share each row", {.min = 1});
    field("context_parallel_load_balancer", self.context_parallel_load_balancer,
          "headtail, ptrr (by attention cost), None = contiguous chunks", {.choices = {"headtail", "ptrr"}});
    field("context_parallel_rotate_method", self.context_parallel_rotate_method, "how keys and values are exchanged",
          {.choices = {"allgather", "alltoall"}});
    field("expert_parallel_degree", self.expert_parallel_degree, "ranks that share the experts; dense models ignore it", {.min = 1});
    field("expert_tensor_parallel_degree", self.expert_tensor_parallel_degree, "1 or tensor_parallel_degree", {.min = 1});
    field("expert_parallel_comm_backend", self.expert_parallel_comm_backend,
          "standard; deepep is accepted and uses halftone's own dispatcher", {.choices = {"standard", "deepep"}});
    field("expert_parallel_capacity", self.expert_parallel_capacity,
          "capacity factor of the all-to-all between two ranks, relative to an even spread: rows beyond it are dropped and the host "
          "never waits; 0 = no limit",
          {.mark = Mark::E, .min = 0});
    field("expert_parallel_dispatch_dtype", self.expert_parallel_dispatch_dtype,
          "dtype of tokens sent to their experts: fp8_rowwise, mxfp8; empty = the compute dtype, as for results and gradients",
          {.mark = Mark::E, .choices = {"", "fp8_rowwise", "mxfp8"}});
    field("enable_sequence_parallel", self.enable_sequence_parallel, "false = full activations between blocks", {.mark = Mark::E});
    field("context_parallel_ptrr_mask_key", self.context_parallel_ptrr_mask_key, "mask whose cost ptrr balances",
          {.mark = Mark::E, .choices = {"basic_mask", "sliding_window_mask"}});
  }
};

}  // namespace halftone
