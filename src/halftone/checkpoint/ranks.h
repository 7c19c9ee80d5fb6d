#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace halftone {

// This process among the ranks that write and read one checkpoint, over a shared file system. Saving only needs the last two hooks: ranks
// synchronize through the step's folder.
struct CheckpointRanks {
  int64_t rank = 0, world = 1;
  // This rank's index along an axis of the mesh, and the axis size.
  std::function<std::pair<int64_t, int64_t>(std::string_view axis)> place = [](std::string_view) {
    return std::pair<int64_t, int64_t>(0, 1);
  };
  std::map<std::string, int64_t> mesh{{"pp", 1}, {"dp_replicate", 1}, {"dp_shard", 1}, {"cp", 1}, {"tp", 1}};  // for the record
  // Collectives, which every rank calls in the same order: broadcast from rank 0; logical AND over all ranks.
  std::function<int64_t(int64_t)> agree = [](int64_t value) { return value; };
  std::function<bool(bool)> all = [](bool value) { return value; };
  // Collective, too: what each rank says, by rank.
  std::function<std::vector<std::string>(const std::string&)> said = [](const std::string& own) { return std::vector<std::string>{own}; };
  // The job is ending after a failure elsewhere: do not wait for other ranks. Called by the writing thread.
  std::function<bool()> ending = [] { return false; };
  // Which of these ranks send no heartbeats, and for how long; "" where all do. Called by the writing thread, once a second.
  std::function<std::string(const std::vector<int64_t>&)> silent = [](const std::vector<int64_t>&) { return std::string(); };
};

}  // namespace halftone
