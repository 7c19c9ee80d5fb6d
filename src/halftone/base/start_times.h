#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace halftone {

// Seconds since the kernel started this process, i.e. the user's wait including library loading.
double seconds_since_launch();

// Splits the time from launch to the first result into phases.
class StartTimes {
 public:
  // Names the phase since the last mark (initially since launch). Queued GPU work counts only once something waits for it.
  void mark(std::string_view what) { marks_.emplace_back(what, seconds_since_launch()); }
  // "5.23 s after the launch: program 0.31, device 1.20, first step 3.72".
  std::string text() const;
  double seconds() const { return marks_.empty() ? 0 : marks_.back().second; }

 private:
  std::vector<std::pair<std::string, double>> marks_;
};

}  // namespace halftone
