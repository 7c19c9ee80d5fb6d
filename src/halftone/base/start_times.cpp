#include "halftone/base/start_times.h"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <sstream>

namespace halftone {

double seconds_since_launch() {
  std::ifstream stat("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(stat)), {});
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;  // field 22: start time in clock ticks since boot
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) -
         std::stod(field) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

std::string StartTimes::text() const {
  std::string out = fmt::format("{:.2f} s after the launch", seconds());
  const char* before = ":";
  double last = 0;
  for (const auto& [what, at] : marks_) {
    out += fmt::format("{} {} {:.2f}", before, what, at - last);
    before = ",", last = at;
  }
  return out;
}

}  // namespace halftone
