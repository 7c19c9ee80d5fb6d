#include "halftone/parallel/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "halftone/base/error.h"

namespace halftone::parallel::mesh_test {
namespace {

using Ranks = std::vector<int64_t>;
using View = std::vector<std::pair<std::string_view, int64_t>>;

ParallelismConfig degrees(int64_t pp, int64_t replicate, int64_t shard, int64_t cp, int64_t tp, int64_t ep = 1, int64_t etp = 1) {
  ParallelismConfig p;
  p.pipeline_parallel_degree = pp, p.data_parallel_replicate_degree = replicate, p.data_parallel_shard_degree = shard;
  p.context_parallel_degree = cp, p.tensor_parallel_degree = tp, p.expert_parallel_degree = ep, p.expert_tensor_parallel_degree = etp;
  return p;
}

std::string problem(const ParallelismConfig& p, int64_t world) {
  try {
    Mesh(p, world);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Mesh, HybridShardingWithTensorParallelism) {  // HSDP 2x2 TP2
  const Mesh mesh(degrees(1, 2, 2, 1, 2), 8);
  EXPECT_EQ(mesh.ranks(5, "tp"), (Ranks{4, 5}));
  EXPECT_EQ(mesh.ranks(5, "fsdp"), (Ranks{5, 7}));
  EXPECT_EQ(mesh.ranks(5, "dp_replicate"), (Ranks{1, 5}));
  EXPECT_EQ(mesh.ranks(5, "batch"), (Ranks{1, 3, 5, 7}));
  EXPECT_EQ(mesh.coordinate(5, "batch"), 2);
  EXPECT_EQ(mesh.coordinate(5, "tp"), 1);
  EXPECT_EQ(mesh.ranks(5, "pp"), Ranks{5});
}

TEST(Mesh, ViewsOfEveryAxis) {  // PP2 FSDP2 CP2 TP2 with EP4 of experts
  const Mesh mesh(degrees(2, 1, -1, 2, 2, 4), 16);
  EXPECT_EQ(mesh.size("dp_shard"), 2);
  EXPECT_EQ(mesh.view("data"), (View{{"pp", 2}, {"batch", 2}, {"cp", 2}, {"tp", 2}}));
  EXPECT_EQ(mesh.view("dense"), (View{{"pp", 2}, {"dp_replicate", 1}, {"fsdp", 4}, {"tp", 2}}));
  EXPECT_EQ(mesh.view("sparse"), (View{{"pp", 2}, {"dp_replicate", 1}, {"efsdp", 2}, {"ep", 4}, {"etp", 1}}));
  EXPECT_EQ(mesh.ranks(0, "loss"), (Ranks{0, 2, 4, 6}));
  EXPECT_EQ(mesh.ranks(10, "pp"), (Ranks{2, 10}));
  EXPECT_EQ(mesh.ranks(10, "ep"), (Ranks{8, 9, 10, 11}));
  EXPECT_EQ(mesh.ranks(10, "efsdp"), (Ranks{10, 14}));
}

TEST(Mesh, ContextWithoutDataParallelismStillShards) {
  const Mesh mesh(degrees(1, 1, 1, 4, 1), 4);
  EXPECT_EQ(mesh.size("fsdp"), 4);
  EXPECT_EQ(mesh.size("batch"), 1);
}

TEST(Mesh, ExpertTensorParallelism) {  // PP2 FSDP2 TP2, EP2 ETP2
  const Mesh mesh(degrees(2, 1, 2, 1, 2, 2, 2), 8);
  EXPECT_EQ(mesh.size("efsdp"), 1);
  EXPECT_EQ(mesh.ranks(6, "etp"), (Ranks{6, 7}));
  EXPECT_EQ(mesh.ranks(6, "ep"), (Ranks{4, 6}));
}

TEST(Mesh, GroupsOfEveryAxisAreAPartition) {
  for (const auto& p : {degrees(2, 2, 2, 2, 2, 4, 2), degrees(1, 3, 2, 1, 4), degrees(4, 1, 3, 2, 1, 6)}) {
    const int64_t world = p.pipeline_parallel_degree * p.data_parallel_replicate_degree * p.data_parallel_shard_degree *
                          p.context_parallel_degree * p.tensor_parallel_degree;
    const Mesh mesh(p, world);
    for (const char* axis : {"pp", "dp_replicate", "dp_shard", "cp", "tp", "efsdp", "ep", "etp", "batch", "loss", "fsdp", "world"}) {
      for (int64_t r = 0; r < world; ++r) {
        const Ranks group = mesh.ranks(r, axis);
        ASSERT_EQ(group.size(), static_cast<size_t>(mesh.size(axis))) << axis;
        ASSERT_EQ(group[static_cast<size_t>(mesh.coordinate(r, axis))], r) << axis;
        for (const int64_t member : group) ASSERT_EQ(mesh.ranks(member, axis), group) << axis;
      }
    }
  }
}

TEST(Mesh, ErrorsNameTheFields) {
  EXPECT_EQ(
      problem(degrees(1, 2, 3, 1, 2), 8),
      "parallelism: pipeline_parallel_degree * data_parallel_replicate_degree * data_parallel_shard_degree * context_parallel_degree * "
      "tensor_parallel_degree must be the number of processes, found 1 * 2 * 3 * 1 * 2 and 8 processes");
  EXPECT_NE(problem(degrees(1, 1, -1, 1, 3), 8).find("found 1 * 1 * -1 * 1 * 3 and 8 processes"), std::string::npos);
  EXPECT_NE(problem(degrees(1, 1, -1, 1, 16), 8).find("and 8 processes"), std::string::npos);
  EXPECT_NE(problem(degrees(1, 1, 4, 1, 1, 3), 4).find("expert_parallel_degree"), std::string::npos);
  EXPECT_THROW(Mesh(degrees(1, 1, 2, 1, 1), 2).ranks(0, "dp"), Error);
}

}  // namespace
}  // namespace halftone::parallel::mesh_test
