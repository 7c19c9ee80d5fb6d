#include "halftone/train/engine.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>

#include "halftone/base/error.h"
#include "halftone/ops/device.h"
#include "halftone/ops/hardware.h"
#include "halftone/train/recompute.h"
#include "halftone/train/validate_settings.h"
#include "ops/test_device.h"
#include "train/small_engine.h"

namespace halftone {
namespace {

// The masters after `steps` steps. `disturbed`: an evaluation and a discarded step, as in validation and rollback, run between the steps,
// and from `resumed_at` on another engine continues from the saved state.
std::vector<at::Tensor> trained(const std::vector<std::string>& more, bool disturbed, int64_t resumed_at = 0) {
  constexpr int64_t kSteps = 4;
  const JobConfig config = small_config(more);
  auto engine = std::make_unique<Engine>(config, small_options());
  engine->initialize();
  at::manual_seed(4);
  for (int64_t step = 1; step <= kSteps; ++step) {
    if (step == resumed_at) {
      auto other = std::make_unique<Engine>(config, small_options());
      at::NoGradGuard no_grad;
      for (size_t i = 0; i < engine->store().parameters().size(); ++i)
        other->store().parameters()[i]->master.copy_(engine->store().parameters()[i]->master);
      const auto from = engine->optimizer_states(), to = other->optimizer_states();
      for (size_t i = 0; i < from.size(); ++i)
        for (size_t k = 0; k < from[i].tensors.size(); ++k) to[i].tensors[k].second.copy_(from[i].tensors[k].second);
      other->set_updates(engine->updates());
      other->store().masters_changed();
      engine = std::move(other);
    }
    const std::vector<MicroBatch> batches = small_step();
    if (disturbed) engine->accumulate(batches, step), engine->drop_gradients();
    engine->step(batches, step, 1.0);
    if (disturbed) engine->evaluate(batches.front());
  }
  std::vector<at::Tensor> masters;
  for (const nn::Parameter* p : engine->store().parameters()) masters.push_back(p->master.clone());
  return masters;
}

TEST(Engine, AModelBeyondTheMemoryIsRefusedBeforeItIsMade) {
  ModelConfig model;
  model.name = "llama3", model.flavor = "405B";
  EXPECT_NO_THROW(require_memory(int64_t{5} << 30, int64_t{5} << 30, model));
  try {
    require_memory(int64_t{6} << 30, int64_t{5} << 30, model);
    FAIL() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_NE(
        std::string(error.what()).find("llama3 405B needs at least 6.0 GiB for parameters, gradients and optimizer, 5.0 GiB of memory"),
        std::string::npos)
        << error.what();
  }
  EXPECT_GT(available_memory(), 0);
  EXPECT_LT(available_memory(), INT64_MAX);
}

TEST(Engine, RecomputesWhatTheConfigurationNames) {
  const std::vector<std::string> args = {"--config", (std::filesystem::path(source_dir()) / "recipes/llama3_8b.toml").string()};
  JobConfig config = load_config(args, {1}).config;
  EXPECT_NO_THROW(check_run(config));
  ActivationCheckpointConfig& c = config.activation_checkpoint;
  using enum nn::Recompute;
  // Bytes and work of none, op and full, in the proportions of docs/memory.md.
  const std::vector<RecomputeCost> blocks(8, {{100, 50, 10}, {0, 37, 100}});
  EXPECT_EQ(recompute_plan(c, blocks), nn::RecomputePlan(8, op));
  c.selective_ac_option = "2";
  EXPECT_EQ(recompute_plan(c, blocks), (nn::RecomputePlan{none, full, none, full, none, full, none, full}));
  c.mode = "memory_budget";
  EXPECT_NO_THROW(check_run(config));
  for (const auto& [budget, full_blocks, op_blocks] : {std::tuple{0.0, 8, 0},  // 80 bytes
                                                       {0.1, 7, 1},            // 152: 120 used; two with op would take 160
                                                       {0.5, 0, 8},            // 440: 400 used; 450 with one that keeps everything
                                                       {0.9, 0, 2},            // 728: 700
                                                       {1.0, 0, 0}}) {
    c.memory_budget = budget;
    nn::RecomputePlan expected(8, none);
    std::fill_n(expected.begin(), full_blocks + op_blocks, op);
    std::fill_n(expected.begin(), full_blocks, full);
    EXPECT_EQ(recompute_plan(c, blocks), expected) << budget;
  }
  Engine engine(small_config({"--activation_checkpoint.mode=memory_budget", "--activation_checkpoint.memory_budget=0"}), small_options());
  EXPECT_EQ(engine.model().recompute(0), full);
  EXPECT_EQ(engine.model().recompute(1), full);
  // In a pipeline the budget covers a rank's own blocks, whichever they are.
  const std::string four = R"(--model.overrides={"dim":64,"n_layers":4,"n_heads":2,"n_kv_heads":2,"ffn_dim":96,"vocab_size":256})";
  for (const auto& [budget, own, expected] : {std::tuple{"0", std::vector<int64_t>{0, 3}, nn::RecomputePlan{full, none, none, full}},
                                              {"0.6", {0, 1}, {op, op, none, none}},
                                              {"0.6", {2, 3}, {none, none, op, op}},
                                              {"1", {2, 3}, {none, none, none, none}}}) {
    const JobConfig small =
        small_config({four, "--activation_checkpoint.mode=memory_budget", std::string("--activation_checkpoint.memory_budget=") + budget});
    const BuiltModel built = build_model(small.model, 0);
    EXPECT_EQ(recompute_plan(*built.model, small, process_hardware(at::kCPU), own), expected) << budget;
  }
}

TEST(Engine, AZLossIsTrainedOnAndNotReported) {
  Engine plain(small_config({}), small_options()), with(small_config({"--training.z_loss=0.01"}), small_options());
  plain.initialize(), with.initialize();
  at::manual_seed(4);
  const std::vector<MicroBatch> batches = small_step();
  const StepResult expected = plain.step(batches, 1, 1.0), found = with.step(batches, 1, 1.0);
  EXPECT_EQ(found.loss_sum, expected.loss_sum);
  EXPECT_NE(found.grad_norm, expected.grad_norm);
  const MicroBatch& more = batches.front();
  EXPECT_NE(with.evaluate(more), plain.evaluate(more));
}

TEST(Engine, StatesBeyondTheHostsMemoryAreRefusedBeforeTheyAreMade) {
  EXPECT_NO_THROW(require_host_memory(int64_t{5} << 30, int64_t{5} << 30));
  try {
    require_host_memory(int64_t{6} << 30, int64_t{5} << 30);
    FAIL() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("training.offload: the optimizer states need 6.0 GiB of host memory, 5.0 GiB are"),
              std::string::npos)
        << error.what();
  }
}

class EngineOn : public OnDevice {
 protected:
  void TearDown() override {
    at::globalContext().setDeterministicAlgorithms(false, false);
    OnDevice::TearDown();
  }
};

std::vector<MicroBatch> small_step_on_device() {
  std::vector<MicroBatch> batches = small_step();
  for (MicroBatch& b : batches) b.input.tokens = b.input.tokens.to(test_device()), b.labels = b.labels.to(test_device());
  return batches;
}

// All state that a step may change.
std::vector<at::Tensor> everything(Engine& engine) {
  std::vector<at::Tensor> all;
  for (const nn::Parameter* p : engine.store().parameters()) {
    all.push_back(p->values().clone());
    all.push_back(p->weight.stored ? p->weight.stored->codes.clone() : p->weight.value.detach().clone());
  }
  for (const Engine::NamedState& s : engine.optimizer_states())
    for (const auto& [kind, tensor] : s.tensors) all.push_back(tensor.clone());
  return all;
}

// Five steps, each queued before the previous result is requested, as on a GPU. The third one's gradient has a NaN, the fourth's loss is
// above its limit: neither changes anything, and the others are unaffected.
TEST_P(EngineOn, ABadStepChangesNothing) {
  for (const char* scheme : {"fp8_tensorwise", "int8_weight"}) {
    const JobConfig config = small_config({std::string("--quantize.scheme=") + scheme});
    Engine::Options options = small_options();
    options.device = test_device();
    Engine engine(config, options);
    engine.initialize();
    at::manual_seed(4);
    std::vector<StepResult> results;
    std::vector<std::vector<at::Tensor>> states;
    for (int64_t step = 1; step <= 5; ++step) {
      engine.accumulate(small_step_on_device(), step);
      if (step > 1) results.push_back(engine.result());
      states.push_back(everything(engine));
      at::Tensor gradient = engine.store().units().back().flat.grad;
      if (step == 3) gradient.narrow(0, 5, 1).fill_(NAN);
      engine.update(1, step == 4 ? 1e-3 : INFINITY);
      for (const nn::Parameter* p : engine.store().parameters()) {
        EXPECT_EQ(p->weight.grad_is_stale, options.device.is_cuda()) << p->fqn << ", step " << step;
        if (options.device.is_cpu()) {
          EXPECT_EQ(p->weight.grad.abs().max().item<float>(), 0) << p->fqn << ", step " << step;
        }
      }
    }
    results.push_back(engine.result());
    states.push_back(everything(engine));
    for (size_t i = 0; i < 5; ++i) {
      const bool bad = i == 2 || i == 3;
      EXPECT_EQ(results[i].updated, !bad) << i + 1;
      EXPECT_EQ(results[i].finite, i != 2) << i + 1;
      EXPECT_EQ(std::isfinite(results[i].grad_norm), i != 2) << i + 1;
      EXPECT_NEAR(results[i].loss_sum / static_cast<double>(results[i].valid_labels), std::log(kSmallVocabulary), 1) << i + 1;
      size_t same = 0;
      for (size_t t = 0; t < states[i].size(); ++t) same += at::equal(states[i][t], states[i + 1][t]) ? 1 : 0;
      EXPECT_EQ(same == states[i].size(), bad) << scheme << ", step " << i + 1;
      EXPECT_EQ(same > states[i].size() / 2, bad) << scheme << ", step " << i + 1;
    }
    EXPECT_EQ(engine.updates(), 3);
  }
}

// The states after four steps, and after two more from cleared ones, with their effect on the weights.
TEST_P(EngineOn, StatesInHostMemoryChangeNoBit) {
  at::globalContext().setDeterministicAlgorithms(true, true);
  for (const auto& more :
       std::vector<std::vector<std::string>>{{"--quantize.scheme=none"},
                                             {"--quantize.scheme=fp8_tensorwise", "--optimizer.state_dtype=bfloat16"},
                                             {"--quantize.scheme=none", "--training.dtype=bfloat16", "--optimizer.stochastic_rounding"},
                                             {"--quantize.scheme=int8_weight"},
                                             {"--quantize.scheme=int8_weight", "--optimizer.name=SGD", "--optimizer.nesterov"}}) {
    std::vector<std::vector<at::Tensor>> found;
    for (const char* offload : {"--training.offload=", "--training.offload=optimizer"}) {
      std::vector<std::string> arguments = more;
      arguments.emplace_back(offload);
      Engine::Options options = small_options();
      options.device = test_device();
      Engine engine(small_config(arguments), options);
      engine.initialize();
      at::manual_seed(4);
      for (int64_t step = 1; step <= 6; ++step) {
        if (step == 5) found.push_back(everything(engine)), engine.clear_optimizer();
        engine.step(small_step_on_device(), step, 1.0);
      }
      found.push_back(everything(engine));
      for (const nn::ParameterStore::Unit& unit : engine.store().units()) {
        EXPECT_FALSE(unit.flat.states.empty());
        for (const at::Tensor& state : unit.flat.states)
          EXPECT_EQ(state.is_cpu(), found.size() > 2 || options.device.is_cpu()) << unit.name;
      }
    }
    for (size_t when : {0, 1}) {
      EXPECT_FALSE(at::equal(found[when].back(), found[1 - when].back()));
      for (size_t t = 0; t < found[when].size(); ++t)
        EXPECT_TRUE(at::equal(found[when][t].cpu(), found[when + 2][t].cpu())) << more[0] << ", tensor " << t << ", " << when;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Devices, EngineOn, test_devices());

class EngineDraws : public ::testing::TestWithParam<std::vector<std::string>> {};

// numerics.md section 4: draws are a function of seed, step, tensor and element, so neither work between two steps nor a resume changes
// the training.
TEST_P(EngineDraws, DependOnTheStepAlone) {
  const std::vector<at::Tensor> plain = trained(GetParam(), false), disturbed = trained(GetParam(), true),
                                resumed = trained(GetParam(), true, 3);
  std::vector<std::string> more = GetParam();
  more.insert(more.end(), {"--activation_checkpoint.mode=full", "--activation_checkpoint.selective_ac_option=op"});
  const std::vector<at::Tensor> recomputed = trained(more, true);
  more.push_back("--activation_checkpoint.mode=selective");
  const std::vector<at::Tensor> by_op = trained(more, true);
  ASSERT_EQ(plain.size(), disturbed.size());
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(at::equal(plain[i], disturbed[i])) << "evaluations, parameter " << i;
    EXPECT_TRUE(at::equal(plain[i], resumed[i])) << "resume, parameter " << i;
    EXPECT_TRUE(at::equal(plain[i], recomputed[i])) << "recomputation, parameter " << i;
    EXPECT_TRUE(at::equal(plain[i], by_op[i])) << "recomputation of every second product, parameter " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, EngineDraws,
    ::testing::Values(std::vector<std::string>{"--quantize.scheme=none"},
                      std::vector<std::string>{"--optimizer.name=SGD", "--optimizer.nesterov", "--training.dtype=bfloat16",
                                               "--optimizer.stochastic_rounding", "--optimizer.state_dtype=bfloat16"},
                      std::vector<std::string>{"--quantize.scheme=int8", "--quantize.stochastic_rounding"},
                      std::vector<std::string>{"--quantize.scheme=int4", "--quantize.stochastic_rounding"},
                      std::vector<std::string>{"--quantize.scheme=int4", "--quantize.stochastic_rounding", "--quantize.grad_input=false"},
                      std::vector<std::string>{"--quantize.scheme=mxfp4"}, std::vector<std::string>{"--quantize.scheme=nvfp4"},
                      std::vector<std::string>{"--quantize.scheme=fp8_tensorwise"}));

}  // namespace
}  // namespace halftone
