#include "halftone/train/estimate.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "halftone/base/error.h"
#include "halftone/ops/device.h"
#include "halftone/ops/hardware.h"
#include "halftone/train/console.h"
#include "halftone/train/engine.h"
#include "halftone/train/recompute.h"
#include "halftone/train/validate_settings.h"
#include "models/model_pass.h"
#include "source_dir.h"

namespace halftone {
namespace {

constexpr double kGiB = 1 << 30;

Estimate bench(std::vector<std::string> arguments, const std::string& device = "h100") {
  arguments.insert(arguments.begin(), {"--config", (std::filesystem::path(source_dir()) / "recipes" / "bench_gpu.toml").string()});
  return estimate_step(load_config(arguments).config, 0, estimate_device(device, "auto"));
}

// `halftone bench train --config recipes/bench_gpu.toml` on one H100, 2026-11-25: the allocator's peak and the median step time.
TEST(Estimate, IsNearWhatWasMeasured) {
  struct Measured {
    const char *layers, *scheme;
    double peak_gib, step_ms;
  };
  for (const auto& [layers, scheme, peak_gib, step_ms] : {Measured{"2", "none", 27.78, 188.0},
                                                          {"2", "fp8_tensorwise", 26.84, 161.2},
                                                          {"6", "none", 46.90, 366.3},
                                                          {"6", "fp8_tensorwise", 43.83, 300.0},
                                                          {"6", "fp8_rowwise", 43.83, 305.6},
                                                          {"6", "int8", 43.83, 299.6},
                                                          {"6", "mxfp4", 43.83, 312.0}}) {
    const Estimate e = bench({std::string("--model.overrides.n_layers=") + layers, std::string("--quantize.scheme=") + scheme});
    EXPECT_NEAR(e.peak().bytes() / kGiB, peak_gib, 0.05 * peak_gib) << layers << " " << scheme << "\n" << estimate_text(e);
    EXPECT_NEAR(e.step_ms(), step_ms, 0.15 * step_ms) << layers << " " << scheme << "\n" << estimate_text(e);
    EXPECT_TRUE(e.fits());
  }
}

// The row "a layer" of docs/memory.md: what a block of Llama-3.1-8B keeps in bf16 and in fp8.
TEST(Estimate, ABlockKeepsWhatTheDocumentSays) {
  std::ifstream file(std::filesystem::path(source_dir()) / "docs" / "memory.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string row = fmt::format("| **a layer** | | **{}** | **{}** |", thousands(bench({}).block_bytes),
                                      thousands(bench({"--quantize.scheme=fp8_tensorwise"}).block_bytes));
  EXPECT_NE(text.str().find(row), std::string::npos) << row;
  const Estimate op = bench({"--activation_checkpoint.mode=selective", "--activation_checkpoint.selective_ac_option=op"});
  EXPECT_NE(text.str().find(" " + thousands(op.block_bytes) + " |"), std::string::npos) << op.block_bytes;
}

// Quantised blocks have no bf16 weights at the peak, and in a step of one micro-batch only the codes in use: those of w1 and w3, with their
// scales. Beside codes each of the 42 weights keeps its amax. Gradient accumulation keeps the codes of dgrad up to the peak, in the last
// pass, whose forward GEMMs free theirs; none if states are offloaded.
TEST(Estimate, WeightsReadAsCodesCostTheirMaster) {
  const auto share = [](const Estimate& e, std::string_view owner) {
    double bytes = 0;
    for (const MemoryShare& s : e.peak().shares) bytes += s.owner == owner ? s.bytes : 0;
    return bytes;
  };
  const double in_blocks = 6.0 * 218103808, copy_of_all = share(bench({}), "weights' copy in bfloat16");
  const Estimate fp8 = bench({"--quantize.scheme=fp8_tensorwise"}),
                 twice = bench({"--quantize.scheme=fp8_tensorwise", "--training.global_batch_size=4"});
  EXPECT_DOUBLE_EQ(copy_of_all - share(fp8, "weights' copy in bfloat16"), 2 * in_blocks);
  constexpr double kAtWork = 2.0 * (4096 * 14336 + 4), kFound = 42.0 * 4 * kAmaxParts;
  EXPECT_DOUBLE_EQ(share(fp8, "weights' quantised copies"), kAtWork + kFound);
  EXPECT_DOUBLE_EQ(share(twice, "weights' quantised copies"), in_blocks + 42 * 4 + kFound);
  const Estimate host = bench({"--quantize.scheme=fp8_tensorwise", "--training.global_batch_size=4", "--training.offload=optimizer"});
  EXPECT_EQ(share(host, "weights' quantised copies"), kFound);  // its peak is the head
}

struct LiveBytes : c10::MemoryReportingInfoBase {
  int64_t bytes = 0;
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override { bytes += size; }
  bool memoryProfilingEnabled() const override { return true; }
};

// The bytes that a forward pass keeps on this CPU equal the estimate for the same hardware.
TEST(Estimate, KeepsWhatAPassKeeps) {
  const EstimateDevice here = estimate_device("cpu", hardware_of(at::kCPU), 1);
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {"--quantize.scheme=none"},
           {"--quantize.scheme=int8"},
           {"--quantize.scheme=fp8_tensorwise"},
           {"--quantize.scheme=fp8_rowwise_with_gw_hp"},
           {"--quantize.scheme=mxfp8_e4m3"},
           {"--quantize.scheme=mxfp4"},
           {"--quantize.scheme=nvfp4"},
           {"--quantize.scheme=int8_weight"},
           {"--quantize.scheme=bitnet"},
           {"--quantize.scheme=none", "--activation_checkpoint.mode=full"},
           {"--quantize.scheme=int8", "--activation_checkpoint.mode=memory_budget", "--activation_checkpoint.memory_budget=0.6"},
           {"--quantize.scheme=none", "--model.name=qwen3_moe", "--model.overrides.num_experts=10"},
           {"--quantize.scheme=int8", "--model.name=qwen3_moe", "--model.overrides.num_experts=10"},
           {"--quantize.scheme=none", "--model.name=deepseek_v3", "--model.overrides.n_kv_heads=8", "--model.overrides.q_lora_rank=64"},
           {"--quantize.scheme=none", "--model.name=gpt_oss", "--model.overrides.expert_ffn_dim=256"}}) {
    const bool experts = arguments.size() > 1 && arguments[1].starts_with("--model.name");
    DemoModel demo(arguments, at::kCPU);
    demo.config.training.local_batch_size = DemoModel::kRows, demo.config.training.seq_len = DemoModel::kLength;
    nn::Model& model = *demo.built.model;
    const nn::RecomputePlan plan = recompute_plan(model, demo.config, here.hardware);
    model.set_recompute(plan);
    demo.pass().backward();  // allocates what is made once
    const auto live = std::make_shared<LiveBytes>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
    nn::Pass pass = demo.pass();
    const std::vector<RecomputeCost> costs = recompute_costs(demo.config, model.blocks(), here.hardware);
    // The gradient of the head's input, and of its branch unless the last block has added it.
    double blocks = (plan.back() == nn::Recompute::none ? 6.0 : 4.0) * static_cast<double>(model.size().dim);
    for (size_t i = 0; i < costs.size(); ++i) blocks += costs[i].bytes[static_cast<size_t>(plan[i])];
    const double expected = DemoModel::kRows * DemoModel::kLength * blocks;
    // Expert choices and row indices are not counted.
    EXPECT_NEAR(static_cast<double>(live->bytes), expected, (experts ? 0.02 : 0.005) * expected) << arguments[0] << " " << experts;
    pass.backward();
  }
}

