// Recipes without a float master, over several optimizer steps (numerics.md 13.2): a multi-layer perceptron 32-32 against the same
// network written out in fp32.
#include <ATen/ops/relu.h>
#include <gtest/gtest.h>

#include "halftone/nn/layers.h"
#include "halftone/nn/parameter_store.h"
#include "halftone/ops/optimizer.h"
#include "nn/linear_support.h"

namespace halftone::nn::steps_test {
namespace {

constexpr int64_t kWidth = 32, kTokens = 64;
constexpr double kRate = 1e-3;

class Perceptron : public Module {
 public:
  explicit Perceptron(const LayerRecipe& recipe)
      : first(add<Linear>("first", kWidth, kWidth, Init{Init::Kind::normal, 0.2})),
        second(add<Linear>("second", kWidth, kWidth, Init{Init::Kind::normal, 0.2})) {
    assign_names("");
    for (Linear* l : {&first, &second}) l->set_recipe(recipe);
    StorageOptions floats;
    floats.compute = at::kFloat, floats.device = test_device();
    store.materialize(*this, floats);
    store.initialize(1);
    for (auto& unit : store.units()) {
      FlatParameters& flat = unit.flat;
      flat.states = {at::zeros_like(flat.grad), at::zeros_like(flat.grad)};
      int64_t offset = 0;
      for (const Parameter* p : unit.parameters) {
        OptimizerSegment s;
        s.offset = offset, s.count = p->numel(), s.lr = kRate, s.weight_decay = 0.1, s.key = philox_key(7, p->fqn + "#param");
        flat.segments.push_back(s);
        offset += p->numel();
      }
    }
  }
  // Returns the loss; gradients are in the weights.
  double backward(const at::Tensor& x, const at::Tensor& target) {
    at::AutoGradMode grad(true);
    const at::Tensor y = second(at::relu(first(x.detach().set_requires_grad(true), test_step())), test_step());
    const at::Tensor loss = (y - target).square().mean();
    torch::autograd::backward({loss}, {});
    return loss.item<double>();
  }
  void step(int64_t t) {
    for (auto& unit : store.units()) optimizer_step(unit.flat, {}, t);
    store.masters_changed();
  }
  Linear &first, &second;
  ParameterStore store;
};

LayerRecipe recipe(const char* scheme) { return layer_recipe(scheme, {}, "test"); }
const at::Tensor& numbers(Linear& l) { return l.weight.weight.value; }

class Steps : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    at::manual_seed(12);
    x = normal({kTokens, kWidth}), target = normal({kTokens, kWidth});
  }
  at::Tensor x, target;
};
INSTANTIATE_TEST_SUITE_P(On, Steps, test_devices(), [](const auto& info) { return info.param; });

// Stochastic rounding to fresh scales once per step: the loss follows that of float weights with the same initial values.
TEST_P(Steps, Int8WeightsFollowFloats) {
  Perceptron codes(recipe("int8_weight")), floats(recipe("none"));
  {
    at::NoGradGuard no_grad;
    floats.first.weight.master.copy_(dequantize(*codes.first.weight.weight.stored));
    floats.second.weight.master.copy_(dequantize(*codes.second.weight.weight.stored));
    floats.store.masters_changed();
  }
  for (int64_t t = 1; t <= 5; ++t) {
    const double expected = floats.backward(x, target), found = codes.backward(x, target);
    EXPECT_NEAR(found, expected, 2e-3 * expected) << "step " << t;
    floats.step(t), codes.step(t);
  }
}

// The first micro-batch of a step overwrites the previous step's gradients, the second one accumulates.
TEST_P(Steps, StaleGradientsDoNotCount) {
  for (const char* scheme : {"none", "fp8_tensorwise", "fp8_rowwise", "int8"}) {
    Perceptron net(recipe(scheme));
    net.backward(x, target);
    const at::Tensor& grad = net.first.weight.weight.grad;
    const at::Tensor once = grad.clone();
    net.store.gradients_are_stale();
    for (auto& unit : net.store.units()) {
      EXPECT_FALSE(unit.flat.grad.storage().data()) << "memory that nobody needs";
      unit.gradients->hold();
      unit.flat.grad.fill_(7);
    }
    net.backward(x, target);
    EXPECT_FALSE(net.first.weight.weight.grad_is_stale);
    EXPECT_GT(once.abs().max().item<float>(), 0);
    EXPECT_TRUE(at::allclose(grad, once, 1e-5, 1e-7)) << scheme;
    net.backward(x, target);
    EXPECT_TRUE(at::allclose(grad, 2 * once, 1e-5, 1e-7)) << scheme;
  }
}

// Straight-through fake quantisation of activations (int8 rows) and weights (ternary), by definition: integers and their scale. Sums are
// over integers, so that a zero sum is exactly zero for relu.
struct Fake {
  at::Tensor q, s;
  at::Tensor values() const { return q * s; }
};
Fake fake_rows(const at::Tensor& a) {
  const at::Tensor s = a.abs().amax(1, true).div(127).clamp_min(1e-5);
  return {(a * s.reciprocal()).round().clamp(-127, 127), s};
}
Fake fake_ternary(const at::Tensor& w) {
  const at::Tensor s = w.abs().mean(at::kDouble).to(at::kFloat).clamp_min(1e-5);
  return {(w * s.reciprocal()).round().clamp(-1, 1), s};
}
at::Tensor product(const Fake& x, const Fake& w) { return at::mm(x.q, w.q.t()) * x.s * w.s; }

TEST_P(Steps, BitnetEqualsFakeQuantisation) {
  Perceptron bitnet(recipe("bitnet")), latent(recipe("none"));  // `latent` holds the reference's weights and its optimizer
  const auto close = [](const at::Tensor& a, const at::Tensor& b) { return at::allclose(a, b, 1.3e-6, 1e-5); };
  for (int64_t t = 1; t <= 5; ++t) {
    const double found = bitnet.backward(x, target);
    at::NoGradGuard no_grad;
    const Fake w1 = fake_ternary(numbers(latent.first)), w2 = fake_ternary(numbers(latent.second)), x1 = fake_rows(x);
    const at::Tensor h = product(x1, w1);
    const Fake x2 = fake_rows(at::relu(h));
    const at::Tensor y = product(x2, w2);
    const at::Tensor dy = (y - target) * (2.0 / static_cast<double>(y.numel()));
    const double expected = (y - target).square().mean().item<double>();
    latent.second.weight.weight.grad.add_(at::mm(dy.t(), x2.values()));
    latent.first.weight.weight.grad.add_(at::mm((at::mm(dy, w2.values()) * h.gt(0)).t(), x1.values()));
    EXPECT_NEAR(found, expected, 1.3e-6 * expected) << "step " << t;
    EXPECT_TRUE(close(bitnet.first.weight.weight.grad, latent.first.weight.weight.grad)) << "step " << t;
    EXPECT_TRUE(close(bitnet.second.weight.weight.grad, latent.second.weight.weight.grad)) << "step " << t;
    bitnet.step(t), latent.step(t);
  }
}

}  // namespace
}  // namespace halftone::nn::steps_test
