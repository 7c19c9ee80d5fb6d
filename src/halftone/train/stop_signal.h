#pragma once

namespace halftone {

// During its lifetime SIGINT and SIGTERM are recorded instead of ending the process; a second signal ends it at once.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  int signal() const;  // 0: none yet
};

}  // namespace halftone