// Two blocks of Llama-3.1-8B with a small vocabulary, two steps: the allocator's peak.
TEST(Estimate, IsNearThePeakOfStepsOnCuda) {
  try {
    select_device("cuda", 0);
  } catch (const Error& reason) {
    GTEST_SKIP() << reason.what();
  }
  const c10::Device device = select_device("cuda", 0);
  for (const auto& more : std::vector<std::vector<std::string>>{
           {"none"},
           {"fp8_tensorwise"},
           {"fp8_rowwise"},
           {"fp8_rowwise_with_gw_hp"},
           {"fp8_blockwise"},
           {"mxfp8_e4m3"},
           {"mxfp4"},
           {"nvfp4"},
           {"int8"},
           {"int8_weight"},
           {"bitnet"},
           {"none", "--activation_checkpoint.mode=full"},
           {"fp8_tensorwise", "--activation_checkpoint.mode=full"},
           {"fp8_tensorwise", "--activation_checkpoint.mode=memory_budget", "--activation_checkpoint.memory_budget=0.8"},  // op, none
           {"none", "--training.dtype=bfloat16"}}) {
    std::vector<std::string> arguments = {"--config", (std::filesystem::path(source_dir()) / "recipes" / "bench_gpu.toml").string(),
                                          "--training.seq_len=4096", "--model.overrides={\"n_layers\":2,\"vocab_size\":16384}",
                                          "--quantize.scheme=" + more[0]};
    arguments.insert(arguments.end(), more.begin() + 1, more.end());
    const JobConfig config = load_config(arguments).config;
    const DeviceInfo info = device_info(device);
    const Estimate e = estimate_step(config, 0, estimate_device(info.name, hardware_of(device), info.capacity_gib));
    reset_peak_memory(device);
    const double before = peak_memory(device).active_gib;
    {
      Engine::Options options;
      options.device = device, options.positions = config.training.seq_len;
      Engine engine(config, options);
      engine.initialize();
      MicroBatch batch;
      batch.input.tokens = at::randint(16384, {config.training.local_batch_size, config.training.seq_len}, at::kLong).to(device);
      batch.labels = batch.input.tokens.clone(), batch.valid_labels = batch.labels.numel();
      for (int step = 1; step <= 2; ++step) engine.step(std::vector<MicroBatch>{batch}, step, 1.0);
      synchronize(device);
    }
    const double measured = peak_memory(device).active_gib - before;
    std::printf("%s%s: peak %.3f GiB, estimated %.3f\n", more[0].c_str(), more.size() > 1 ? more[1].c_str() : "", measured,
                e.peak().bytes() / kGiB);
    EXPECT_NEAR(e.peak().bytes() / kGiB, measured, 0.05 * measured) << more[0] << " " << more.back() << "\n" << estimate_text(e);
  }
}

