#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/comm/watch.h"

// A rank's communication in a dry run (train/dry_run.h).
namespace halftone {

// Operations of one communicator in a step.
struct Traffic {
  std::string communicator, operation, dtype;
  int64_t calls = 0;
  double bytes = 0;               // that this rank receives from others
  double ms = 0, exposed_ms = 0;  // of the operations alone, and of waits for them
  std::string_view axis() const { return std::string_view(communicator).substr(0, communicator.find(' ')); }
};

// Bandwidth of a group's collectives in bytes/s per GPU.
struct Link {
  std::string_view name;
  double rate;
};
inline constexpr int64_t kGpusOfNode = 8;
Link link_of(const std::vector<int64_t>& ranks);
// Seconds for one of these ranks to receive `bytes` from the others, in one call. Rings take one hop per rank; "all-to-all" and "recv"
// leave a node through the GPU's own network card, and "send" takes no time beside them.
double transfer_seconds(const std::vector<int64_t>& ranks, std::string_view collective, double bytes);

// A clock that work on the device and waits move. Operations of one communicator run in order; communicators share a link evenly.
class Transfers {
 public:
  void begin(comm::Operation& o);
  void end(const comm::Operation& o);  // a wait, which is over at once if the operation has ended
  void work(double seconds);
  bool reads_counts = true;  // the host waits for row counts that ranks with experts exchange
  void restart() { traffic.clear(), slower_ms = 0; }

  std::vector<Traffic> traffic;  // since restart()
  double slower_ms = 0;          // by which work takes longer because of operations beside it

 private:
  struct Flight {
    const comm::Group* group;
    int64_t number;
    double left;  // seconds, alone on its link
    Link link;
  };
  Traffic& row(const comm::Operation& o);
  // Until the operation has ended, or for so many seconds: the seconds that have passed with operations in flight.
  double advance(double seconds, int64_t operation);

  std::vector<Flight> flights_;
  int64_t number_ = 0;
};

}  // namespace halftone
