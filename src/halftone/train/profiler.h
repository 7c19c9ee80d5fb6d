#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

namespace halftone {

// What was recorded of one piece of work; times in ns on one clock for host and device.
struct ProfileEvent {
  enum class Kind { range, launch, device };  // an ops/range.h | a call that launches work | a kernel, copy or fill on the device
  Kind kind = Kind::range;
  std::string name;
  int64_t begin = 0, end = 0;
  uint64_t launch = 0;  // of launch and device: what they have in common
};

// Records a stretch of the program by LibTorch's Kineto: our ranges and LibTorch's ops on the host, on a GPU (by CUPTI) also launches,
// kernels and copies. One at a time in a process.
class Profiler {
 public:
  enum class Detail { ranges, ops };  // of the host: our ranges alone | with LibTorch's ops and their shapes
  // The recorder is on from here, which slows the next steps down; what it sees counts from start().
  Profiler(c10::Device device, Detail detail);
  ~Profiler();  // drops what was not asked for
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;
  void start();
  bool started() const { return state_ == State::started; }
  // Each ends the recording; once. The device must be idle.
  std::vector<ProfileEvent> events();
  void save(const std::string& path);  // as JSON of Chrome's trace viewer; Error when it cannot be written

 private:
  enum class State { prepared, started, ended };
  c10::Device device_;
  Detail detail_;
  State state_ = State::prepared;
};

}  // namespace halftone
