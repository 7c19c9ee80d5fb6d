#include "halftone/train/profiler.h"

#include <kineto/ActivityType.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

#include "halftone/base/error.h"
#include "halftone/base/log.h"

namespace halftone {
namespace {

namespace kineto = torch::autograd::profiler;
using libkineto::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

std::set<torch::profiler::impl::ActivityType> activities(c10::Device device) {
  if (device.is_cpu()) return {torch::profiler::impl::ActivityType::CPU};
  return {torch::profiler::impl::ActivityType::CPU, torch::profiler::impl::ActivityType::CUDA};
}

std::optional<ProfileEvent::Kind> kind_of(ActivityType type) {
  switch (type) {
    case ActivityType::USER_ANNOTATION:
      return ProfileEvent::Kind::range;
    case ActivityType::CUDA_RUNTIME:
    case ActivityType::CUDA_DRIVER:
      return ProfileEvent::Kind::launch;
    case ActivityType::CONCURRENT_KERNEL:
    case ActivityType::GPU_MEMCPY:
    case ActivityType::GPU_MEMSET:
      return ProfileEvent::Kind::device;
    default:
      return {};
  }
}

}  // namespace

Profiler::Profiler(c10::Device device, Detail detail) : device_(device), detail_(detail) {
  // Without a driver Kineto prints an error that does not concern a CPU run.
  if (device.is_cpu()) setenv("KINETO_LOG_LEVEL", "99", 0);
  kineto::prepareProfiler(ProfilerConfig(ProfilerState::KINETO, detail == Detail::ops), activities(device));
}

Profiler::~Profiler() {
  if (state_ == State::ended) return;
  try {
    if (state_ == State::prepared) start();
    kineto::disableProfiler();
  } catch (const std::exception& e) {
    log_warning("the profiler did not stop: {}", e.what());
  }
}

void Profiler::start() {
  check(state_ == State::prepared, "a profiler starts once");
  const std::unordered_set<at::RecordScope> ranges = {at::RecordScope::USER_SCOPE};
  kineto::enableProfiler(ProfilerConfig(ProfilerState::KINETO, detail_ == Detail::ops), activities(device_),
                         detail_ == Detail::ranges ? ranges : std::unordered_set<at::RecordScope>{});
  state_ = State::started;
}

std::vector<ProfileEvent> Profiler::events() {
  check(started(), "a profiler that has not started, or has ended, has no events");
  state_ = State::ended;
  const std::unique_ptr<kineto::ProfilerResult> result = kineto::disableProfiler();
  std::vector<ProfileEvent> events;
  for (const kineto::KinetoEvent& e : result->events()) {
    const std::optional<ProfileEvent::Kind> kind = kind_of(static_cast<ActivityType>(e.activityType()));
    if (kind) events.push_back({*kind, e.name(), static_cast<int64_t>(e.startNs()), static_cast<int64_t>(e.endNs()), e.correlationId()});
  }
  return events;
}

void Profiler::save(const std::string& path) {
  check(started(), "a profiler that has not started, or has ended, has no trace");
  state_ = State::ended;
  const std::unique_ptr<kineto::ProfilerResult> result = kineto::disableProfiler();
  std::error_code problem;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), problem);
  std::filesystem::remove(path, problem);
  result->save(path);  // logs failures and continues
  check(std::filesystem::exists(path), "profiling: the trace {} could not be written; free space, or choose another job.dump_folder", path);
}

}  // namespace halftone
