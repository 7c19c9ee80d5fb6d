// A whole model under each shipped recipe: the CUDA device computes what the processor computes.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <filesystem>

#include "halftone/config/load.h"
#include "halftone/models/registry.h"
#include "halftone/nn/parameter_store.h"
#include "halftone/nn/recipe_config.h"
#include "ops/test_device.h"
#include "source_dir.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kRows = 2, kLength = 96;

struct Pass {
  double loss = 0;
  at::Tensor gradients;  // of every parameter behind one ancuda, fp64 on the processor
};

Pass run(const std::string& recipe, c10::Device device) {
  const fs::path source = source_dir();
  const std::vector<std::string> args = {"--config", (source / "recipes" / "demo.toml").string(), "--quantize.scheme=none",
                                         "--quantize.recipe=" + (source / "recipes" / "precision" / (recipe + ".yaml")).string()};
  const JobConfig config = load_config(args, {1}).config;
  BuiltModel built = build_model(config.model, 256);
  const int64_t layers = built.model->size().layers;
  nn::apply_recipes(*built.model, nn::recipe_plan(config.quantize, config.model, layers), layers, device.type());
  nn::ParameterStore store;
  nn::StorageOptions options;
  options.device = device;
  store.materialize(*built.model, options);
  built.model->prepare(device, kLength);
  store.initialize(1);
  step_context() = {1, 1, 0};
  at::manual_seed(2);
  const at::Tensor tokens = at::randint(256, {kRows, kLength + 1}, at::kLong).to(device);
  nn::ModelInput input;
  input.tokens = tokens.narrow(1, 0, kLength).contiguous();
  at::AutoGradMode grad(true);
  const HeadLoss out = built.model->loss(input, tokens.narrow(1, 1, kLength).contiguous(), 1.0 / (kRows * kLength));
  torch::autograd::backward({out.loss}, {});
  std::vector<at::Tensor> gradients;
  for (const nn::Parameter* p : store.parameters()) gradients.push_back(p->weight.grad.to(at::kDouble).cpu().flatten());
  return {out.sum.item<double>() / (kRows * kLength), at::cat(gradients)};
}

class Devices : public OnDeviceWith<std::string> {};

// Where codes are coarse, a sum that rounds otherwise in one layer moves codes of the next one: directions agree, bits do not.
// Products in another order on the processor move a cosine by up to 2e-4; draws of their own would leave 0.96 of mxfp4's.
TEST_P(Devices, AgreeOnLossAndGradients) {
  const Pass cpu = run(param(), at::kCPU), cuda = run(param(), test_device());
  EXPECT_NEAR(cuda.loss, cpu.loss, 2e-3 * cpu.loss);
  const double a = cpu.gradients.norm().item<double>(), b = cuda.gradients.norm().item<double>();
  EXPECT_NEAR(b, a, 0.02 * a);
  EXPECT_GT((cpu.gradients * cuda.gradients).sum().item<double>() / (a * b), 0.97);
}

std::vector<std::string> recipes() {
  std::vector<std::string> names;
  std::error_code absent;  // as a test that fails, not before main
  for (const auto& entry : fs::directory_iterator(fs::path(source_dir()) / "recipes" / "precision", absent)) names.push_back(entry.path().stem());
  std::sort(names.begin(), names.end());
  return names;
}
INSTANTIATE_TEST_SUITE_P(Recipes, Devices, testing::Combine(testing::Values(std::string("cuda")), testing::ValuesIn(recipes())),
                         [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param); });

}  // namespace
}  // namespace halftone
