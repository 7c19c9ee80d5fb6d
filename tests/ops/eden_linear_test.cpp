// The gradients of a linear layer in quartet2 have the means of those of exact products (numerics.md 4.1).
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "halftone/ops/linear.h"
#include "ops/recipe_reference.h"

namespace halftone::eden_linear_test {
namespace {

constexpr int64_t kTokens = 128, kIn = 64, kOut = 128;
constexpr int kSteps = 300;

struct Gradients {
  at::Tensor dx, dw;
};

// A layer whose weight keeps its value: every step draws other signs and scales.
struct Layer {
  Weight weight;
  FusedLinears fused;
  at::Tensor x, dy;
  explicit Layer(const LinearRecipe& recipe) {
    at::manual_seed(21);
    weight.name = "layers.0.feed_forward.w1.weight";
    weight.value = at::randn({kOut, kIn}).to(at::kBFloat16).set_requires_grad(true);
    weight.grad = at::zeros({kOut, kIn}, at::kFloat);
    x = at::randn({kTokens, kIn}).to(at::kBFloat16), dy = at::randn({kTokens, kOut}).to(at::kBFloat16);
    fused.recipe = recipe, fused.weights = {&weight};
  }
  Gradients run(uint32_t step) {
    at::NoGradGuard no_grad;
    weight.grad.zero_();
    LinearOptions options;
    options.step = {17, step, 0}, options.keep = true, options.out = at::kFloat;
    const LinearCall call = linear_call(x, fused, options);
    const at::Tensor dx = call.dgrad(Activation(dy), true);
    call.wgrad();
    return {dx.to(at::kDouble), weight.grad.to(at::kDouble)};
  }
};

// Mean squared error of the mean over kSteps, in standard errors of its elements.
Gradients errors_of_means(const LinearRecipe& recipe) {
  Layer layer(recipe);
  const at::Tensor x = layer.x.to(at::kDouble), w = layer.weight.value.detach().to(at::kDouble), dy = layer.dy.to(at::kDouble);
  const Gradients exact{dy.mm(w), dy.t().mm(x)};
  Gradients sum{at::zeros_like(exact.dx), at::zeros_like(exact.dw)}, squares{at::zeros_like(exact.dx), at::zeros_like(exact.dw)};
  for (uint32_t step = 1; step <= kSteps; ++step) {
    const Gradients g = layer.run(step);
    for (const auto member : {&Gradients::dx, &Gradients::dw}) {
      const at::Tensor e = g.*member - exact.*member;
      sum.*member += e, squares.*member += e * e;
    }
  }
  Gradients result;
  for (const auto member : {&Gradients::dx, &Gradients::dw}) {
    const at::Tensor mean = sum.*member / kSteps, variance = squares.*member / kSteps - mean * mean;
    result.*member = (mean * mean / (variance / kSteps)).mean();
  }
  return result;
}

// Without a bias the mean square is 1. Its elements share the noise of operands: as many independent errors as the smaller of the two
// operands has elements, 8,192, give it a standard deviation of (2 / 8192)^(1/2) = 1/64. Bound: 8 of these, for a noise of two operands and
// the rounding of dX to bf16.
TEST(EdenLinear, GradientsHaveTheMeansOfExactProducts) {
  const LinearRecipe quartet2 = *find_linear_recipe("quartet2");
  const Gradients found = errors_of_means(quartet2);
  EXPECT_NEAR(found.dx.item<double>(), 1, 8.0 / 64);
  EXPECT_NEAR(found.dw.item<double>(), 1, 8.0 / 64);
  // Codes to nearest of the same rotated operands are too small, and so are their products.
  LinearRecipe nearest = quartet2;
  for (OperandSpec* s : {&nearest.dy_dgrad, &nearest.w_dgrad, &nearest.dy_wgrad, &nearest.x_wgrad}) s->eden = false;
  const Gradients biased = errors_of_means(nearest);
  EXPECT_GT(biased.dx.item<double>(), 2);
  EXPECT_GT(biased.dw.item<double>(), 2);
}

// Draws are keyed by the step alone: a resumed run repeats them.
TEST(EdenLinear, AStepRepeatsItsGradients) {
  const LinearRecipe quartet2 = *find_linear_recipe("quartet2");
  Layer through(quartet2), resumed(quartet2);
  through.run(1);
  const Gradients a = through.run(2), b = resumed.run(2), other = resumed.run(3);
  EXPECT_TRUE(at::equal(a.dx, b.dx) && at::equal(a.dw, b.dw));
  EXPECT_FALSE(at::equal(other.dx, b.dx) || at::equal(other.dw, b.dw));
}

}  // namespace
}  // namespace halftone::eden_linear_test
