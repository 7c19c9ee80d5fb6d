#include "halftone/ops/linear.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>

#include "halftone/base/error.h"
#include "ops/recipe_reference.h"
#include "ops/test_device.h"

namespace halftone {
namespace {

double sqnr(const at::Tensor& reference, const at::Tensor& y) {
  const double error = (reference.to(at::kDouble) - y.to(at::kDouble)).norm().item<double>();
  return error == 0 ? 1e9 : 20 * std::log10(reference.to(at::kDouble).norm().item<double>() / error);
}

// Two weights [N_i, K] behind one another, as w1 | w3 lie in a flat buffer.
struct Fixture {
  Weight a, b;
  at::Tensor values, grads;
  LinearGroup group;
  Fixture(int64_t k, int64_t n0, int64_t n1, at::ScalarType type, const LinearRecipe& recipe) {
    values = at::randn({n0 + n1, k}).div_(std::sqrt(static_cast<double>(k))).to(type).to(test_device());
    grads = at::zeros({n0 + n1, k}, values.options().dtype(at::kFloat));
    int64_t row = 0;
    for (auto [w, n] : {std::pair<Weight*, int64_t>{&a, n0}, {&b, n1}}) {
      w->name = fmt::format("layers.0.w{}.weight", row);
      w->value = values.narrow(0, row, n).detach().set_requires_grad(true);
      w->grad = grads.narrow(0, row, n);
      row += n;
    }
    group.weights = {&a, &b}, group.recipe = recipe;
  }
};

LinearRecipe recipe_named(const char* name, bool stochastic = false) {
  LinearRecipe r = find_linear_recipe(name).value();
  if (stochastic) {
    for (OperandSpec* o : {&r.x_forward, &r.w_forward, &r.dy_dgrad, &r.w_dgrad, &r.dy_wgrad, &r.x_wgrad}) o->stochastic = true;
  }
  return r;
}

at::Tensor normal(at::IntArrayRef shape, at::ScalarType type = at::kFloat) { return at::randn(shape).to(type).to(test_device()); }

// Both weights against their definition: the same operands bit for bit, products in another summation order. `fp8`: the bar of
// fp8 tensor cores with fast accumulation (numerics.md 13.1) on a CUDA device.
void compare(const LinearRecipe& recipe, at::ScalarType type, int64_t tokens, int64_t k, int64_t n0, int64_t n1, double bar,
             bool fp8 = false) {
  if (fp8 && test_device().is_cuda()) bar = 40;
  at::manual_seed(1);
  test_step() = {17, 3, 64};
  Fixture f(k, n0, n1, type, recipe);
  const at::Tensor x = normal({tokens, k}, type).set_requires_grad(true), dy = normal({tokens, n0 + n1}, type);
  at::AutoGradMode grad(true);
  at::Tensor y = linear(x, f.group, test_step());
  torch::autograd::backward({y}, {dy});
  at::NoGradGuard no_grad;
  at::Tensor dx;
  int64_t row = 0;
  for (const Weight* w : f.group.weights) {
    const int64_t n = w->value.size(0);
    const ReferenceLinear e = reference_linear(recipe, x.detach(), w->value.detach(), dy.narrow(1, row, n), w->name, nullptr, f.a.name);
    EXPECT_GE(sqnr(e.y, y.narrow(1, row, n).cpu()), bar) << w->name;
    EXPECT_GE(sqnr(e.dw, w->grad.cpu()), bar) << w->name;
    dx = dx.defined() ? dx + e.dx : e.dx;
    row += n;
  }
  EXPECT_GE(sqnr(dx, x.grad().cpu()), bar);
}

class Linear : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(On, Linear, test_devices(), [](const auto& info) { return info.param; });

TEST_P(Linear, UnquantisedEqualsItsDefinition) {
  compare(recipe_named("none"), at::kFloat, 48, 64, 32, 80, 110);
  compare(recipe_named("none"), at::kFloat, 33, 40, 24, 8, 110);  // nothing a multiple of a panel
  compare(recipe_named("none"), at::kBFloat16, 48, 64, 32, 80, 45);
}

TEST_P(Linear, Int8EqualsItsDefinition) {
  compare(recipe_named("int8"), at::kFloat, 48, 64, 32, 80, 110);
  compare(recipe_named("int8"), at::kBFloat16, 48, 64, 32, 80, 48);
}

TEST_P(Linear, StochasticInt8DrawsTheNumbersOfItsDefinition) { compare(recipe_named("int8", true), at::kFloat, 48, 64, 32, 80, 50); }

TEST_P(Linear, Fp8RowwiseEqualsItsDefinition) {
  compare(recipe_named("fp8_rowwise"), at::kFloat, 48, 64, 32, 80, 100, true);
  compare(recipe_named("fp8_rowwise"), at::kBFloat16, 48, 64, 32, 80, 48, true);
}

// Two-sided gates of numerics.md 13.3 on data R at M = K = N = 512: too good means that an operand was not quantised.
void gate(const char* name, double y_db, double dx_db, double dw_db) {
  at::manual_seed(1234);
  test_step() = {};
  const int64_t n = 512;
  Fixture f(n, n / 2, n / 2, at::kBFloat16, recipe_named(name));
  f.values.copy_(normal({n, n}));
  const at::Tensor x = normal({n, n}, at::kBFloat16).set_requires_grad(true), dy = normal({n, n}, at::kBFloat16);
  at::AutoGradMode grad(true);
  at::Tensor y = linear(x, f.group, test_step());
  torch::autograd::backward({y}, {dy});
  at::NoGradGuard no_grad;
  const at::Tensor xd = x.detach().to(at::kDouble), wd = f.values.to(at::kDouble), dyd = dy.to(at::kDouble);
  for (const auto& [reference, result, bar] :
       {std::tuple{at::mm(xd, wd.t()), y.detach(), y_db}, {at::mm(dyd, wd), x.grad(), dx_db}, {at::mm(dyd.t(), xd), f.grads, dw_db}}) {
    const double db = sqnr(reference, result);
    EXPECT_GT(db, bar - 0.8) << name;
    EXPECT_LT(db, bar + 1.2) << name;
  }
}

TEST_P(Linear, AccuracyIsThatOfTheFormat) {
  gate("int8", 38.9, 38.9, 38.9);
  gate("fp8_rowwise", 28.45, 28.45, 28.45);
}

TEST_P(Linear, GradientsAccumulateAndWeightsAreRequantisedWhenTheyChange) {
  at::manual_seed(2);
  Fixture f(32, 16, 16, at::kFloat, recipe_named("int8"));
  const at::Tensor x = normal({16, 32}).set_requires_grad(true), dy = normal({16, 32});
  at::AutoGradMode grad(true);
  const auto run = [&] { torch::autograd::backward({linear(x, f.group, test_step())}, {dy}); };
  run();
  const at::Tensor once = f.grads.clone();
  run();
  EXPECT_TRUE(at::allclose(f.grads, once * 2));
  at::NoGradGuard no_grad;
  const at::Tensor before = linear(x.detach(), f.group, test_step());
  f.values.mul_(2);
  EXPECT_TRUE(at::equal(linear(x.detach(), f.group, test_step()), before)) << "same version: cached codes";
  ++f.a.version, ++f.b.version;
  EXPECT_TRUE(at::allclose(linear(x.detach(), f.group, test_step()), before * 2));
}

TEST_P(Linear, WrongWidthIsAnError) {
  Fixture f(32, 16, 16, at::kFloat, recipe_named("none"));
  EXPECT_THROW(linear(at::zeros({4, 31}, f.values.options()), f.group, test_step()), Error);
}

}  // namespace
}  // namespace halftone
