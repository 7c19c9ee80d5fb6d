#include "halftone/nn/pass.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "models/model_pass.h"

namespace halftone {
namespace {

// Draws follow the place that each pass was given, whatever ran in between.
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

// One tensor of a recomputed block is kept, the sum of stream and branch: nothing is rounded by that.
TEST(Pass, RecomputedBlocksGiveTheSameBits) {
  for (const char* scheme : {"none", "int8", "mxfp4"}) {
    const std::string quantize = std::string("--quantize.scheme=") + scheme;
    const auto plain = model_pass({quantize}, at::kCPU), again = model_pass({quantize, "--activation_checkpoint.mode=full"}, at::kCPU);
    EXPECT_EQ(plain.loss, again.loss) << scheme;
    EXPECT_TRUE(at::equal(plain.gradients, again.gradients)) << scheme;
  }
}

// Bytes of tensors that this thread has allocated and not freed.
struct LiveBytes : c10::MemoryReportingInfoBase {
  int64_t bytes = 0;
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override { bytes += size; }
  bool memoryProfilingEnabled() const override { return true; }
};

// docs/memory.md. Bytes of a token, float32 stream, bf16 elsewhere.
TEST(Pass, KeepsTheTensorsOfTheMemoryTable) {
  DemoModel demo({"--quantize.scheme=none"}, at::kCPU);
  demo.pass().backward();  // what is made once
  const nn::ModelSize size = demo.built.model->size();
  const auto& parameters = demo.store.parameters();
  const auto w2 =
      std::find_if(parameters.begin(), parameters.end(), [](const auto* p) { return p->weight.name == "layers.0.feed_forward.w2.weight"; });
  ASSERT_NE(w2, parameters.end());
  const int64_t ffn = (*w2)->weight.value.size(1), d = size.dim, heads = size.heads * size.qk_dim;
  const int64_t norm = 4 * d + 4, attention = 2 * (2 * heads + 2 * size.kv_heads * size.qk_dim) + 4 * size.heads;
  const int64_t block = 2 * norm + 2 * (2 * d) + attention + 2 * (2 * ffn);
  const int64_t tokens = DemoModel::kRows * DemoModel::kLength, expected = tokens * (size.layers * block + norm + 2 * d);
  const auto live = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
  nn::Pass pass = demo.pass();
  EXPECT_NEAR(static_cast<double>(live->bytes), static_cast<double>(expected), 0.01 * static_cast<double>(expected));
  pass.backward();
  EXPECT_LT(live->bytes, expected / 100);
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
}  // namespace halftone
