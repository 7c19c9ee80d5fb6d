#pragma once
#include <filesystem>

namespace halftone {

// A run's folder belongs to one process at a time, which would otherwise take another's unfinished checkpoint for what a crash left, and
// mix two courses in one file of metrics. Held by a lock on `folder/.lock`, which ends with the process, however it ends.
class RunLock {
 public:
  // Error naming the process that holds the folder. Where the file system has no locks a warning says so.
  explicit RunLock(const std::filesystem::path& folder);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int fd_;
};

}  // namespace halftone
