#include "halftone/train/step_traces.h"

#include <fstream>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/base/stopwatch.h"
#include "halftone/ops/device.h"

namespace halftone {

StepTraces::StepTraces(const JobConfig& config, int64_t rank, c10::Device device, int64_t first)
    : config_(config.profiling), folder_(config.job.dump_folder), rank_(rank), device_(device) {
  const auto none_in_this_run = [&](int64_t period) { return config.training.steps / period <= (first - 1) / period; };
  if (config_.enable_profiling) {
    log_debug("traces are written to {}", (folder_ / config_.save_traces_folder).string());
    if (none_in_this_run(config_.profile_freq))
      log_warning("profiling.profile_freq: a trace is written every {} steps, this run of {} steps writes none", config_.profile_freq,
                  config.training.steps);
  }
  if (!config_.enable_memory_snapshot || device.is_cpu()) return;
  log_debug("memory snapshots are written to {}", (folder_ / config_.save_memory_snapshot_folder).string());
  record_memory_history(config_.memory_snapshot_max_entries);
  snapshots_ = true;
}

void StepTraces::before(int64_t step) {
  if (!config_.enable_profiling) return;
  const int64_t in_cycle = (step - 1) % config_.profile_freq, record = config_.profile_freq - config_.profiler_active;
  if (in_cycle < record && profiler_ && profiler_->started()) profiler_.reset();  // a rollback led out of it
  if (in_cycle <= record && in_cycle >= record - config_.profiler_warmup && !profiler_) {
    if (in_cycle < record) log_debug("the profiler warms up from step {} on", step);
    profiler_ = std::make_unique<Profiler>(device_, Profiler::Detail::ops);
  }
  if (in_cycle == record && !profiler_->started()) profiler_->start();
}

double StepTraces::after(int64_t step) {
  const Stopwatch watch;
  if (step % config_.profile_freq == 0 && profiler_ && profiler_->started()) {
    synchronize(device_);
    const std::filesystem::path file =
        folder_ / config_.save_traces_folder / fmt::format("iteration_{}", step) / fmt::format("rank{}_trace.json", rank_);
    profiler_->save(file.string());
    profiler_.reset();
    log_info("Trace of step {} written to {} in {:.2f} seconds", step, file.string(), watch.seconds());
  }
  if (snapshots_ && step % config_.memory_snapshot_freq.value_or(config_.profile_freq) == 0)
    write_snapshot(fmt::format("iteration_{}", step));
  return watch.seconds();
}

void StepTraces::out_of_memory(int64_t step) {
  if (snapshots_) write_snapshot(fmt::format("iteration_{}_exit", step));
}

void StepTraces::write_snapshot(const std::string& iteration) {
  const std::filesystem::path folder = folder_ / config_.save_memory_snapshot_folder / iteration,
                              file = folder / fmt::format("rank{}_memory_snapshot.pickle", rank_);
  std::error_code problem;
  std::filesystem::create_directories(folder, problem);
  const std::string snapshot = memory_snapshot();
  std::ofstream out(file, std::ios::binary);
  out.write(snapshot.data(), static_cast<std::streamsize>(snapshot.size())).flush();
  check(out.good(), "profiling: the snapshot {} could not be written; free space, or choose another job.dump_folder", file.string());
  log_info("Memory snapshot written to {}", file.string());
}

}  // namespace halftone
