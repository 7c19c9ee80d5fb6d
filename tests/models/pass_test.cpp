#include "halftone/nn/pass.h"

#include <gtest/gtest.h>

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
    const auto plain = model_pass({quantize}, at::kCPU),
                         again = model_pass({quantize, "--activation_checkpoint.mode=full"}, at::kCPU);
    EXPECT_EQ(plain.loss, again.loss) << scheme;
    EXPECT_TRUE(at::equal(plain.gradients, again.gradients)) << scheme;
  }
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
