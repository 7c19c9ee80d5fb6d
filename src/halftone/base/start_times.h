#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace halftone {

// Seconds since this process was started, by the kernel's account: what a user waits, loading of libraries included.
double seconds_since_launch();

// Where the time from the launch of the program to its first result goes.
class StartTimes {
 public:
  // What happened since the last mark (at first: since the launch). On a GPU what is queued only counts where something waits for it.
  void mark(std::string_view what) { marks_.emplace_back(what, seconds_since_launch()); }
  // "5.23 s after the launch: program 0.31, device 1.20, first step 3.72"; 0 without marks.
  std::string text() const;
  double seconds() const { return marks_.empty() ? 0 : marks_.back().second; }

 private:
  std::vector<std::pair<std::string, double>> marks_;
};

}  // namespace halftone
