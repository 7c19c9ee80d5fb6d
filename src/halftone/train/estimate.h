#pragma once
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/config/job_config.h"
#include "halftone/formats/support.h"
#include "halftone/nn/model.h"
#include "halftone/train/estimate_mesh.h"
#include "halftone/train/transfers.h"

// Predicts memory and time of a training step without a GPU and its memory: a dry run of the engine (train/dry_run.h).
// docs/memory.md explains the terms.
namespace halftone {

struct DryStep;

// Measured rates of one kind of GPU, in bytes per second: memory read and written by one kernel, and memory read.
struct GpuRates {
  std::string_view name;  // substring of the device's name
  double memory_gib;
  double copy, read;
};

struct EstimateDevice {
  std::string name;
  Hardware hardware;
  double memory_gib = 0;
  const GpuRates* rates = nullptr;  // null: tokens/s are not estimated
  double host_gib = 0;              // main memory of the machine; 0: unknown
};
// "h100", "h200", "cpu" or "auto": the device on which training.device would train here; H100 if there is no GPU but one is allowed.
EstimateDevice estimate_device(const std::string& asked, const std::string& training_device);
EstimateDevice estimate_device(std::string name, Hardware hardware, double memory_gib);

struct MemoryShare {
  std::string owner;
  double bytes;
};
struct Phase {
  std::string name;
  std::vector<MemoryShare> shares;
  double bytes() const;
};
struct WorkTime {
  std::string work;
  double ms;
};
// A setting that lowers the peak.
struct Saving {
  std::string setting;
  double bytes;
};

struct Estimate {
  std::string what;  // model, batch and device in one line
  double memory_bytes = 0;
  std::vector<Phase> phases;         // in the order of a step
  double block_bytes = 0;            // per token, that a block keeps for backward: the largest
  std::vector<Saving> savings;       // those that help, the largest first
  std::vector<WorkTime> work;        // empty: not estimated
  std::vector<std::string> remarks;  // limits of the prediction
  int64_t tokens = 0;                // per step, over all ranks
  std::vector<std::string> plan;     // with several ranks: what each holds
  std::vector<Traffic> traffic;      // per step, of the rank with most work
  int64_t world = 1;                 // ranks
  std::string heaviest;              // the rank with the memory shown
  double model_flops = 0;            // per token, as metrics count them; with the device's `peak_flops`
  double peak_flops = 0;
  double context_bytes = 0;
  double host_bytes = 0, host_memory_bytes = 0;  // optimizer states in host memory, and its size if known

  const Phase& peak() const;
  double needed_bytes() const { return peak().bytes() + context_bytes; }
  bool fits() const { return needed_bytes() <= memory_bytes; }
  double step_ms() const;
  double tokens_per_second() const { return work.empty() ? 0 : static_cast<double>(tokens) / step_ms() * 1e3; }  // over all ranks
  double mfu() const;                                                                                            // in percent
};

// vocab_size as in build_model; world: number of ranks in the mesh of [parallelism]; figures are for a rank with the largest share.
// Errors as at a run's start.
Estimate estimate_step(const JobConfig& config, int64_t vocab_size, const EstimateDevice& device, int64_t world = 1);

std::string estimate_line(const Estimate& e);    // "peak 30.5 of 79.2 GiB ..."
std::string memory_text(const Estimate& e);      // the table of the peak's owners
std::string estimate_text(const Estimate& e);    // everything
std::string estimate_advice(const Estimate& e);  // the two settings that lower the peak most; empty if there are none
nlohmann::ordered_json estimate_json(const Estimate& e);
// Message for running out of memory; `said`: the allocator's message; when: "in step 3".
std::string out_of_memory_text(std::string_view said, std::string_view when, const Estimate& e);

// Whether times are known for this model and device; otherwise the reason is a remark.
bool has_rates(nn::Model& model, const JobConfig& config, const EstimateDevice& device, std::vector<std::string>& remarks);
// With waits for other ranks, and the pipeline's bubble.
std::vector<WorkTime> work_times(const DryStep& step, int64_t stage_ranks, double bubble);

}  // namespace halftone
