#pragma once
#include <string_view>
#include <utility>
#include <vector>

#include "halftone/config/parallelism_config.h"

namespace halftone::parallel {

// The mesh of the ranks 0 ... world_size - 1 (docs/parallel/mesh.md). An axis is named by a string: pp, dp_replicate, dp_shard, cp, tp,
// efsdp, ep, etp, or several flattened into one: batch, loss, fsdp, world. Plain arithmetic, the same on every rank.
class Mesh {
 public:
  // Resolves data_parallel_shard_degree = -1. Error naming the fields where the degrees do not multiply to the world size.
  Mesh(const ParallelismConfig& parallelism, int64_t world_size);

  int64_t world_size() const { return world_size_; }
  int64_t size(std::string_view axis) const;
  // Index of the rank along the axis.
  int64_t coordinate(int64_t rank, std::string_view axis) const;
  // The ranks that differ from `rank` along the axis only, including itself, ordered by coordinate.
  std::vector<int64_t> ranks(int64_t rank, std::string_view axis) const;

  // Axes and sizes of a view, slowest first: "data", "dense", "sparse" (routed experts), or "degrees", as in [parallelism].
  std::vector<std::pair<std::string_view, int64_t>> view(std::string_view name) const;

 private:
  struct Axis {
    std::string_view name;
    int64_t size, stride;
  };
  std::vector<const Axis*> parts(std::string_view axis) const;

  int64_t world_size_;
  std::vector<Axis> axes_;
};

}  // namespace halftone::parallel
