#include "halftone/train/estimate_mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/config/load.h"
#include "halftone/models/registry.h"
#include "halftone/nn/parameter_store.h"
#include "halftone/train/dry_run.h"
#include "halftone/train/estimate.h"
#include "source_dir.h"

namespace halftone {
namespace {

// A Llama of four blocks: 64 columns, 4 heads of 16, 2 KV heads, feed-forward 192, vocabulary 256; rows of 512 tokens.
constexpr double kBlock = 64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 192 * 64 + 2 * 64, kTable = 256 * 64, kHead = kTable + 64;
constexpr double kNorms = (2 * 4 + 1) * 64, kAll = 4 * kBlock + kTable + kHead;

std::string recipe(const std::string& name) { return (std::filesystem::path(source_dir()) / "recipes" / (name + ".toml")).string(); }

JobConfig tiny(const std::vector<std::string>& more, int64_t world) {
  std::vector<std::string> args = {"--config",
                                   recipe("demo"),
                                   R"(--model.overrides={"dim":64,"n_layers":4,"n_heads":4,"n_kv_heads":2,"ffn_dim":192,"vocab_size":256})",
                                   "--quantize.scheme=none",
                                   "--activation_checkpoint.mode=none",
                                   "--training.seq_len=512",
                                   "--training.local_batch_size=2",
                                   "--training.minutes=0"};
  args.insert(args.end(), more.begin(), more.end());
  return load_config(args, {world}).config;
}

Estimate on(const std::vector<std::string>& more, int64_t world) {
  return estimate_step(tiny(more, world), 0, estimate_device("h100", "auto"), world);
}

double bytes_of(const std::vector<Traffic>& traffic, std::string_view communicator, std::string_view operation,
                std::string_view dtype = "") {
  double bytes = 0;
  for (const Traffic& t : traffic)
    bytes += t.communicator == communicator && t.operation == operation && (dtype.empty() || t.dtype == dtype) ? t.bytes : 0;
  return bytes;
}

double gathered(const Estimate& e, const std::string& axis = "fsdp") {
  return bytes_of(e.traffic, axis + " gathers", "all-gather", "BFloat16");
}

double reduced(const Estimate& e, const std::string& axis = "fsdp") { return bytes_of(e.traffic, axis + " reductions", "reduce-scatter"); }

double share_of(const Phase& phase, std::string_view owner) {
  double bytes = 0;
  for (const MemoryShare& s : phase.shares) bytes += s.owner == owner ? s.bytes : 0;
  return bytes;
}

double ms_of(const Estimate& e, std::string_view work) {
  const auto found = std::find_if(e.work.begin(), e.work.end(), [&](const WorkTime& w) { return w.work == work; });
  return found == e.work.end() ? 0 : found->ms;
}

// The first pass gathers all units in forward and, in backward, those whose slots were reused: two blocks of four. Later passes find two
// blocks from the pass before.
TEST(EstimateMesh, BytesOfDataParallelism) {
  const Estimate fsdp = on({}, 4);
  EXPECT_DOUBLE_EQ(gathered(fsdp), 2 * 0.75 * (kTable + kHead + 6 * kBlock));
  EXPECT_DOUBLE_EQ(reduced(fsdp), 4 * 0.75 * kAll);
  EXPECT_EQ(bytes_of(fsdp.traffic, "dp_replicate", "all-reduce"), 0);
  const Estimate twice = on({"--training.global_batch_size=16"}, 4);
  EXPECT_DOUBLE_EQ(gathered(twice), 2 * 0.75 * (2 * (kTable + kHead) + 10 * kBlock));
  EXPECT_DOUBLE_EQ(reduced(twice), 2 * 4 * 0.75 * kAll);
  const Estimate kept = on({"--training.global_batch_size=16", "--parallelism.fsdp_reshard_after_forward=never"}, 4);
  EXPECT_DOUBLE_EQ(gathered(kept), 2 * 0.75 * kAll);
  EXPECT_DOUBLE_EQ(reduced(kept), 4 * 0.75 * kAll);
  const Estimate half = on({"--training.mixed_precision_reduce=bfloat16"}, 4);
  EXPECT_DOUBLE_EQ(reduced(half), 2 * 0.75 * kAll);
  const Estimate hsdp = on({"--parallelism.data_parallel_replicate_degree=2"}, 4);
  EXPECT_DOUBLE_EQ(reduced(hsdp), 4 * 0.5 * kAll);
  EXPECT_DOUBLE_EQ(bytes_of(hsdp.traffic, "dp_replicate", "all-reduce"), 4 * kAll / 2);
  EXPECT_EQ(hsdp.tokens, 4 * 2 * 512);
}

// A token's row is 128 bytes in bfloat16 and 256 in the stream: attention and feed-forward, forward and backward, and both ends of the
// model.
TEST(EstimateMesh, BytesOfTensorParallelism) {
  const Estimate e = on({"--parallelism.tensor_parallel_degree=2"}, 2);
  const double stream = 1024 * 256 / 2.0, rows = 1024 * (4 * 2 * 2 * 128 + 128) / 2.0, loss = 1024 * 2 * 4;
  EXPECT_DOUBLE_EQ(bytes_of(e.traffic, "tp", "all-gather", "BFloat16"), rows);
  EXPECT_DOUBLE_EQ(bytes_of(e.traffic, "tp", "all-gather", "Float"), stream + loss);
  EXPECT_DOUBLE_EQ(bytes_of(e.traffic, "tp", "reduce-scatter"), rows + stream);
  EXPECT_DOUBLE_EQ(bytes_of(e.traffic, "tp", "all-reduce"), 4 * kNorms);
  EXPECT_EQ(gathered(e), 0);
  const Estimate again = on({"--parallelism.tensor_parallel_degree=2", "--activation_checkpoint.mode=full"}, 2);
  EXPECT_DOUBLE_EQ(bytes_of(again.traffic, "tp", "all-gather", "BFloat16"), 1024 * (4 * 2 * 3 * 128 + 128) / 2.0);
  const Estimate whole = on({"--parallelism.tensor_parallel_degree=2", "--parallelism.enable_sequence_parallel=false"}, 2);
  EXPECT_DOUBLE_EQ(bytes_of(whole.traffic, "tp", "all-reduce"), 2 * (rows + stream));
  EXPECT_GT(ms_of(e, "waits for tp"), 0);  // of all of it
  const Estimate parts = on({"--parallelism.tensor_parallel_degree=2", "--parallelism.enable_async_tensor_parallel"}, 2);
  EXPECT_LT(ms_of(parts, "waits for tp"), ms_of(e, "waits for tp"));
  EXPECT_GT(ms_of(parts, "waits for tp"), ms_of(e, "waits for tp") / 2);
  // Forward gathers of blocks send codes with their rows' scales, beside the rows again for wgrad.
  const Estimate codes = on({"--parallelism.tensor_parallel_degree=2", "--quantize.scheme=fp8_rowwise"}, 2);
  EXPECT_DOUBLE_EQ(bytes_of(codes.traffic, "tp", "all-gather", "BFloat16"), rows);
  EXPECT_DOUBLE_EQ(bytes_of(codes.traffic, "tp", "all-gather", "Float"), stream + loss + 1024 * 4 * 2 * (64 + 4) / 2.0);
}

// Keys and values of 2 heads of 16 each, of rows of 512 tokens.
TEST(EstimateMesh, BytesOfContextParallelism) {
  const Estimate e = on({"--parallelism.context_parallel_degree=2"}, 2);
  EXPECT_DOUBLE_EQ(bytes_of(e.traffic, "cp", "all-gather"), 4 * 2 * 1024 * 64 * 2 / 2.0);
  EXPECT_DOUBLE_EQ(bytes_of(e.traffic, "cp", "reduce-scatter"), 4 * 1024 * 64 * 4 / 2.0);
  EXPECT_DOUBLE_EQ(reduced(e), 4 * 0.5 * kAll);  // fsdp = cp
  EXPECT_EQ(e.tokens, 2 * 512);
  // Half of the tokens: its block's activations are half of those of a single process.
  const Estimate one = on({}, 1);
  EXPECT_DOUBLE_EQ(e.block_bytes, one.block_bytes);  // counted for all ranks' tokens
}

TEST(EstimateMesh, PipelinesHaveBubblesAndMicroBatchesUnderWay) {
  const std::vector<std::string> base = {"--parallelism.pipeline_parallel_degree=2", "--training.local_batch_size=4",
                                         "--parallelism.pipeline_parallel_first_stage_less_layers=0",
                                         "--parallelism.pipeline_parallel_last_stage_less_layers=0"};
  const auto with = [&](const std::string& schedule) {
    std::vector<std::string> args = base;
    args.push_back("--parallelism.pipeline_parallel_schedule=" + schedule);
    return args;
  };
  // At the end of the rank's first backward range; own: what one micro-batch's blocks keep, with the message of the residual stream.
  const double message = 512 * 64 * 4;
  double own = 0;
  const auto kept = [&](const std::string& schedule, size_t rank) {
    const JobConfig config = tiny(with(schedule), 2);
    const StepMesh mesh(config, 2, 4);
    EXPECT_NEAR(mesh.bubble, schedule == "Interleaved1F1B" ? 1.0 / 9 : 0.2, 1e-12) << schedule;
    const DryStep step = dry_step(config, 0, Hardware::sm_90, 2, mesh.parts[rank].rank);
    const auto range = [&](int64_t block, const char* pass) { return step.range(fmt::format("layers.{} {}", block, pass)); };
    if (schedule == "Interleaved1F1B") return 0.0;
    const auto first = static_cast<int64_t>(2 * rank);
    own = static_cast<double>(range(first, "forward")->kept + range(first + 1, "forward")->kept) + (rank == 0 ? 0 : message);
    return static_cast<double>(range(first + 1, "backward")->owners.at("activations kept for backward"));
  };
  const double two = kept("1F1B", 0), one = kept("1F1B", 1), four = kept("GPipe", 0), four_last = kept("GPipe", 1);
  const double in_flight = 2 * own;
  EXPECT_GE(two, in_flight);
  EXPECT_LE(two, in_flight + 4 * message);  // the gradients that have come
  EXPECT_DOUBLE_EQ(four - two, in_flight);
  EXPECT_GE(four_last - one, 3 * own);
  EXPECT_LE(four_last - one, 3 * (own + 1.5 * message));  // the head's gradients of residual and branch, until their backward passes
  kept("Interleaved1F1B", 0);
  const Estimate e = on(base, 2);
  EXPECT_DOUBLE_EQ(bytes_of(e.traffic, "pp streams up", "recv") + bytes_of(e.traffic, "pp gradients down", "recv"), 4 * message);
  double passes = 0;
  for (const WorkTime& w : e.work)
    passes +=
        w.work == "optimizer" || w.work == "gradient norm" || w.work == "waits for messages" || w.work.starts_with("bubble") ? 0 : w.ms;
  EXPECT_NEAR(ms_of(e, "bubble of the pipeline"), passes / 4, 1e-9);
  EXPECT_NE(e.heaviest.find("in the pipeline"), std::string::npos);
  // Weights stay gathered: one all-gather of the heavier rank's weights, none in a single process.
  EXPECT_EQ(gathered(e), 0);
  EXPECT_GT(gathered(on(base, 4)), 0);
}

// 64 experts of 3 x 768 x 256 in 8 layers; 512 tokens routed to 8 of them.
TEST(EstimateMesh, ExpertsAreSharedOut) {
  const auto estimated = [](std::vector<std::string> more, int64_t world) {
    more.insert(more.begin(), {"--config", recipe("qwen3_moe_debug"), "--training.local_batch_size=1", "--training.seq_len=512",
                               "--activation_checkpoint.mode=none"});
    return estimate_step(load_config(more, {world}).config, 0, estimate_device("h100", "auto"), world);
  };
  const Estimate e = estimated({"--parallelism.expert_parallel_degree=4"}, 4);
  EXPECT_DOUBLE_EQ(bytes_of(e.traffic, "ep", "all-to-all", "BFloat16"), 0.75 * 8 * 2 * 2 * 512 * 8 * 256 * 2);
  EXPECT_EQ(gathered(e, "efsdp"), 0);
  const Estimate pairs = estimated({"--parallelism.expert_parallel_degree=2"}, 4);
  // Half of the experts, sharded over two ranks: six gathers of layers in addition to those of the first pass's slots.
  constexpr double kExperts = 32.0 * 3 * 768 * 256;
  EXPECT_DOUBLE_EQ(gathered(pairs, "efsdp"), 2 * 0.5 * (8 + 6) * kExperts);
  EXPECT_DOUBLE_EQ(reduced(pairs, "efsdp"), 4 * 0.5 * 8 * kExperts);
  // Every way to use 4 ranks leaves a quarter of the experts on each.
  const double weights = share_of(e.phases[0], "weights in float32");
  EXPECT_DOUBLE_EQ(share_of(pairs.phases[0], "weights in float32"), weights);
  EXPECT_DOUBLE_EQ(share_of(estimated({}, 4).phases[0], "weights in float32"), weights);
  // Experts sharded whole receive rows of tp's share of the tokens.
  const Estimate mixed = estimated({"--parallelism.expert_parallel_degree=4", "--parallelism.tensor_parallel_degree=2"}, 4);
  EXPECT_DOUBLE_EQ(bytes_of(mixed.traffic, "ep", "all-to-all", "BFloat16"), 0.75 * 8 * 2 * 2 * 256 * 8 * 256 * 2);
  // Halves of experts receive rows of all tokens.
  const Estimate cut = estimated(
      {"--parallelism.expert_parallel_degree=2", "--parallelism.tensor_parallel_degree=2", "--parallelism.expert_tensor_parallel_degree=2"},
      4);
  EXPECT_DOUBLE_EQ(bytes_of(cut.traffic, "ep", "all-to-all", "BFloat16"), 0.5 * 8 * 2 * 2 * 512 * 8 * 256 * 2);
  EXPECT_EQ(gathered(cut, "efsdp"), 0);
  EXPECT_THROW(estimated({"--parallelism.expert_parallel_degree=3"}, 3), Error);
}

// With more ranks than experts, a rank holds part of an expert; collectives move shards padded to the largest.
TEST(EstimateMesh, SharesOfExpertsAreEven) {
  nn::Parameter p;
  p.shape = {4, 96, 8};
  const auto held = [&](int64_t shards) {
    p.shard = nn::share_of(p, {shards, 0});
    EXPECT_EQ(p.shard->most * p.row_length(), p.held()) << shards;
    return p.held();
  };
  EXPECT_EQ(held(2), 2 * 96 * 8);
  EXPECT_EQ(held(4), 96 * 8);
  EXPECT_EQ(held(6), 96 * 8);  // two have none
  EXPECT_EQ(held(12), 32 * 8);
  p.row_block = 32;
  EXPECT_EQ(held(8), 96 * 8);   // half an expert is not a multiple of full blocks
  EXPECT_EQ(held(16), 32 * 8);  // a third
}

TEST(EstimateMesh, SharesAddUpToTheModel) {
  for (const auto& [world, options] : std::vector<std::pair<int64_t, std::vector<std::string>>>{
           {4, {}},
           {2, {"--parallelism.tensor_parallel_degree=2"}},
           {2, {"--parallelism.pipeline_parallel_degree=2"}},
           {8, {"--parallelism.pipeline_parallel_degree=2", "--parallelism.tensor_parallel_degree=2"}},
           {16,
            {"--parallelism.pipeline_parallel_degree=2", "--parallelism.tensor_parallel_degree=2",
             "--parallelism.context_parallel_degree=2", "--parallelism.pipeline_parallel_schedule=ZBVZeroBubble"}},
           {8, {"--parallelism.data_parallel_replicate_degree=2"}}}) {
    const JobConfig config = tiny(options, world);
    const StepMesh mesh(config, world, 4);
    double held = 0;
    for (const RankPart& part : mesh.parts) {
      const DryStep step = dry_step(config, 0, Hardware::sm_90, world, part.rank);
      held += static_cast<double>(world) / static_cast<double>(mesh.parts.size()) * static_cast<double>(step.peak().owners.at("weights"));
    }
    // Buffers hold multiples of 32 elements: a norm has 64.
    const auto ranks = static_cast<double>(world) / static_cast<double>(mesh.parts.size()), tp = static_cast<double>(mesh.mesh.size("tp"));
    const double replicas = static_cast<double>(mesh.mesh.size("dp_replicate")), room = mesh.mesh.size("fsdp") == 4 ? ranks * 9 * 16 : 0;
    EXPECT_DOUBLE_EQ(held, 4 * (replicas * (kAll + kNorms * (tp - 1)) + room)) << world;
  }
  const double whole = share_of(on({}, 1).phases[0], "weights in float32");
  EXPECT_DOUBLE_EQ(whole, 4 * kAll);
  const Estimate half = on({"--parallelism.tensor_parallel_degree=2"}, 2);
  EXPECT_DOUBLE_EQ(share_of(half.phases[0], "weights in float32"), 4 * ((kAll - kNorms) / 2 + kNorms));
  // Two blocks and the larger of embedding and head are gathered.
  const Estimate shards = on({}, 4);
  EXPECT_DOUBLE_EQ(share_of(shards.phases[0], "gathered weights: two blocks, embedding or head"), 2 * (2 * kBlock + kHead));
  EXPECT_DOUBLE_EQ(share_of(shards.phases[0], "gradients before they are shared out"), 4 * (2 * kBlock + kHead));
  EXPECT_DOUBLE_EQ(share_of(shards.phases[0], "optimizer states"),
                   share_of(on({}, 1).phases[0], "optimizer states") / 4 + 8 * 16 * 9);  // shards of the norms: 16 elements, in 32
}

// Between blocks a rank has its share of the tokens; heads and widths are split inside. Only the inputs of both halves, which are gathered,
// are whole: 64 columns in bfloat16.
TEST(EstimateMesh, TensorParallelismHalvesActivations) {
  const Estimate one = on({}, 1), two = on({"--parallelism.tensor_parallel_degree=2"}, 2);
  EXPECT_DOUBLE_EQ(two.block_bytes, one.block_bytes / 2 + 2 * 64 * 2 / 2.0);
}

TEST(EstimateMesh, LinksAreThoseOfTheNodes) {
  const auto ranks = [](int64_t n, int64_t stride) {
    std::vector<int64_t> r;
    for (int64_t i = 0; i < n; ++i) r.push_back(i * stride);
    return r;
  };
  EXPECT_EQ(link_of(ranks(8, 1)).name, "NVLink");
  EXPECT_EQ(link_of(ranks(4, 8)).rate, 45e9);
  EXPECT_EQ(link_of(ranks(16, 4)).rate, 90e9);   // two network cards
  EXPECT_EQ(link_of(ranks(16, 1)).rate, 230e9);  // eight, for which NVLink is the limit
  EXPECT_DOUBLE_EQ(transfer_seconds(ranks(16, 1), "all-to-all", 15e9), 8.0 / 45 + 14e-6);
  EXPECT_DOUBLE_EQ(transfer_seconds(ranks(8, 1), "all-to-all", 23e9), 0.1 + 3.4e-6);
  EXPECT_DOUBLE_EQ(transfer_seconds(ranks(4, 4), "recv", 4.5e9), 0.1 + 14e-6);
  // Rings have one hop fewer than ranks; hops between nodes take longer.
  EXPECT_DOUBLE_EQ(transfer_seconds(ranks(16, 1), "all-gather", 0), 14 * 3.4e-6 + 14e-6);
  EXPECT_DOUBLE_EQ(transfer_seconds(ranks(8, 1), "all-reduce", 0), 14 * 3.4e-6);
}

TEST(EstimateMesh, SaysWhatDoesNotGoTogether) {
  EXPECT_THROW(on({"--parallelism.tensor_parallel_degree=4"}, 4), Error);  // 2 heads of keys and values
  EXPECT_THROW(on({"--model.overrides.tied=true", "--parallelism.pipeline_parallel_degree=2"}, 2), Error);
  EXPECT_THROW(on({"--parallelism.pipeline_parallel_degree=8"}, 8), Error);  // 6 layers with the ends
}

// `halftone bench train` on two and four H100s of one host, 2026-11-26 and 27: the median step time and the allocator's peak
// (docs/benchmarks/parallel.md, scaling.md).
TEST(EstimateMesh, IsNearWhatGpusMeasured) {
  const std::vector<std::string> llama = {"--config", recipe("bench_gpu"), "--training.local_batch_size=1"};
  const std::vector<std::string> qwen = {"--config",
                                         recipe("qwen3_30b_a3b"),
                                         "--model.overrides.n_layers=4",
                                         "--quantize.scheme=none",
                                         "--training.local_batch_size=2",
                                         "--activation_checkpoint.mode=none"};
  const std::string layers = "--model.overrides.n_layers=", tp = "--parallelism.tensor_parallel_degree=2",
                    budget = "--activation_checkpoint.mode=memory_budget";
  const std::vector<std::string> rows = {layers + "8", "--training.global_batch_size=8"};
  const auto on_rows = [&](std::vector<std::string> more) {
    more.insert(more.begin(), rows.begin(), rows.end());
    return more;
  };
  struct Measured {
    const std::vector<std::string>& base;
    std::vector<std::string> more;
    double ms, gib;
    int64_t gpus = 2;
  };
  for (const auto& [base, more, ms, gib, gpus] : std::vector<Measured>{
           {llama, {layers + "6"}, 201.2, 28.3},
           {llama, {layers + "16"}, 454.9, 52.2},
           {llama, {layers + "16", "--quantize.scheme=fp8_rowwise"}, 363.8, 51.3},
           {llama, {layers + "16", "--quantize.scheme=mxfp4"}, 367.7, 51.3},
           {llama, {layers + "16", budget, "--activation_checkpoint.memory_budget=0.5"}, 499.2, 47.0},
           {llama, {layers + "16", "--training.global_batch_size=8"}, 1750.5, 62.5},
           {llama, {layers + "8", "--parallelism.data_parallel_replicate_degree=2"}, 262.1, 50.3},
           {llama, {layers + "8", tp}, 135.3, 25.9},
           {llama, {layers + "8", tp, "--quantize.scheme=fp8_tensorwise"}, 115.5, 23.8},
           {qwen, {"--parallelism.expert_parallel_degree=2"}, 100.4, 31.2},
           {llama, {layers + "32"}, 827.6, 64.0, 4},
           {llama, {layers + "32", "--quantize.scheme=fp8_rowwise"}, 659.4, 62.0, 4},
           {llama, {layers + "32", budget, "--activation_checkpoint.memory_budget=0.5"}, 947.9, 50.4, 4},
           {llama, on_rows({"--parallelism.data_parallel_replicate_degree=2", "--training.local_batch_size=2"}), 483.6, 41.4, 4},
           {llama, on_rows({tp, "--training.local_batch_size=4"}), 496.0, 31.4, 4},
           {llama, on_rows({"--parallelism.context_parallel_degree=2", "--training.local_batch_size=4"}), 505.5, 31.9, 4},
           {qwen, {"--parallelism.expert_parallel_degree=4", "--training.global_batch_size=8"}, 94.4, 19.2, 4}}) {
    std::vector<std::string> args = base;
    args.insert(args.end(), more.begin(), more.end());
    const Estimate e = estimate_step(load_config(args, {gpus}).config, 0, estimate_device("h100", "auto"), gpus);
    EXPECT_NEAR(e.step_ms(), ms, 0.06 * ms) << more[0] << " " << more.back() << "\n" << estimate_text(e);
    EXPECT_NEAR(e.peak().bytes() / (1 << 30), gib, 0.06 * gib) << more[0] << " " << more.back() << "\n" << estimate_text(e);
  }
}

// Presets of torchtitan on its numbers of GPUs, as docs/parallel/dry_run.md shows them.
TEST(EstimateMesh, PresetsFit) {
  for (const auto& [name, world, more] :
       std::vector<std::tuple<std::string, int64_t, std::vector<std::string>>>{{"llama3_70b", 256, {}}, {"llama3_405b", 512, {}}}) {
    std::vector<std::string> args = {"--config", recipe(name)};
    args.insert(args.end(), more.begin(), more.end());
    const Estimate e = estimate_step(load_config(args, {world}).config, 0, estimate_device("h100", "auto"), world);
    EXPECT_TRUE(e.fits()) << name << "\n" << estimate_text(e);
    EXPECT_GT(e.mfu(), 20) << name;
    EXPECT_LT(e.mfu(), 60) << name;
    EXPECT_EQ(estimate_json(e).at("world").get<int64_t>(), world);
    EXPECT_NE(estimate_text(e).find("tokens/s"), std::string::npos);
  }
}

}  // namespace
}  // namespace halftone
