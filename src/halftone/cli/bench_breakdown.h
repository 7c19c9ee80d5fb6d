#pragma once
#include <array>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/train/profiler.h"

// GPU time of a training step by kind of work.
namespace halftone::bench {

enum class WorkKind { product, attention, norm, quantiser, head, optimizer, grad_norm, copy, other, collective };
constexpr std::array<const char*, 10> kWorkNames = {
    "products",  "attention",     "norm, activation, RoPE", "quantisers", "head + loss",
    "optimizer", "gradient norm", "copies and fills",       "other",      "exposed communication"};

// By the host range around the launch (head, optimizer, gradient norm), else by the kernel's name.
WorkKind work_of(std::string_view kernel, std::string_view range);

// Average of the steps. Overlap counts once, for the kernel that began first and never for a collective: kinds and idle add up to wall_ms.
struct Breakdown {
  struct Kernel {
    std::string name;
    WorkKind work;
    double ms = 0, calls = 0;
  };
  int64_t steps = 0;
  double wall_ms = 0, idle_ms = 0, kernels = 0;
  std::array<double, kWorkNames.size()> ms{};
  std::map<std::string, double> exposed;  // ms of exposed communication, by the communicator's name
  std::vector<Kernel> largest;            // every kernel, longest first
};
// Breaks down the steps enclosed by ranges named "step"; the device is idle after each.
Breakdown break_down(std::span<const ProfileEvent> events);
// The kinds and the `kernels` largest kernels.
std::string breakdown_text(const Breakdown& b, size_t kernels);

// Records calls of `step`, which returns when the device is idle, after one call to warm up. Error without a GPU.
Breakdown record_breakdown(c10::Device device, const std::function<void()>& step);

}  // namespace halftone::bench