TEST(Estimate, EveryRecipeHasMemoryAndTime) {
  const double fp8 = bench({"--quantize.scheme=fp8_tensorwise"}).tokens_per_second(), bf16 = bench({}).tokens_per_second();
  EXPECT_GT(fp8, bf16);
  for (const LinearRecipe& recipe : kLinearRecipes) {
    const Estimate e = bench({fmt::format("--quantize.scheme={}", recipe.name)}, "h200");
    EXPECT_TRUE(e.fits()) << recipe.name;
    EXPECT_GT(e.peak().bytes() / kGiB, 30) << recipe.name;
    EXPECT_TRUE(std::isfinite(e.step_ms())) << recipe.name;
    EXPECT_FALSE(estimate_text(e).empty()) << recipe.name;
  }
}

TEST(Estimate, RecomputationTakesTimeForMemory) {
  const Estimate kept = bench({}), full = bench({"--activation_checkpoint.mode=full"}),
                 half = bench({"--activation_checkpoint.mode=selective", "--activation_checkpoint.selective_ac_option=2"});
  EXPECT_LT(full.peak().bytes(), half.peak().bytes());
  EXPECT_LT(half.peak().bytes(), kept.peak().bytes());
  EXPECT_GT(full.step_ms(), half.step_ms());
  EXPECT_GT(half.step_ms(), kept.step_ms());
  // A budget's ends, and between them a plan within its bytes that is faster than one of fully recomputed blocks with the same bytes.
  const auto budget = [](const char* share) {
    return bench({"--activation_checkpoint.mode=memory_budget", std::string("--activation_checkpoint.memory_budget=") + share});
  };
  EXPECT_EQ(budget("1").peak().bytes(), kept.peak().bytes());
  EXPECT_EQ(budget("0").peak().bytes(), full.peak().bytes());
  const Estimate mixed = budget("0.5");
  EXPECT_LE(mixed.peak().bytes(), half.peak().bytes());
  EXPECT_LT(mixed.step_ms(), half.step_ms());
  EXPECT_NE(mixed.what.find("memory_budget 0.5 ("), std::string::npos) << mixed.what;
  // The savings are the differences between such estimates, the largest first.
  const auto of = [&](const std::string& setting) {
    return std::find_if(kept.savings.begin(), kept.savings.end(), [&](const Saving& s) { return s.setting == setting; });
  };
  const auto recompute = of("activation_checkpoint.mode = \"full\"");
  ASSERT_NE(recompute, kept.savings.end());
  EXPECT_DOUBLE_EQ(recompute->bytes, kept.peak().bytes() - full.peak().bytes());
  for (size_t i = 1; i < kept.savings.size(); ++i) EXPECT_GE(kept.savings[i - 1].bytes, kept.savings[i].bytes);
}

