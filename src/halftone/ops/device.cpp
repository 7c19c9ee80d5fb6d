#include "halftone/ops/device.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/ops/cuda_module.h"
#include "halftone/ops/torch_cuda.h"

namespace halftone {
namespace {

constexpr double kGiB = 1 << 30;

bool driver_present() { return access("/dev/nvidiactl", F_OK) == 0; }

// Why there is no CUDA device; empty if there is one. The library stays loaded.
std::string load_cuda() {
  if (!driver_present()) return "no NVIDIA driver is loaded (/dev/nvidiactl is missing)";
  setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True", 0);
  static void* library = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL);
  if (!library) {
    const char* reason = dlerror();
    return fmt::format("LibTorch's CUDA half could not be loaded ({}); run HALFTONE_CUDA=ON tools/setup.sh",
                       reason ? reason : "unknown reason");
  }
  if (!at::globalContext().hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) return "the driver reports no CUDA device";
  return cuda::module() == nullptr ? cuda::missing_module() : "";
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

// The number after `key` at the start of a line of the file; nullopt without one. An empty key: the file's first word.
std::optional<int64_t> number_in(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const size_t begin = line.find_first_not_of(" \t", key.size());
    int64_t value = 0;
    if (begin == std::string::npos || std::from_chars(line.data() + begin, line.data() + line.size(), value).ec != std::errc{}) return {};
    return value;
  }
  return {};
}

// Bytes left under this process's cgroup limits; inactive page cache counts as free.
int64_t left_of_control_groups() {
  constexpr const char* kRoot = "/sys/fs/cgroup";
  int64_t least = INT64_MAX;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("0::/")) continue;  // version 2
    for (std::filesystem::path group = line.substr(3);; group = group.parent_path()) {
      const std::string folder = kRoot + (group == "/" ? std::string() : group.string());
      const std::optional<int64_t> limit = number_in(folder + "/memory.max", ""), used = number_in(folder + "/memory.current", "");
      if (limit && used) least = std::min(least, *limit - *used + number_in(folder + "/memory.stat", "inactive_file ").value_or(0));
      if (!group.has_relative_path()) break;
    }
  }
  return least;
}

}  // namespace

int64_t available_memory() {
  constexpr const char* kSystem = "/proc/meminfo";  // in KiB
  const std::optional<int64_t> available = number_in(kSystem, "MemAvailable:");
  const int64_t system = available ? *available * 1024 : INT64_MAX, least = std::min(system, left_of_control_groups());
  return least == INT64_MAX ? least : least + number_in(kSystem, "SwapFree:").value_or(0) * 1024;
}

c10::Device select_device(const std::string& name, int local_rank) {
  check(name == "auto" || name == "cuda" || name == "cpu", "training.device: expected auto, cuda or cpu, found '{}'", name);
  if (name == "cpu" || (name == "auto" && !driver_present())) return at::kCPU;
  const std::string reason = load_cuda();
  if (!reason.empty()) {
    check(name == "auto", "--device cuda: {}; use --device cpu or auto", reason);
    log_warning("the GPU is not used: {}", reason);
    return at::kCPU;
  }
  const int count = at::detail::getCUDAHooks().deviceCount();
  const int index = count == 1 ? 0 : local_rank;
  check(index < count, "device {} asked for by the local rank, but there are {} CUDA devices", index, count);
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)};
}

void warm_up(c10::Device device) {
  if (!device.is_cpu()) at::empty({1}, at::TensorOptions().device(device).dtype(at::kByte));
}

DeviceInfo device_info(c10::Device device) {
  if (device.is_cpu()) {
    struct sysinfo info {};
    sysinfo(&info);
    return {processor_name(), static_cast<double>(info.totalram) * info.mem_unit / kGiB};
  }
  // Through the driver library that LibTorch has loaded: LibTorch's property call needs the CUDA headers.
  using NameCall = int (*)(char*, int, int);
  using MemoryCall = int (*)(size_t*, int);
  static void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  char name[256] = "CUDA device";
  size_t bytes = 0;
  if (driver) {
    if (auto get = reinterpret_cast<NameCall>(dlsym(driver, "cuDeviceGetName"))) get(name, sizeof name, device.index());
    if (auto get = reinterpret_cast<MemoryCall>(dlsym(driver, "cuDeviceTotalMem_v2"))) get(&bytes, device.index());
  }
  return {name, static_cast<double>(bytes) / kGiB};
}

MemoryUse peak_memory(c10::Device device) {
  MemoryUse use;
  if (device.is_cpu()) {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    use.reserved_gib = use.active_gib = static_cast<double>(usage.ru_maxrss) * 1024 / kGiB;
    return use;
  }
  const auto stats = at::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  use.active_gib = static_cast<double>(stats.active_bytes[kAll].peak) / kGiB;
  use.reserved_gib = static_cast<double>(stats.reserved_bytes[kAll].peak) / kGiB;
  use.alloc_retries = stats.num_alloc_retries, use.ooms = stats.num_ooms;
  return use;
}

void reset_peak_memory(c10::Device device) {
  if (device.is_cpu()) {
    std::ofstream("/proc/self/clear_refs") << 5;  // proc(5): resets the peak of resident memory to the current value
  } else {
    at::getDeviceAllocator(device.type())->resetPeakStats(device.index());
  }
}

void copy_to_host(const at::Tensor& from, at::Tensor host) {
  if (!from.is_meta()) host.copy_(from, true);
}

void synchronize(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

void record_memory_history(int64_t entries) {
  // torch::cuda::_record_memory_history (torch/csrc/cuda/memory_snapshot.h). Without stacks, which would be Python's.
  using Record = void(bool, bool, int64_t, bool, bool, bool, bool, bool, const std::vector<std::string>&);
  of_torch_cuda<Record>(
      "_ZN5torch4cuda22_record_memory_historyEbblbbbbbRKSt6vectorINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEESaIS7_EE")(
      true, false, entries, false, false, false, false, false, {});
}

std::string memory_snapshot() { return of_torch_cuda<std::string()>("_ZN5torch4cuda24_memory_snapshot_pickledB5cxx11Ev")(); }

void set_deterministic(bool warn_only) {
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
  at::globalContext().setDeterministicAlgorithms(true, warn_only);
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setBenchmarkCuDNN(false);
}

}  // namespace halftone
