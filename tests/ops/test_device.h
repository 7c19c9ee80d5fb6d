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

// Tests of layers run once on the processor and once on a CUDA device, by the same code.
namespace halftone {

// Where the running test's tensors lie.
inline c10::Device& test_device() {
  static c10::Device device = at::kCPU;
  return device;
}

// Where the running test stands in a run.
inline StepContext& test_step() {
  static StepContext step;
  return step;
}

// Why no test can run on the device here, or nothing. A module that is there and does not load is a failure, not a reason.
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

// Before the first test: LibTorch remembers that there is no CUDA once anything, a seed say, has asked before its library was loaded.
class FindDevices : public ::testing::Environment {
  void SetUp() override { cached_missing_for("cuda"); }
};
inline ::testing::Environment* const kFindDevices = ::testing::AddGlobalTestEnvironment(new FindDevices);

inline void enter_device(const std::string& name) {
  const std::string& reason = cached_missing_for(name);
  if (!reason.empty()) GTEST_SKIP() << reason;
  test_device() = name == "cpu" ? c10::Device(at::kCPU) : c10::Device(at::kCUDA, 0);
}

// Waits for the device, so that a fault in a kernel fails the test that started it.
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

// With a case of its own.
template <class T>
class OnDeviceWith : public ::testing::TestWithParam<std::tuple<std::string, T>> {
 protected:
  void SetUp() override { enter_device(std::get<0>(this->GetParam())); }
  void TearDown() override { leave_device(); }
  const T& param() const { return std::get<1>(this->GetParam()); }
};

}  // namespace halftone
