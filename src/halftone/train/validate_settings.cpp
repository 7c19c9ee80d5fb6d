#include "halftone/train/validate_settings.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/config/value.h"
#include "halftone/parallel/expert.h"
#include "halftone/parallel/tensor.h"

namespace halftone {
namespace {

// Logs the fields of `names` that are not the default: what they apply to is not there.
void report_idle(const JobConfig& config, std::initializer_list<std::string_view> names, std::string_view where) {
  JobConfig copy = config;
  const ConfigIndex index = index_config(copy);
  std::vector<std::string_view> set;
  for (const std::string_view name : names) {
    if (get_value(*index.find_field(name)) != default_value(name)) set.push_back(name);
  }
  if (!set.empty()) log_info("[compat] without effect, used {} only: {}", where, join(set));
}

}  // namespace

void report_idle_on_cpu(const JobConfig& config) {
  report_idle(config,
              {"training.disable_cuda_graphs", "training.offload", "profiling.enable_memory_snapshot", "profiling.memory_snapshot_freq",
               "profiling.memory_snapshot_max_entries", "profiling.save_memory_snapshot_folder"},
              "on a GPU");
}

void check_run(const JobConfig& c, int64_t processes) {
  std::vector<std::string> problems;
  const auto refuse = [&](bool set, const char* message) {
    if (set) problems.emplace_back(message);
  };
  const ParallelismConfig& p = c.parallelism;
  refuse(processes == 1 && (p.data_parallel_replicate_degree > 1 || p.data_parallel_shard_degree > 1 || p.context_parallel_degree > 1 ||
                            p.pipeline_parallel_degree > 1),
         "parallelism.*_degree: this is one process; start as many ranks as the product of the degrees (torchrun --no-python "
         "--nproc_per_node N halftone train ...)");
  refuse(c.comm.mode != "default", "comm.mode: fake_backend is a dry run of halftone train; set it to default");
  if (processes == 1) {
    report_idle(c,
                {"training.mixed_precision_reduce", "comm.init_timeout_seconds", "comm.train_timeout_seconds", "comm.trace_buf_size",
                 "comm.save_traces_folder", "comm.save_traces_file_prefix", "checkpoint.save_timeout_seconds"},
                "with several ranks");
  }
  parallel::report_idle_experts(p), parallel::report_idle_tensor(p);
  if (processes > 1 && c.sample.prompt)
    log_warning("[compat] sample.prompt: without effect with several ranks; halftone generate continues a prompt");
  check(problems.empty(), "{}", fmt::join(problems, "\n"));
}

}  // namespace halftone
