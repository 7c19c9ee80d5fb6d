// A full model under each shipped recipe: the GPU's results match the CPU's.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "models/model_pass.h"
#include "ops/test_device.h"
#include "recipe_files.h"

namespace halftone {
namespace {

Pass run(const std::string& recipe, c10::Device device) {
  return model_pass({"--quantize.scheme=none", "--quantize.recipe=" + recipe_file(recipe).string()}, device);
}

class Devices : public OnDeviceWith<std::string> {};

// With coarse codes, a sum that rounds differently in one layer changes codes in the next: directions agree, bits do not. Reordered sums
// on the CPU change a cosine by up to 2e-4; independent draws would leave 0.96 of mxfp4's.
TEST_P(Devices, AgreeOnLossAndGradients) {
  if (needs_experts(param())) GTEST_SKIP() << "it names layers of experts, of which the demo model has none";
  const Pass cpu = run(param(), at::kCPU), cuda = run(param(), test_device());
  EXPECT_NEAR(cuda.loss, cpu.loss, 2e-3 * cpu.loss);
  const double a = cpu.gradients.norm().item<double>(), b = cuda.gradients.norm().item<double>();
  EXPECT_NEAR(b, a, 0.02 * a);
  EXPECT_GT((cpu.gradients * cuda.gradients).sum().item<double>() / (a * b), 0.97);
}

INSTANTIATE_TEST_SUITE_P(Recipes, Devices, testing::Combine(testing::Values(std::string("cuda")), testing::ValuesIn(recipe_names())),
                         [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param); });

}  // namespace
}  // namespace halftone
