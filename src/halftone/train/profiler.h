#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

namespace halftone {

// One recorded piece of work; times in ns on one clock for host and device.
struct ProfileEvent {
  enum class Kind { range, launch, device };  // an ops/range.h | a call that launches work | a kernel, copy or fill on the device
  Kind kind = Kind::range;
  std::string name;
  int64_t begin = 0, end = 0;
  uint64_t launch = 0;  // correlates a launch with its device work
};

// Records a section of the program with LibTorch's Kineto: our ranges and LibTorch's ops on the host; on a GPU (by CUPTI) also launches,
// kernels and copies. Only one may exist per process.
class Profiler {
 public:
  enum class Detail { ranges, ops };  // on the host: our ranges only | with LibTorch's ops and their shapes
  // Turns the recorder on, which slows the next steps down; events count from start().
  Profiler(c10::Device device, Detail detail);
  ~Profiler();  // discards a recording that was not read
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;
  void start();
  bool started() const { return state_ == State::started; }
  // Each ends the recording; call one of them, once. The device must be idle.
  std::vector<ProfileEvent> events();
  void save(const std::string& path);  // in Chrome's trace format; Error if it cannot be written

 private:
  enum class State { prepared, started, ended };
  c10::Device device_;
  Detail detail_;
  State state_ = State::prepared;
};

}  // namespace halftone