TEST(Estimate, SaysWhatDoesNotFitAndWhatHelps) {
  const Estimate e = bench({"--model.overrides.n_layers=32"});
  EXPECT_FALSE(e.fits());
  ASSERT_GE(e.savings.size(), 2u);
  const std::string text = out_of_memory_text(
      "CUDA out of memory. Tried to allocate 2.44 GiB. GPU 0 has a total capacity of 79.20 GiB. More\n(stack)", "in step 3", e);
  EXPECT_TRUE(text.starts_with("out of memory in step 3: Tried to allocate 2.44 GiB.")) << text;
  EXPECT_EQ(text.find("(stack)"), std::string::npos);
  for (const std::string& part : {e.savings[0].setting, e.savings[1].setting, std::string("gradients"), std::string("optimizer states")})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

// Offloaded states use no GPU memory, take bus time, and are proposed if they help and the host has room.
TEST(Estimate, StatesInHostMemoryAreNotTheDevices) {
  constexpr const char* kSetting = "training.offload = [\"optimizer\"]";
  const Estimate there = bench({}), host = bench({"--training.offload=optimizer"});
  const double states = 8 * 2359349248.0;
  EXPECT_EQ(host.host_bytes, states);
  EXPECT_EQ(there.host_bytes, 0);
  EXPECT_EQ(bench({"--training.offload=optimizer", "--optimizer.name=SGD"}).host_bytes, states / 2);
  EXPECT_EQ(bench({"--training.offload=optimizer", "--optimizer.name=SGD", "--optimizer.momentum=0"}).host_bytes, 0);
  EXPECT_NEAR(there.peak().bytes() - host.peak().bytes(), states, 1);
  const auto optimizer = [](const Estimate& e) {
    return std::find_if(e.work.begin(), e.work.end(), [](const WorkTime& w) { return w.work == "optimizer"; })->ms;
  };
  EXPECT_DOUBLE_EQ(optimizer(host), 1e3 * states / 39e9);
  EXPECT_LT(optimizer(there), optimizer(host));
  EXPECT_NE(estimate_text(host).find("optimizer states in host memory"), std::string::npos);
  EXPECT_EQ(estimate_text(there).find("host memory"), std::string::npos);
  EXPECT_DOUBLE_EQ(estimate_json(host).at("host_memory_gib").get<double>(), states / kGiB);

  const auto proposed = [&](const Estimate& e) {
    return std::any_of(e.savings.begin(), e.savings.end(), [&](const Saving& s) { return s.setting == kSetting; });
  };
  EXPECT_TRUE(proposed(there));
  EXPECT_FALSE(proposed(host));
  EXPECT_FALSE(proposed(bench({}, "cpu")));
  EXPECT_EQ(bench({"--training.offload=optimizer"}, "cpu").host_bytes, 0);
  EstimateDevice small = estimate_device("h100", "auto");
  small.host_gib = 10;
  const std::vector<std::string> arguments = {"--config", (std::filesystem::path(source_dir()) / "recipes" / "bench_gpu.toml").string()};
  const JobConfig config = load_config(arguments).config;
  EXPECT_FALSE(proposed(estimate_step(config, 0, small)));
  small.host_gib = 20;
  EXPECT_TRUE(proposed(estimate_step(config, 0, small)));
}

// An H100 holds 79.2 GiB including gaps between the allocator's blocks, which the estimate ignores.
TEST(Estimate, AnEightBFitsOneGpu) {
  for (const auto& [name, on_host] : {std::pair{"llama3_8b_1gpu_bf16.toml", 0.0}, {"llama3_8b_1gpu_offload.toml", 59.8}}) {
    const std::vector<std::string> arguments = {"--config", (std::filesystem::path(source_dir()) / "recipes" / name).string()};
    const JobConfig config = load_config(arguments).config;
    EXPECT_NO_THROW(check_run(config)) << name;
    const Estimate e = estimate_step(config, 0, estimate_device("h100", "auto"));
    EXPECT_LT(e.needed_bytes() / kGiB, 77) << estimate_text(e);
    EXPECT_NEAR(e.host_bytes / kGiB, on_host, 0.1) << name;
  }
}

TEST(Estimate, AProcessorHasMemoryOnly) {
  const Estimate e = bench({}, "cpu");
  EXPECT_TRUE(e.work.empty());
  EXPECT_NE(estimate_text(e).find("halftone bench train"), std::string::npos);
  EXPECT_FALSE(estimate_json(e).contains("tokens_per_second"));
  EXPECT_THROW(estimate_device("h300", "auto"), Error);
  // Kernels of small layers are launch-bound.
  EXPECT_TRUE(bench({}).remarks.empty());
  EXPECT_FALSE(bench({"--model.flavor=debugmodel", "--training.seq_len=512"}).remarks.empty());
}

}  // namespace
}  // namespace halftone
