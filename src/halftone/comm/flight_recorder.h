#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "halftone/comm/watch.h"

namespace halftone::comm {

// The last operations of a rank, to be read after a failure (docs/parallel/failures.md). Times are those of the rank's host. For one
// thread at a time.
class FlightRecorder {
 public:
  explicit FlightRecorder(Recorder options) : options_(std::move(options)) { ring_.reserve(static_cast<size_t>(options_.entries)); }

  bool on() const { return options_.entries > 0; }
  const std::filesystem::path& path() const { return options_.path; }

  // Number of the entry, from 1; 0 when off.
  int64_t begin(const Operation& operation);
  // Does nothing where the entry is 0 or no longer in the ring.
  void end(int64_t entry);

  // A line of JSON about the rank, then one for each operation, oldest first.
  std::string text(int64_t rank, int64_t world_size, std::string_view reason) const;
  // Replaces the whole file. Returns the error, "" when it is written. The file system may hang, which may be why the job ends: a separate
  // thread writes, for at most `limit`.
  std::string write(std::string text, Milliseconds limit) const;

 private:
  using Wall = std::chrono::system_clock;
  struct Entry {
    Operation operation;
    Wall::time_point begun, ended;  // ended = {}: under way
  };

  Recorder options_;
  std::vector<Entry> ring_;  // entry i is at (i - 1) % entries
  int64_t count_ = 0;
};

}  // namespace halftone::comm
