#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace halftone {

// "cpu", "cuda" or "auto" (the CUDA device of index `local_rank` where there is one). Asking for CUDA loads the CUDA half of
// LibTorch; a CPU run never does. Error when "cuda" is asked for and the library, the driver or the device is missing.
c10::Device select_device(const std::string& name, int local_rank);

// Makes the device's context, which a first allocation would wait for.
void warm_up(c10::Device device);

struct DeviceInfo {
  std::string name;         // model name of the processor or GPU
  double capacity_gib = 0;  // its memory
};
DeviceInfo device_info(c10::Device device);
// Bytes of main memory that this process can still take, swap included: what the system has available, at most what the process's control
// groups (version 2) leave. Without an answer from the system: INT64_MAX.
int64_t available_memory();

struct MemoryUse {
  double reserved_gib = 0, active_gib = 0;  // peaks: of the process's resident memory on the CPU
  int64_t alloc_retries = 0, ooms = 0;
};
MemoryUse peak_memory(c10::Device device);
void reset_peak_memory(c10::Device device);
void synchronize(c10::Device device);
// From here on the GPU's allocator notes its last `entries` events, and the ranges (ops/range.h) around them; what it knows, as the
// pickle that pytorch.org/memory_viz reads.
void record_memory_history(int64_t entries);
std::string memory_snapshot();
// Deterministic algorithms or an error naming the op (warn_only: a warning).
void set_deterministic(bool warn_only);

}  // namespace halftone
