#include "halftone/cli/plan_energy.h"

#include <dlfcn.h>

#include <array>

namespace halftone::plan {
namespace {

template <class... Args>
bool call(void* library, const char* name, Args... args) {
  const auto f = library == nullptr ? nullptr : reinterpret_cast<int (*)(Args...)>(dlsym(library, name));
  return f != nullptr && f(args...) == 0;
}

// NVML counts all GPUs of the host, CUDA those that CUDA_VISIBLE_DEVICES leaves: both know the bus.
bool bus_of(c10::Device device, std::array<char, 32>& bus) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  int handle = 0;
  return call(driver, "cuDeviceGet", &handle, static_cast<int>(device.index())) &&
         call(driver, "cuDeviceGetPCIBusId", bus.data(), static_cast<int>(bus.size()), handle);
}

}  // namespace

EnergyCounter::EnergyCounter(c10::Device device) {
  if (device.is_cpu()) {
    missing_ = "on a CPU it is not measured";
    return;
  }
  library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  std::array<char, 32> bus{};
  if (!call(library_, "nvmlInit_v2")) {
    missing_ = "NVML (libnvidia-ml.so.1) cannot be loaded or does not start";
  } else if (!bus_of(device, bus) || !call(library_, "nvmlDeviceGetHandleByPciBusId_v2", static_cast<const char*>(bus.data()), &device_) ||
             !joules()) {
    missing_ = "NVML does not say what this GPU consumes";
    device_ = nullptr;
  }
}

EnergyCounter::~EnergyCounter() { call(library_, "nvmlShutdown"); }

std::optional<double> EnergyCounter::joules() const {
  unsigned long long millijoules = 0;  // NOLINT: NVML's type
  if (device_ == nullptr || !call(library_, "nvmlDeviceGetTotalEnergyConsumption", device_, &millijoules)) return std::nullopt;
  return static_cast<double>(millijoules) * 1e-3;
}

}  // namespace halftone::plan
