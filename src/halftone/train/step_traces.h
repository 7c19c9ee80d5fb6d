#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "halftone/config/job_config.h"
#include "halftone/train/profiler.h"

namespace halftone {

// [profiling], with the cycles and folders of torchtitan: of every profile_freq steps the last profiler_active are recorded, after
// profiler_warmup steps with the recorder on; N is the last step of a cycle.
//   <save_traces_folder>/iteration_<N>/rank<R>_trace.json                         for chrome://tracing and Perfetto
//   <save_memory_snapshot_folder>/iteration_<N>[_exit]/rank<R>_memory_snapshot.pickle  for pytorch.org/memory_viz
class StepTraces {
 public:
  // `first`: the first step of this start.
  StepTraces(const JobConfig& config, int64_t rank, c10::Device device, int64_t first);
  // Call around every step; after a rollback steps repeat. after() returns the seconds spent writing.
  void before(int64_t step);
  double after(int64_t step);
  void out_of_memory(int64_t step);  // writes the snapshot with the history that led to it

 private:
  void write_snapshot(const std::string& iteration);

  ProfilingConfig config_;
  std::filesystem::path folder_;  // job.dump_folder
  int64_t rank_;
  c10::Device device_;
  bool snapshots_ = false;
  std::unique_ptr<Profiler> profiler_;
};

}  // namespace halftone
