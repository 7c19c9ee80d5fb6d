#include "halftone/nn/pass.h"

#include <ATen/Context.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "models/model_pass.h"
#include "ops/test_device.h"

namespace halftone::pass_test {
namespace {

// Draws follow the position given to each pass, whatever runs in between.
TEST(Pass, MicroBatchesMayInterleave) {
  for (const auto& [scheme, rounding] : {std::pair{"int8", "stochastic_rounding"}, {"mxfp4", "use_sr_grad"}, {"nvfp4", "use_sr_grad"}}) {
    const std::vector<std::string> arguments = {std::string("--quantize.scheme=") + scheme, std::string("--quantize.") + rounding};
    DemoModel in_turn(arguments, at::kCPU), interleaved(arguments, at::kCPU);
    double losses[2][2] = {};
    for (const int number : {0, 1}) {
      nn::Pass pass = in_turn.pass(number);
      pass.backward();
      losses[0][number] = pass.loss_sum().item<double>();
    }
    nn::Pass first = interleaved.pass(0), second = interleaved.pass(1);
    first.backward(), second.backward();
    losses[1][0] = first.loss_sum().item<double>(), losses[1][1] = second.loss_sum().item<double>();
    EXPECT_EQ(losses[0][0], losses[1][0]) << scheme;
    EXPECT_EQ(losses[0][1], losses[1][1]) << scheme;
    EXPECT_TRUE(at::equal(in_turn.gradients(), interleaved.gradients())) << scheme;
  }
}

// A pass in parts, each of which sends one tensor, with deferred weight gradients, those of the first part first.
TEST(Pass, GivesTheSameBitsInParts) {
  for (const auto& [scheme, mode] : {std::pair{"none", "none"}, {"int8", "selective"}, {"mxfp4", "full"}}) {
    const std::vector<std::string> arguments = {std::string("--quantize.scheme=") + scheme,
                                                std::string("--activation_checkpoint.mode=") + mode};
    DemoModel whole(arguments, at::kCPU), parts(arguments, at::kCPU);
    nn::Pass pass = whole.pass();
    pass.backward();
    const int64_t units = parts.layers() + 2, cuts[] = {0, 1, 3, units - 1, units};
    std::vector<std::unique_ptr<nn::Pass>> passes;
    at::Tensor stream;
    for (size_t i = 0; i + 1 < std::size(cuts); ++i) {
      passes.push_back(std::unique_ptr<nn::Pass>(new nn::Pass(parts.pass(0, true, {cuts[i], cuts[i + 1], stream}))));
      stream = passes.back()->take_out();
    }
    EXPECT_EQ(pass.loss_sum().item<double>(), passes.back()->loss_sum().item<double>()) << scheme << " " << mode;
    at::Tensor d;
    for (auto p = passes.rbegin(); p != passes.rend(); ++p) d = (*p)->backward(d, true);
    EXPECT_FALSE(d.defined());
    EXPECT_FALSE(at::equal(whole.gradients(), parts.gradients()));
    for (const auto& p : passes) p->weight_gradients();
    EXPECT_TRUE(at::equal(whole.gradients(), parts.gradients())) << scheme << " " << mode;
  }
}

const std::string kRecompute = "--activation_checkpoint.mode=";

struct Case {
  std::string name;
  std::vector<std::string> arguments;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

class Recomputation : public OnDeviceWith<Case> {
 protected:
  void TearDown() override {
    at::globalContext().setDeterministicAlgorithms(false, false);
    OnDeviceWith::TearDown();
  }
};

// A recomputed block keeps the sum of stream and branch, and unmodified results: nothing is rounded by that. Uninitialised memory is NaN
// in a deterministic run, so that reading what the recomputation skips would show.
TEST_P(Recomputation, GivesTheSameBits) {
  at::globalContext().setDeterministicAlgorithms(true, true);
  const auto plain = model_pass(param().arguments, test_device());
  for (const char* mode : {"full", "selective", "memory_budget"}) {
    std::vector<std::string> arguments = param().arguments;
    arguments.push_back(kRecompute + mode);
    const auto again = model_pass(arguments, test_device());
    EXPECT_EQ(plain.loss, again.loss) << mode;
    EXPECT_TRUE(at::equal(plain.gradients, again.gradients)) << mode;
  }
}

std::string case_name(const ::testing::TestParamInfo<std::tuple<std::string, Case>>& info) {
  return std::get<0>(info.param) + "_" + std::get<1>(info.param).name;
}
const Case kUnquantised = {"none", {"--quantize.scheme=none"}};
INSTANTIATE_TEST_SUITE_P(Unquantised, Recomputation,
                         ::testing::Combine(::testing::Values(std::string("cpu")), ::testing::Values(kUnquantised)), case_name);
INSTANTIATE_TEST_SUITE_P(
    Recipes, Recomputation,
    ::testing::Combine(test_devices(),
                       ::testing::Values(Case{"int8", {"--quantize.scheme=int8"}},
                                         Case{"int8_stochastic", {"--quantize.scheme=int8", "--quantize.stochastic_rounding"}},
                                         Case{"mxfp4_side", {"--quantize.scheme=mxfp4", "--quantize.lora_rank=32"}},
                                         Case{"fp8_tensorwise", {"--quantize.scheme=fp8_tensorwise"}},
                                         Case{"mxfp4", {"--quantize.scheme=mxfp4"}},
                                         Case{"mxfp4_stochastic", {"--quantize.scheme=mxfp4", "--quantize.use_sr_grad"}})),
    case_name);

// Unquantised siblings are one GEMM on a GPU, but separate if some results are kept: a library may sum them in another order.
class UnquantisedSiblings : public OnDevice {};
TEST_P(UnquantisedSiblings, GiveTheSameGradientsApart) {
  const auto plain = model_pass(kUnquantised.arguments, test_device());
  const auto again = model_pass({"--quantize.scheme=none", kRecompute + "selective"}, test_device());
  EXPECT_NEAR(plain.loss, again.loss, 1e-3 * plain.loss);
  EXPECT_LT((plain.gradients - again.gradients).norm().item<double>(), 0.02 * plain.gradients.norm().item<double>());
}
INSTANTIATE_TEST_SUITE_P(On, UnquantisedSiblings, ::testing::Values(std::string("cuda")), [](const auto& info) { return info.param; });

// Bytes of tensors that this thread has allocated and not freed.
struct LiveBytes : c10::MemoryReportingInfoBase {
  int64_t bytes = 0;
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override { bytes += size; }
  bool memoryProfilingEnabled() const override { return true; }
};

// docs/memory.md. Bytes per token, float32 stream, bf16 elsewhere.
void expect_kept(const std::string& mode) {
  DemoModel demo({"--quantize.scheme=none", kRecompute + mode}, at::kCPU);
  demo.pass().backward();  // allocates what is made once
  const nn::ModelSize size = demo.built.model->size();
  const auto& parameters = demo.store.parameters();
  const auto w2 =
      std::find_if(parameters.begin(), parameters.end(), [](const auto* p) { return p->weight.name == "layers.0.feed_forward.w2.weight"; });
  ASSERT_NE(w2, parameters.end());
  const int64_t ffn = (*w2)->weight.value.size(1), d = size.dim, heads = size.heads * size.qk_dim;
  const int64_t norm = 4 * d + 4, attention = 2 * (2 * heads + 2 * size.kv_heads * size.qk_dim) + 4 * size.heads;
  const int64_t whole = 2 * norm + 2 * (2 * d) + attention + 2 * (2 * ffn), input = 4 * d;
  const int64_t results = 2 * (2 * heads + size.kv_heads * size.qk_dim) + 4 * size.heads + 2 * ffn;
  const int64_t block = mode == "none" ? whole : mode == "full" ? input : input + results;
  // The head's backward has already run, down to the gradient of its input, whose branch a recomputed block has added.
  const int64_t head = 4 * d + (mode == "none" ? 2 * d : 0);
  const int64_t tokens = DemoModel::kRows * DemoModel::kLength, expected = tokens * (size.layers * block + head);
  const auto live = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
  nn::Pass pass = demo.pass();
  EXPECT_NEAR(static_cast<double>(live->bytes), static_cast<double>(expected), 0.01 * static_cast<double>(expected)) << mode;
  pass.backward();
  EXPECT_LT(live->bytes, expected / 100) << mode;
}

TEST(Pass, KeepsTheTensorsOfTheMemoryTable) {
  for (const char* mode : {"none", "selective", "full"}) expect_kept(mode);
}

TEST(Pass, KeepsNothingForEvaluationAndRunsBackwardOnce) {
  DemoModel demo({}, at::kCPU);
  nn::Pass kept = demo.pass(), evaluated = demo.pass(0, false);
  EXPECT_EQ(kept.loss_sum().item<double>(), evaluated.loss_sum().item<double>());
  EXPECT_THROW(evaluated.backward(), Error);
  kept.backward();
  EXPECT_THROW(kept.backward(), Error);
}

}  // namespace
}  // namespace halftone::pass_test
