#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "halftone/comm/watch.h"

namespace halftone::comm {

// Tells a process that ended from one that is paused: only the connections of the former are closed by its kernel. Every rank holds a TCP
// connection to rank 0, on which nothing is sent but a greeting and a farewell. Waits for no peer. Where no connection can be made, nothing
// is ever lost. Of one thread at a time.
class Presence {
 public:
  // `address`: of rank 0's host; "" = no connections.
  Presence(std::string address, int64_t rank, int64_t world_size);
  ~Presence();
  Presence(const Presence&) = delete;
  Presence& operator=(const Presence&) = delete;

  // Makes the connections, for which rank 0 puts its port into the store. Returns the ranks whose connection has closed without a farewell,
  // each once.
  std::vector<int64_t> lost(c10d::Store& store);
  bool settled() const;  // all connections stand that can be expected
  // A regular end.
  void leave();

 private:
  struct Peer {
    int fd = -1;
    int64_t rank = -1;     // -1: has not greeted
    bool greeted = false;  // by both sides
    std::string received{};
  };
  std::string serve();  // the port and the token; "" where no port can be had
  void join(const std::string& invitation);
  void accept_peers();
  bool read(Peer& peer);  // false: closed
  void close_all();

  const std::string address_;
  const int64_t rank_, others_;
  bool begun_ = false;
  int64_t greeted_ = 0;
  int listener_ = -1;
  uint64_t token_ = 0;    // of this job
  std::string greeting_;  // of other ranks, until it is sent
  std::vector<Peer> peers_;
};

}  // namespace halftone::comm
