#include "halftone/ops/optimizer.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "halftone/optim/optimizer.h"

namespace halftone::optimizer_test {
namespace {

constexpr double kRate = 0.02, kDecay = 0.1;
constexpr int64_t kCount = 1003, kSteps = 6;

// Elements after steps with gradients that depend on the elements.
at::Tensor ours(const char* name, const optim::Options& options, at::ScalarType states) {
  FlatParameters flat;
  flat.param = at::sin(at::arange(kCount, at::kFloat)), flat.grad = at::zeros({kCount});
  const optim::Optimizer& optimizer = optim::optimizer_of(name);
  for (size_t k = 0; k < optimizer.states(options).size(); ++k) flat.states.push_back(at::zeros({kCount}, states));
  flat.segments = {{.count = kCount, .lr = kRate, .weight_decay = kDecay}};
  for (int64_t t = 1; t <= kSteps; ++t) {
    flat.grad.copy_(flat.param.mul(static_cast<double>(t)).cos());
    optimizer_step(flat, {optimizer.place, options}, t);
  }
  return flat.param;
}

template <class Optimizer, class Options>
at::Tensor torchs(const Options& options) {
  at::Tensor p = at::sin(at::arange(kCount, at::kFloat)).set_requires_grad(true);
  Optimizer optimizer({p}, options);
  for (int64_t t = 1; t <= kSteps; ++t) {
    p.mutable_grad() = p.detach().mul(static_cast<double>(t)).cos();
    optimizer.step();
  }
  return p.detach();
}

void expect_torchs(const char* name, const optim::Options& options, const at::Tensor& expected) {
  const at::Tensor moved = expected - at::sin(at::arange(kCount, at::kFloat));
  ASSERT_GT(moved.abs().mean().item<double>(), 0.01);
  EXPECT_LT((ours(name, options, at::kFloat) - expected).abs().max().item<double>(), 1e-6) << name;
  const double rounded = (ours(name, options, at::kBFloat16) - expected).norm().item<double>() / moved.norm().item<double>();
  EXPECT_LT(rounded, 0.01) << name;
  EXPECT_EQ(rounded > 1e-6, !optim::optimizer_of(name).states(options).empty()) << name;
}

TEST(OptimizerStep, OfSgdIsTorchs) {
  for (const auto& [momentum, nesterov] : {std::pair{0.9, false}, {0.9, true}, {0.5, true}, {0.0, false}}) {
    optim::Options options;
    options.momentum = momentum, options.nesterov = nesterov;
    const auto same = torch::optim::SGDOptions(kRate).momentum(momentum).nesterov(nesterov).weight_decay(kDecay);
    expect_torchs("SGD", options, torchs<torch::optim::SGD>(same));
  }
}

TEST(OptimizerStep, OfAdamWAndAdamIsTorchs) {
  optim::Options options;
  options.beta1 = 0.8, options.beta2 = 0.99, options.eps = 1e-6;
  const auto same = [&](auto o) { return o.betas({0.8, 0.99}).eps(1e-6).weight_decay(kDecay); };
  expect_torchs("AdamW", options, torchs<torch::optim::AdamW>(same(torch::optim::AdamWOptions(kRate))));
  expect_torchs("Adam", options, torchs<torch::optim::Adam>(same(torch::optim::AdamOptions(kRate))));
}

}  // namespace
}  // namespace halftone::optimizer_test
