#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace halftone {

// "cpu", "cuda" or "auto" (CUDA device `local_rank` if there is one). Selecting CUDA loads the CUDA half of LibTorch; a CPU run never
// does. Error when "cuda" is requested and the library, the driver or the device is missing.
c10::Device select_device(const std::string& name, int local_rank);

// Creates the device's context ahead of the first allocation.
void warm_up(c10::Device device);

struct DeviceInfo {
  std::string name;         // model name of the CPU or GPU
  double capacity_gib = 0;  // its memory
};
DeviceInfo device_info(c10::Device device);
// Main memory in bytes that this process can still allocate, swap included: the system's available memory, limited by the process's
// control groups (cgroup v2). INT64_MAX if the system does not report it.
int64_t available_memory();

struct MemoryUse {
  double reserved_gib = 0, active_gib = 0;  // peaks; on the CPU, of the process's resident memory
  int64_t alloc_retries = 0, ooms = 0;
};
MemoryUse peak_memory(c10::Device device);
void reset_peak_memory(c10::Device device);
void synchronize(c10::Device device);
// Queues the copy to pinned host memory. A dry run's tensors have no values: then `host` stays as it is.
void copy_to_host(const at::Tensor& from, at::Tensor host);
// From here on the GPU's allocator records its last `entries` events and the ranges (ops/range.h) around them. memory_snapshot: the
// record, as the pickle that pytorch.org/memory_viz reads.
void record_memory_history(int64_t entries);
std::string memory_snapshot();
// Deterministic algorithms, or an error naming the op (warn_only: a warning).
void set_deterministic(bool warn_only);

}  // namespace halftone
