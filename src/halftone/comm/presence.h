#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "halftone/comm/watch.h"

namespace halftone::comm {

// Tells a process that ended from one that is paused: only the connections of the former are closed by its kernel. Every rank holds a TCP
// connection to rank 0, on which nothing is sent but a greeting and a farewell. No call blocks. Where no connection can be made, nothing
// is ever lost. Of one thread at a time.
class Presence {
 public:
  Presence() = default;
  ~Presence();
  Presence(const Presence&) = delete;
  Presence& operator=(const Presence&) = delete;

  // Rank 0 serves a port of its host, for so many other ranks. What they need for join(); "" where no port can be had.
  std::string serve(int64_t others);
  // Other ranks, with the address of rank 0's host.
  void join(const std::string& address, const std::string& invitation, int64_t rank);
  // Ranks whose connection has closed without a farewell, each once.
  std::vector<int64_t> lost();
  // A regular end.
  void leave();

 private:
  struct Peer {
    int fd = -1;
    int64_t rank = -1;     // -1: has not greeted
    bool greeted = false;  // by both sides
    std::string received{};
  };
  void accept_peers();
  bool read(Peer& peer);  // false: closed
  void close_all();

  int listener_ = -1;
  bool server_ = false;
  uint64_t token_ = 0;  // of this job
  size_t most_ = 0;
  std::string greeting_;  // of other ranks, until it is sent
  std::vector<Peer> peers_;
};

}  // namespace halftone::comm
