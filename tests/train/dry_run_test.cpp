#include "halftone/train/dry_run.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>

#include "halftone/base/error.h"
#include "halftone/config/load.h"
#include "halftone/ops/range.h"
#include "source_dir.h"

namespace halftone::dry_run_test {
namespace {

at::Tensor bytes(int64_t count) { return at::empty({count}, at::TensorOptions().dtype(at::kByte).device(at::kMeta)); }

JobConfig tiny(std::vector<std::string> more, int64_t world) {
  more.insert(more.begin(),
              {"--config", (std::filesystem::path(source_dir()) / "recipes" / "demo.toml").string(),
               R"(--model.overrides={"dim":64,"n_layers":4,"n_heads":4,"n_kv_heads":2,"ffn_dim":192,"vocab_size":256})",
               "--quantize.scheme=none", "--activation_checkpoint.mode=none", "--training.seq_len=512", "--training.local_batch_size=2"});
  return load_config(more, {world}).config;
}

const DryRun::Peak& range(const DryRun& dry, std::string_view name) {
  return *std::ranges::find_if(dry.peaks, [&](const DryRun::Peak& p) { return p.range == name; });
}

// The peak of each range, its owners then, and what a forward range leaves to the backward pass.
TEST(DryRun, NotesMemoryByRangeAndOwner) {
  DryRun dry(Hardware::sm_90);
  std::optional<at::Tensor> weight, kept, work;
  {
    const Owner owner("weights");
    weight = bytes(1000);
  }
  {
    const Range forward("one forward");
    kept = bytes(100), work = bytes(30), work.reset();
  }
  {
    const Range backward("one backward");
    work = bytes(7), kept.reset();
  }
  const DryRun::Peak &forward = range(dry, "one forward"), &backward = range(dry, "one backward");
  EXPECT_EQ(forward.bytes, 1130);
  EXPECT_EQ(forward.owners, (DryRun::Owners{{"weights", 1000}, {"activations kept for backward", 0}, {"at work", 130}}));
  EXPECT_EQ(forward.kept, 100);
  EXPECT_EQ(backward.bytes, 1107);
  EXPECT_EQ(backward.owners, (DryRun::Owners{{"weights", 1000}, {"activations kept for backward", 100}, {"at work", 7}}));
  EXPECT_EQ(dry.live, 1007);
}

// A run inside another one notes its own memory and leaves the outer one's.
TEST(DryRun, Nests) {
  DryRun outer(Hardware::sm_90);
  const at::Tensor one = bytes(10);
  {
    DryRun inner(Hardware::sm_100);
    const at::Tensor two = bytes(20);
    EXPECT_EQ(inner.live, 20);
    EXPECT_EQ(SimulatedDevice::current()->hardware, Hardware::sm_100);
  }
  EXPECT_EQ(outer.live, 10);
  EXPECT_EQ(SimulatedDevice::current()->hardware, Hardware::sm_90);
  const at::Tensor three = bytes(5);
  EXPECT_EQ(outer.live, 15);
}

// Two blocks' slots: of four blocks two are gathered again, beside embedding and head.
TEST(DryRun, NotesTheTrafficOfARank) {
  EXPECT_TRUE(dry_step(tiny({}, 1), 0, Hardware::sm_90).traffic.empty());
  const DryStep step = dry_step(tiny({}, 2), 0, Hardware::sm_90, 2, 1);
  const auto calls = [&](std::string_view communicator, std::string_view operation) {
    int64_t calls = 0;
    for (const Traffic& t : step.traffic) calls += t.communicator == communicator && t.operation == operation ? t.calls : 0;
    return calls;
  };
  EXPECT_EQ(calls("fsdp gathers", "all-gather"), 8);
  EXPECT_EQ(calls("fsdp reductions", "reduce-scatter"), 6);
  EXPECT_THROW(dry_step(tiny({"--parallelism.tensor_parallel_degree=4"}, 4), 0, Hardware::sm_90, 4), Error);  // 2 heads of keys and values
}

comm::Operation operation(const std::string& communicator, int64_t bytes) {
  return {"all-gather", std::make_shared<comm::Group>(comm::Group{communicator, communicator, {0, 1}}), 0, -1, bytes, "Float"};
}

// 460 MB between two ranks: 230 MB arrive in a millisecond, and a ring's hop.
TEST(Transfers, ExposesWhatWorkDoesNotHide) {
  constexpr double kAlone = 1 + 3.4e-3;
  constexpr int64_t kBytes = 460'000'000;
  Transfers t;
  comm::Operation one = operation("one", kBytes), two = one;
  t.begin(one), t.work(0.4e-3), t.end(one);
  ASSERT_EQ(t.traffic.size(), 1u);
  EXPECT_EQ(t.traffic[0].bytes, kBytes / 2);
  EXPECT_NEAR(t.traffic[0].ms, kAlone, 1e-9);
  EXPECT_NEAR(t.traffic[0].exposed_ms, kAlone - 0.4, 1e-9);
  EXPECT_NEAR(t.slower_ms, 0.45 * 0.4, 1e-9);
  t.end(one);  // over
  EXPECT_NEAR(t.traffic[0].exposed_ms, kAlone - 0.4, 1e-9);
  // In order on one communicator.
  t.restart();
  t.begin(one), t.begin(two), t.end(two), t.end(one);
  EXPECT_NEAR(t.traffic[0].exposed_ms, 2 * kAlone, 1e-9);
  EXPECT_EQ(t.slower_ms, 0);
  // Two communicators share the link: the small operation takes twice its time, and delays the large one by that of its bytes.
  t.restart();
  comm::Operation small = operation("small", kBytes / 10);
  t.begin(one), t.begin(small), t.end(small), t.end(one);
  EXPECT_NEAR(t.traffic[1].exposed_ms, 2 * (0.1 + 3.4e-3), 1e-9);
  EXPECT_NEAR(t.traffic[0].exposed_ms, kAlone - (0.1 + 3.4e-3), 1e-9);
  // Messages of a pipeline arrive in time.
  t.restart();
  comm::Operation message = operation("pp streams up", kBytes);
  message.what = "recv", t.begin(message), t.end(message);
  EXPECT_EQ(t.traffic[0].bytes, kBytes);
  EXPECT_EQ(t.traffic[0].exposed_ms, 0);
}

// The same step twice notes the same; a device without rates has no times.
TEST(DryRun, IsRepeatable) {
  const JobConfig config = tiny({}, 1);
  const DryStep one = dry_step(config, 0, Hardware::sm_90), two = dry_step(config, 0, Hardware::sm_90);
  EXPECT_EQ(one.peak().bytes, two.peak().bytes);
  EXPECT_EQ(one.peak().owners, two.peak().owners);
  for (const double s : one.seconds) EXPECT_EQ(s, 0);
}

}  // namespace
}  // namespace halftone::dry_run_test
