#pragma once

namespace halftone {

// While it lives, SIGINT and SIGTERM are noted instead of ending the process; a second one ends it at once.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  int signal() const;  // 0: none yet
};

}  // namespace halftone
