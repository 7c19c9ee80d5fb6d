#include "halftone/parallel/mesh.h"

#include <algorithm>
#include <ranges>

#include "halftone/base/error.h"

namespace halftone::parallel {
namespace {

using Names = std::vector<std::string_view>;

// Two numberings of the same ranks, slowest axis first. They share the first two axes.
const Names kAxes[] = {{"pp", "dp_replicate", "dp_shard", "cp", "tp"}, {"pp", "dp_replicate", "efsdp", "ep", "etp"}};

// Flattened axes; the last one named is the fastest.
const std::pair<std::string_view, Names> kFlattened[] = {
    {"batch", {"dp_replicate", "dp_shard"}},
    {"loss", {"dp_replicate", "dp_shard", "cp"}},
    {"fsdp", {"dp_shard", "cp"}},
    {"world", kAxes[0]},
};

const std::pair<std::string_view, Names> kViews[] = {
    {"data", {"pp", "batch", "cp", "tp"}},
    {"dense", {"pp", "dp_replicate", "fsdp", "tp"}},
    {"sparse", kAxes[1]},
    {"degrees", kAxes[0]},
};

const Names* find(const auto& table, std::string_view name) {
  const auto found = std::ranges::find(table, name, [](const auto& row) { return row.first; });
  return found == std::end(table) ? nullptr : &found->second;
}

}  // namespace

Mesh::Mesh(const ParallelismConfig& p, int64_t world_size) : world_size_(world_size) {
  const int64_t pp = p.pipeline_parallel_degree, replicate = p.data_parallel_replicate_degree, cp = p.context_parallel_degree,
                tp = p.tensor_parallel_degree, ep = p.expert_parallel_degree, etp = p.expert_tensor_parallel_degree;
  const int64_t others = pp * replicate * cp * tp;
  const int64_t shard = p.data_parallel_shard_degree == -1 ? world_size / others : p.data_parallel_shard_degree;
  check(shard >= 1 && others * shard == world_size,
        "parallelism: pipeline_parallel_degree * data_parallel_replicate_degree * data_parallel_shard_degree * context_parallel_degree * "
        "tensor_parallel_degree must be the number of processes, found {} * {} * {} * {} * {} and {} processes",
        pp, replicate, p.data_parallel_shard_degree, cp, tp, world_size);
  const int64_t experts = shard * cp * tp;
  check(experts % (ep * etp) == 0,
        "parallelism: expert_parallel_degree * expert_tensor_parallel_degree must divide data_parallel_shard_degree * "
        "context_parallel_degree * tensor_parallel_degree, found {} * {} and {} * {} * {}",
        ep, etp, shard, cp, tp);
  const std::vector<int64_t> sizes[] = {{pp, replicate, shard, cp, tp}, {pp, replicate, experts / (ep * etp), ep, etp}};
  for (size_t numbering : {0, 1}) {
    int64_t stride = world_size;
    for (size_t i = 0; i < sizes[numbering].size(); ++i) {
      stride /= sizes[numbering][i];
      axes_.push_back({kAxes[numbering][i], sizes[numbering][i], stride});
    }
  }
}

std::vector<const Mesh::Axis*> Mesh::parts(std::string_view axis) const {
  const Names* flattened = find(kFlattened, axis);
  std::vector<const Axis*> found;
  for (const std::string_view name : flattened ? *flattened : Names{axis}) {
    const auto at = std::ranges::find(axes_, name, &Axis::name);
    check(at != axes_.end(), "the mesh has no axis '{}'", name);
    found.push_back(&*at);
  }
  return found;
}

int64_t Mesh::size(std::string_view axis) const {
  int64_t size = 1;
  for (const Axis* a : parts(axis)) size *= a->size;
  return size;
}

int64_t Mesh::coordinate(int64_t rank, std::string_view axis) const {
  int64_t index = 0;
  for (const Axis* a : parts(axis)) index = index * a->size + rank / a->stride % a->size;
  return index;
}

std::vector<int64_t> Mesh::ranks(int64_t rank, std::string_view axis) const {
  std::vector<int64_t> ranks = {rank};
  for (const Axis* a : parts(axis)) {
    std::vector<int64_t> wider;
    for (const int64_t r : ranks) {
      const int64_t first = r - r / a->stride % a->size * a->stride;
      for (int64_t i = 0; i < a->size; ++i) wider.push_back(first + i * a->stride);
    }
    ranks = std::move(wider);
  }
  return ranks;
}

std::vector<std::pair<std::string_view, int64_t>> Mesh::view(std::string_view name) const {
  const Names* axes = find(kViews, name);
  check(axes != nullptr, "the mesh has no view '{}'", name);
  std::vector<std::pair<std::string_view, int64_t>> sizes;
  for (const std::string_view axis : *axes) sizes.emplace_back(axis, size(axis));
  return sizes;
}

}  // namespace halftone::parallel
