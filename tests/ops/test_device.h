#pragma once
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <tuple>

#include "halftone/base/error.h"
#include "halftone/ops/cuda_module.h"
#include "halftone/ops/device.h"
#include "halftone/ops/weight.h"

// Runs tests of layers on the CPU and on a CUDA device with the same code.
namespace halftone {

// Device of the running test's tensors.
inline c10::Device& test_device() {
  static c10::Device device = at::kCPU;
  return device;
}

// Step context of the running test.
inline StepContext& test_step() {
  static StepContext step;
  return step;
}

// Why tests cannot run on the device here; empty if they can. A module that is present but fails to load is a failure, not a reason.
inline std::string missing_for(const std::string& device) {
  if (device == "cpu") return "";
  try {
    select_device(device, 0);
  } catch (const Error& e) {
    const std::string reason = e.what(), module = cuda::missing_module();
    const auto beside = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "halftone_cuda.so";
    const bool of_module = !module.empty() && reason.find(module) != std::string::npos;
    check(!of_module || !std::filesystem::exists(beside), "{}", module);
    return reason;
  }
  return "";
}

inline const std::string& cached_missing_for(const std::string& device) {
  static std::map<std::string, std::string> reasons;
  if (!reasons.count(device)) reasons[device] = missing_for(device);
  return reasons[device];
}

// Runs before the first test: LibTorch caches that there is no CUDA if anything, such as seeding, asks before its library is loaded.
class FindDevices : public ::testing::Environment {
  void SetUp() override { cached_missing_for("cuda"); }
};
inline ::testing::Environment* const kFindDevices = ::testing::AddGlobalTestEnvironment(new FindDevices);

inline void enter_device(const std::string& name) {
  const std::string& reason = cached_missing_for(name);
  if (!reason.empty()) GTEST_SKIP() << reason;
  test_device() = name == "cpu" ? c10::Device(at::kCPU) : c10::Device(at::kCUDA, 0);
}

// Synchronizes with the device, so that a kernel fault fails the test that caused it.
inline void leave_device() {
  const c10::Device device = test_device();
  test_device() = at::kCPU;
  synchronize(device);
}

inline auto test_devices() { return ::testing::Values(std::string("cpu"), std::string("cuda")); }

class OnDevice : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { enter_device(GetParam()); }
  void TearDown() override { leave_device(); }
};

// Tests with an additional parameter.
template <class T>
class OnDeviceWith : public ::testing::TestWithParam<std::tuple<std::string, T>> {
 protected:
  void SetUp() override { enter_device(std::get<0>(this->GetParam())); }
  void TearDown() override { leave_device(); }
  const T& param() const { return std::get<1>(this->GetParam()); }
};

}  // namespace halftone
