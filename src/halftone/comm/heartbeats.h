#pragma once
#include <c10/util/intrusive_ptr.h>

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "halftone/comm/watch.h"

namespace halftone::comm {

// State that a rank sends its peers through the store once a period. No wall-clock times: the clocks of two hosts are never compared.
struct Heartbeat {
  int64_t number = 0;  // counts the rank's heartbeats
  double seconds = 0;  // that it has been `doing` this, by its own clock
  std::string doing;
  bool outside = false;                    // it waits, or has lately waited, for something outside of the job
  std::map<std::string, int64_t> begun{};  // collectives, by the group's key

  bool has_begun(const Operation& operation) const;
  void write(int64_t rank, c10d::Store& store) const;
};

// Peers' heartbeats as this rank has seen them. A peer is silent since its newest heartbeat was first seen here, by this host's steady
// clock; so a rank that is looked at for the first time is not silent yet. Of any thread.
class Heartbeats {
 public:
  struct Seen {
    Heartbeat beat;
    double silent = 0;  // seconds
  };

  // Reads the newest heartbeats of these ranks.
  void look(const std::vector<int64_t>& ranks, c10d::Store& store);
  std::optional<Seen> of(int64_t rank) const;  // as of the last look; none from a rank that has not started
  // This process or the store was held up: silence begins anew.
  void restart();

 private:
  struct Entry {
    Heartbeat beat;
    Clock::time_point since;
  };
  mutable std::mutex mutex_;
  std::map<int64_t, Entry> entries_;
};

}  // namespace halftone::comm
