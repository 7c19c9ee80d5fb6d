#include "halftone/ops/hardware.h"

#include <dlfcn.h>

#include <optional>
#include <utility>

#include "halftone/base/cpu.h"
#include "halftone/base/error.h"

namespace halftone {
namespace {

Hardware processor() {
  const CpuFeatures& f = cpu_features();
  return f.amx       ? Hardware::cpu_amx
         : f.vnni    ? Hardware::cpu_vnni
         : f.avx512  ? Hardware::cpu_avx512
         : f.avxvnni ? Hardware::cpu_avxvnni
                     : Hardware::cpu_v3;
}

// Compute capability, major * 10 + minor, from the driver library: no CUDA headers are needed.
std::optional<int> capability(int index) {
  static void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver) return std::nullopt;
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto attribute = reinterpret_cast<int (*)(int*, int, int)>(dlsym(driver, "cuDeviceGetAttribute"));
  constexpr int kMajor = 75,
                kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
  int major = 0, minor = 0;
  if (!init || !attribute || init(0) != 0 || attribute(&major, kMajor, index) != 0 || attribute(&minor, kMinor, index) != 0)
    return std::nullopt;
  return major * 10 + minor;
}

Hardware row_of(int sm) {
  check(sm >= 80,
        "this GPU has compute capability {}.{}; 8.0 (A100) or newer is needed, "
        "or --device cpu",
        sm / 10, sm % 10);
  return sm >= 120   ? Hardware::sm_120
         : sm >= 100 ? Hardware::sm_100
         : sm >= 90  ? Hardware::sm_90
         : sm >= 89  ? Hardware::sm_89
                     : Hardware::sm_80;
}

thread_local const SimulatedDevice* simulated = nullptr;

}  // namespace

SimulatedDevice::SimulatedDevice(Hardware h, const cuda::Module& m) : hardware(h), module(m), outer_(std::exchange(simulated, this)) {}
SimulatedDevice::~SimulatedDevice() { simulated = outer_; }
const SimulatedDevice* SimulatedDevice::current() { return simulated; }

Hardware hardware_of(c10::Device device) {
  if (device.is_cpu()) return processor();
  if (device.is_meta()) return process_hardware(device.type());
  const std::optional<int> sm = capability(device.index() < 0 ? 0 : device.index());
  check(sm.has_value(), "the NVIDIA driver does not report the compute capability of device {}", int{device.index()});
  return row_of(*sm);
}

Hardware process_hardware(c10::DeviceType type) {
  static const Hardware cpu = processor();
  if (type == c10::DeviceType::CPU) return cpu;
  if (simulated != nullptr) return simulated->hardware;
  static const Hardware gpu = hardware_of({c10::DeviceType::CUDA, 0});
  return gpu;
}

Hardware this_machine() {
  const std::optional<int> sm = capability(0);
  return sm && *sm >= 80 ? row_of(*sm) : processor();
}

}  // namespace halftone
