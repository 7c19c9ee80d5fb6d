#pragma once
#include <filesystem>

namespace halftone {

// Gives a run's folder to one process at a time: a second one would take the other's unfinished checkpoint for a crash leftover, and mix
// two runs in one metrics file. Held by a lock on `folder/.lock`, which the system releases when the process ends.
class RunLock {
 public:
  // Error naming the process that holds the folder. Logs a warning if the file system has no locks.
  explicit RunLock(const std::filesystem::path& folder);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int fd_;
};

}  // namespace halftone
