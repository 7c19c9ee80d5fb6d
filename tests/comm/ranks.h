#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "halftone/comm/watch.h"

namespace halftone::comm {

// A multi-process test: the parent calls run_ranks("name", n), which starts this program n times; each runs the body registered by `const
// Ranks kName("name", body)`.
struct Rank {
  int64_t rank, world;
  std::filesystem::path folder;  // shared by the ranks, initially empty
  std::vector<int64_t> all() const;
  // With a period of 0.2 s; keeps so many operations. All ranks call this equally often.
  Watch watch(int64_t recorded = 0, const std::string& address = "127.0.0.1") const;
};

struct Ranks {
  Ranks(const char* name, void (*body)(const Rank&));
};

struct Outcome {
  int status;          // exit status, or 128 + signal
  std::string said;    // standard output and error
  std::string flight;  // the flight recorder's file
};

// An exception of a body becomes a line "halftone: ..." and status 2, as in the program. Stopped ranks are killed once the others have
// ended; after five minutes all ranks are.
std::vector<Outcome> run_ranks(const std::string& name, int64_t world);

}  // namespace halftone::comm
