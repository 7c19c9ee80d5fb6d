#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <string>
#include <tuple>

#include "halftone/base/error.h"
#include "halftone/ops/embedding.h"
#include "halftone/ops/head_loss.h"
#include "halftone/ops/norm.h"
#include "halftone/ops/swiglu.h"
#include "ops/attention_reference.h"
#include "ops/portable.h"

namespace halftone {
namespace {

TEST(AddRmsNorm, EqualsThePortableFormulas) {
  at::manual_seed(3);
  Weight w = make_weight(at::rand({48}) + 0.5);
  const at::Tensor x = at::randn({20, 48}).set_requires_grad(true), r = at::randn({20, 48}).set_requires_grad(true);
  const at::Tensor d_sum = at::randn({20, 48}), dy = at::randn({20, 48});
  at::AutoGradMode grad(true);
  auto [sum, y] = add_rms_norm(x, r, w, 1e-5);
  torch::autograd::backward({sum, y}, {d_sum, dy});
  at::NoGradGuard no_grad;
  const auto [expected_y, rstd] = portable::rms_norm(x + r, w.value, 1e-5);
  const auto [dx, dw] = portable::rms_norm_backward(dy, x + r, rstd, w.value);
  EXPECT_LT(relative(expected_y, y), 1e-6);
  EXPECT_LT(relative(dx + d_sum, x.grad()), 1e-5);
  EXPECT_TRUE(at::equal(x.grad(), r.grad()));
  EXPECT_LT(relative(dw, w.grad), 1e-5);
}

// A float32 stream with bf16 branches: the sum keeps the branch's full contribution; y and the branch's gradient are rounded once.
TEST(AddRmsNorm, KeepsAWideResidualStream) {
  at::manual_seed(3);
  Weight w = make_weight((at::rand({48}) + 0.5).to(at::kBFloat16));
  const at::Tensor x = at::randn({20, 48}).set_requires_grad(true);
  const at::Tensor r = at::randn({20, 48}).to(at::kBFloat16).set_requires_grad(true);
  const at::Tensor d_sum = at::randn({20, 48}), dy = at::randn({20, 48}).to(at::kBFloat16);
  at::AutoGradMode grad(true);
  auto [sum, y] = add_rms_norm(x, r, w, 1e-5);
  torch::autograd::backward({sum, y}, {d_sum, dy});
  at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal(sum, x + r));
  const auto [expected_y, rstd] = portable::rms_norm(x + r, w.value, 1e-5);
  const auto [dx, dw] = portable::rms_norm_backward(dy, x + r, rstd, w.value);
  ASSERT_EQ(y.value.scalar_type(), at::kBFloat16);
  EXPECT_LT(relative(expected_y, y), 1e-3);
  ASSERT_EQ(x.grad().scalar_type(), at::kFloat);
  EXPECT_LT(relative(dx + d_sum, x.grad()), 1e-5);
  EXPECT_TRUE(at::equal(x.grad().to(at::kBFloat16), r.grad()));
  EXPECT_LT(relative(dw, w.grad), 1e-5);
}

TEST(Swiglu, EqualsThePortableFormulas) {
  at::manual_seed(4);
  const at::Tensor gu = at::randn({12, 80}).set_requires_grad(true), dh = at::randn({12, 40});
  at::AutoGradMode grad(true);
  const at::Tensor h = swiglu(gu);
  torch::autograd::backward({h}, {dh});
  EXPECT_LT(relative(portable::swiglu(gu.detach()), h), 1e-5);
  EXPECT_LT(relative(portable::swiglu_backward(dh, gu.detach()), gu.grad()), 1e-5);
}

class SwigluLinear : public OnDevice {
 protected:
  void TearDown() override {
    at::globalContext().setDeterministicAlgorithms(false, false);
    OnDevice::TearDown();
  }
};

// SwiGLU followed by linear, the same with an input that SwiGLU is told to keep, or one op.
enum class Way { two, two_kept, one };
struct SwigluPass {
  at::Tensor y, dgu, dw;
  bool in_place = false;  // dgu overwrote gu
};
SwigluPass swiglu_pass(Way way, const LinearRecipe& recipe, bool bias, int times = 1) {
  at::manual_seed(8);
  const auto make = [](at::IntArrayRef shape) { return at::randn(shape).to(test_device(), at::kBFloat16); };
  Weight w = make_weight(make({96, 64}) / 8), b = make_weight(make({96}));
  FusedLinears group;
  group.weights = {&w}, group.recipe = recipe;
  if (bias) group.biases = {&b};
  const at::Tensor leaf = make({48, 128}).set_requires_grad(true), dy = make({48, 96});
  at::AutoGradMode grad(true);
  const StepContext step = {5, 3, 32};
  at::Tensor gu = leaf * 1.0;
  const void *memory = gu.const_data_ptr(), *found = nullptr;
  gu.register_hook([&](const at::Tensor& g) { found = g.const_data_ptr(); });
  Activation h;
  if (way != Way::one) h = swiglu(gu), h.kept = way == Way::two_kept;
  const at::Tensor y = way == Way::one ? swiglu_linear(gu, group, step) : linear(h, group, step);
  h = {};
  gu.reset();
  for (int i = 1; i <= times; ++i) torch::autograd::backward({y}, {dy}, i < times);
  return {y.detach(), leaf.grad(), w.grad, found == memory};
}

TEST_P(SwigluLinear, HasTheBitsOfSwigluAndLinear) {
  at::globalContext().setDeterministicAlgorithms(true, true);
  std::vector<LinearRecipe> recipes(std::begin(kLinearRecipes), std::end(kLinearRecipes));
  std::erase_if(recipes, [](const LinearRecipe& r) { return r.w_forward.stored; });
  recipes.push_back(*find_linear_recipe("int8"));
  recipes.back().x_wgrad.stochastic = true;
  for (const LinearRecipe& recipe : recipes) {
    for (const bool bias : {false, true}) {
      const SwigluPass two = swiglu_pass(Way::two, recipe, bias);
      EXPECT_GT(two.dw.abs().sum().item<double>(), 0) << recipe.name << bias;
      for (const Way way : {Way::two_kept, Way::one}) {
        const SwigluPass other = swiglu_pass(way, recipe, bias);
        EXPECT_TRUE(at::equal(other.y, two.y)) << recipe.name << bias;
        EXPECT_TRUE(at::equal(other.dgu, two.dgu)) << recipe.name << bias;
        EXPECT_TRUE(at::equal(other.dw, two.dw)) << recipe.name << bias;
      }
    }
  }
}

TEST_P(SwigluLinear, WritesTheGradientOverWhatItReadWhenNobodyWillReadItAgain) {
  at::globalContext().setDeterministicAlgorithms(true, true);
  for (const Way way : {Way::two, Way::one}) {
    const LinearRecipe& plain = kLinearRecipes[0];
    const SwigluPass once = swiglu_pass(way, plain, true), kept = swiglu_pass(way, plain, true, 2);
    EXPECT_TRUE(once.in_place);
    EXPECT_TRUE(kept.in_place);  // in the second, last pass
    EXPECT_TRUE(at::equal(kept.dgu, once.dgu * 2));
    EXPECT_TRUE(at::equal(kept.dw, once.dw * 2));
    // gu has another reader.
    const at::Tensor gu = at::randn({4, 8}).to(test_device()).set_requires_grad(true), before = gu.detach().clone();
    at::AutoGradMode grad(true);
    torch::autograd::backward({swiglu(gu).value}, {at::ones({4, 4}, gu.options())});
    EXPECT_TRUE(at::equal(gu.detach(), before));
  }
}
INSTANTIATE_TEST_SUITE_P(Device, SwigluLinear, test_devices());

TEST(Embedding, AddsTheGradientsOfRepeatedTokens) {
  Weight table = make_weight(at::randn({10, 16}));
  const at::Tensor ids = at::tensor({3, 7, 3}, at::kLong);
  at::AutoGradMode grad(true);
  const at::Tensor out = embedding(ids, table, at::kFloat);
  torch::autograd::backward({out}, {at::ones_like(out)});
  EXPECT_TRUE(at::equal(out[1], table.value[7]));
  EXPECT_EQ(table.grad[3].sum().item<float>(), 32.0f);
  EXPECT_EQ(table.grad.sum().item<float>(), 48.0f);
  EXPECT_THROW(embedding(at::tensor({10}, at::kLong), table, at::kFloat), Error);
}

TEST(HeadLoss, EqualsCrossEntropyOfTheWholeLogits) {
  at::manual_seed(7);
  const int64_t rows = 2500, dim = 16, vocab = 4096;  // several chunks
  Weight w = make_weight(at::randn({vocab, dim}));
  FusedLinears head;
  head.weights = {&w};
  const at::Tensor x = at::randn({rows, dim}).set_requires_grad(true);
  at::Tensor labels = at::randint(vocab, {rows}, at::kLong);
  labels.narrow(0, 10, 100).fill_(-100);
  at::AutoGradMode grad(true);
  const HeadLoss out = head_loss(x, head_of(head), labels, 1.0 / 2400, {});
  torch::autograd::backward({out.loss}, {});
  const at::Tensor xr = x.detach().to(at::kDouble).set_requires_grad(true), wr = w.value.detach().to(at::kDouble).set_requires_grad(true);
  const at::Tensor logits = at::mm(xr, wr.t());
  const at::Tensor expected = at::cross_entropy_loss(logits, labels, {}, 1 /* mean */, -100);
  torch::autograd::backward({expected}, {});
  EXPECT_LT(relative(expected.detach(), out.loss.detach()), 1e-6);
  EXPECT_LT(relative(xr.grad(), x.grad()), 1e-5);
  EXPECT_LT(relative(wr.grad(), w.grad), 1e-5);
  at::NoGradGuard no_grad;
  EXPECT_NEAR(head_loss(x, head_of(head), labels, 1.0, {}).sum.item<double>(), out.sum.item<double>(), 1e-6);
}

TEST(HeadLoss, ScoresRowsOfSeveralChunks) {
  at::manual_seed(8);
  const int64_t rows = 2500, dim = 16, vocab = 4096, top = 3;
  Weight w = make_weight(at::randn({vocab, dim}));
  FusedLinears head;
  head.weights = {&w};
  const at::Tensor x = at::randn({rows, dim}), labels = at::randint(vocab, {rows}, at::kLong);
  labels.narrow(0, 10, 100).fill_(-100);
  StepContext step;
  step.scores = std::make_shared<RowScores>();
  step.scores->greedy = true, step.scores->top = top;
  {
    at::NoGradGuard no_grad;
    head_loss(x, head_of(head), labels, 1.0, step);
  }
  const RowScores& s = *step.scores;
  const at::Tensor logprobs = at::log_softmax(at::mm(x.to(at::kDouble), w.value.detach().to(at::kDouble).t()), 1);
  const at::Tensor own = logprobs.gather(1, labels.clamp_min(0).unsqueeze(1)), valid = labels.ge(0);
  EXPECT_LT(relative(-own.squeeze(1) * valid, s.loss), 1e-6);
  EXPECT_TRUE(at::equal(s.best, logprobs.argmax(1)));
  const auto [values, ids] = logprobs.topk(top, 1);
  EXPECT_TRUE(at::equal(s.top_ids, ids));
  EXPECT_LT(relative(values, s.top_logprobs), 1e-6);
  EXPECT_TRUE(at::equal(s.rank.masked_select(valid), (logprobs.gt(own).sum(1) + 1).masked_select(valid)));
  const at::Tensor trained = x.clone().set_requires_grad(true);
  at::AutoGradMode grad(true);
  EXPECT_THROW(head_loss(trained, head_of(head), labels, 1.0, step), Error);
}

// docs/fused_kernels.md: error of bf16 rows, and on a GPU of bf16 logits with a standard deviation of 1 and 3. Several chunks.
class HeadLossInBf16 : public OnDevice {};
TEST_P(HeadLossInBf16, StaysAsNearToFloat64AsTheDocsSay) {
  const bool cpu = test_device().is_cpu();
  const int64_t rows = cpu ? 1500 : 4500, dim = 64, vocab = cpu ? 4096 : 128256;
  for (const auto& [spread, of_loss, decibels] : {std::tuple{1.0, 1e-5, 50.0}, {3.0, 2e-5, 46.0}}) {
    at::manual_seed(9);
    Weight w = make_weight((at::randn({vocab, dim}) * (spread / 8)).to(test_device(), at::kBFloat16));
    FusedLinears head;
    head.weights = {&w};
    const at::Tensor x = at::randn({rows, dim}).to(test_device(), at::kBFloat16).set_requires_grad(true);
    at::Tensor labels = at::randint(vocab, {rows}, at::kLong).to(test_device());
    labels.narrow(0, 10, 100).fill_(-100);
    const double scale = 1.0 / static_cast<double>(rows - 100);
    at::AutoGradMode grad(true);
    const HeadLoss out = head_loss(x, head_of(head), labels, scale, {});
    torch::autograd::backward({out.loss}, {});
    const at::Tensor xr = x.detach().to(at::kDouble).set_requires_grad(true), wr = w.value.detach().to(at::kDouble).set_requires_grad(true);
    const at::Tensor expected = at::cross_entropy_loss(at::mm(xr, wr.t()), labels, {}, 1 /* mean */, -100);
    torch::autograd::backward({expected}, {});
    EXPECT_LT(relative(expected.detach(), out.loss.detach()), of_loss) << spread;
    EXPECT_GT(-20 * std::log10(relative(xr.grad(), x.grad())), decibels) << spread;
    EXPECT_GT(-20 * std::log10(relative(wr.grad(), w.grad)), decibels) << spread;
    at::NoGradGuard no_grad;  // the kernel reads a row twice then, in another order
    EXPECT_LT(relative(out.sum, head_loss(x, head_of(head), labels, 1.0, {}).sum), 1e-6);
  }
}

// A z-loss affects only the gradients, which equal autograd's. Its share of them here: 2 * 0.05 * 8.8 of the softmax.
TEST_P(HeadLossInBf16, DifferentiatesAZLoss) {
  at::manual_seed(10);
  const int64_t rows = 1100, dim = 64, vocab = 4096;
  Weight w = make_weight((at::randn({vocab, dim}) / 8).to(test_device(), at::kBFloat16));
  FusedLinears head;
  head.weights = {&w};
  const at::Tensor x = at::randn({rows, dim}).to(test_device(), at::kBFloat16).set_requires_grad(true);
  at::Tensor labels = at::randint(vocab, {rows}, at::kLong).to(test_device());
  labels.narrow(0, 10, 100).fill_(-100);
  const double scale = 1e-3, z_loss = 0.05;
  at::AutoGradMode grad(true);
  const HeadLoss plain = head_loss(x, head_of(head), labels, scale, {});
  w.grad.zero_();
  const HeadLoss out = head_loss(x, head_of(head), labels, scale, {}, {}, z_loss);
  torch::autograd::backward({out.loss}, {});
  EXPECT_EQ(out.loss.item<double>(), plain.loss.item<double>());
  EXPECT_EQ(out.sum.item<double>(), plain.sum.item<double>());
  const at::Tensor xr = x.detach().to(at::kDouble).set_requires_grad(true), wr = w.value.detach().to(at::kDouble).set_requires_grad(true);
  const at::Tensor logits = at::mm(xr, wr.t());
  const at::Tensor lse = at::logsumexp(logits, {1}).masked_fill(labels == -100, 0);
  const at::Tensor expected = at::cross_entropy_loss(logits, labels, {}, 1 /* mean */, -100) + z_loss * scale * (lse * lse).sum();
  torch::autograd::backward({expected}, {});
  EXPECT_GT(-20 * std::log10(relative(xr.grad(), x.grad())), 46);
  EXPECT_GT(-20 * std::log10(relative(wr.grad(), w.grad)), 46);
}
INSTANTIATE_TEST_SUITE_P(Device, HeadLossInBf16, test_devices());

}  // namespace
}  // namespace halftone
