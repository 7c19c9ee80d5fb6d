#include "halftone/train/supported.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/log.h"

namespace halftone {

void refuse_unsupported(const JobConfig& c, int64_t processes) {
  std::vector<std::string> problems;
  const auto refuse = [&](bool set, const char* message) {
    if (set) problems.emplace_back(message);
  };
  const ParallelismConfig& p = c.parallelism;
  refuse(processes == 1 && (p.data_parallel_replicate_degree > 1 || p.data_parallel_shard_degree > 1 || p.context_parallel_degree > 1 ||
                            p.pipeline_parallel_degree > 1),
         "parallelism.*_degree: this is one process; start as many as the degrees make (torchrun --no-python "
         "--nproc_per_node N halftone train ...)");
  const StringList& offload = c.training.offload;
  refuse(c.training.enable_cpu_offload || std::any_of(offload.begin(), offload.end(), [](const auto& what) { return what != "optimizer"; }),
         "training.enable_cpu_offload, training.offload: this build keeps the optimizer's states in host memory, nothing else; set "
         "training.offload = [\"optimizer\"]");
  refuse(c.optimizer.early_step_in_backward, "optimizer.early_step_in_backward: the optimizer steps after backward here; set it to false");
  refuse(c.comm.mode != "default", "comm.mode: fake_backend is the dry run of halftone train alone; set it to default");
  refuse(c.debug.detect_anomaly, "debug.detect_anomaly: this build checks loss and gradient norm only; set it to false");
  const auto idle = [](bool set, const char* line) {
    if (set) log_warning("[compat] {}", line);
  };
  const CommConfig comm;
  idle(processes == 1 && c.training.mixed_precision_reduce != "float32", "training.mixed_precision_reduce: one process reduces nothing");
  idle(processes == 1 &&
           (c.comm.init_timeout_seconds != comm.init_timeout_seconds || c.comm.train_timeout_seconds != comm.train_timeout_seconds ||
            c.comm.trace_buf_size != comm.trace_buf_size || c.comm.save_traces_folder != comm.save_traces_folder ||
            c.comm.save_traces_file_prefix != comm.save_traces_file_prefix),
       "comm: one process has no collectives to time or to trace");
  idle(p.expert_parallel_degree == 1 && (p.expert_parallel_capacity > 0 || !p.expert_parallel_dispatch_dtype.empty()),
       "parallelism.expert_parallel_capacity, parallelism.expert_parallel_dispatch_dtype: every process has all experts, no token travels");
  idle(p.enable_async_tensor_parallel && (p.tensor_parallel_degree == 1 || !p.enable_sequence_parallel),
       "parallelism.enable_async_tensor_parallel: without shards of tokens nothing travels beside products");
  const ActivationCheckpointConfig recompute;
  idle(c.activation_checkpoint.visualize_memory_budget_pareto,
       "activation_checkpoint.visualize_memory_budget_pareto: this build draws no curve; halftone estimate tells memory and time of a "
       "budget");
  idle(c.activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns != recompute.per_op_sac_force_recompute_mm_shapes_by_fqns,
       "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns: op recomputes every second product, whatever its shape");
  const DataloaderConfig loader;
  idle(c.training.dataloader.shuffle_buffer != loader.shuffle_buffer || c.validation.dataloader.shuffle_buffer != loader.shuffle_buffer,
       "dataloader.shuffle_buffer: no source is a stream here; all documents are shuffled together");
  idle(c.validation.dataloader.repeat.value_or(false), "validation.dataloader.repeat: validation makes one pass, or validation.steps");
  check(problems.empty(), "{}", fmt::join(problems, "\n"));
}

}  // namespace halftone
