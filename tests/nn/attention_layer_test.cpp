#include <gtest/gtest.h>

#include "halftone/nn/layers.h"
#include "halftone/nn/parameter_store.h"
#include "ops/attention_reference.h"

namespace halftone::nn {
namespace {

class Layer : public Module {
 public:
  Layer()
      : attention(add<Attention>("attention",
                                 Attention::Shape{.dim = 32, .heads = 4, .kv_heads = 2, .head_dim = 16, .window = 6, .sinks = true}, 0,
                                 Init{Init::Kind::normal, 0.2}, Init{Init::Kind::normal, 0.5})) {
    assign_names("");
    StorageOptions floats;
    floats.compute = at::kFloat, floats.device = test_device();
    store.materialize(*this, floats);
    store.initialize(3);
  }
  Attention& attention;
  ParameterStore store;
};

using AttentionLayer = OnDevice;
INSTANTIATE_TEST_SUITE_P(On, AttentionLayer, test_devices(), [](const auto& info) { return info.param; });

// One sink per head; its gradient equals a finite difference of the loss.
TEST_P(AttentionLayer, SinksAreAParameterOfIt) {
  at::manual_seed(44);
  Layer layer;
  Parameter& sinks = *layer.store.parameters().front();
  EXPECT_EQ(sinks.fqn, "attention.sinks");
  EXPECT_EQ(sinks.shape, std::vector<int64_t>{4});
  EXPECT_GT(sinks.master.abs().min().item<double>(), 0);  // initialised like wo
  SequenceInfo info;
  info.batch = 2, info.seq = 20;
  std::tie(info.cos, info.sin) = rope_tables(20, 16, 10000, {}, test_device());
  const at::Tensor x = random(40, 32, at::kFloat), dy = random(40, 32, at::kFloat);
  {
    at::AutoGradMode grad(true);
    layer.store.gradients_are_stale(false);
    torch::autograd::backward({layer.attention(x, info)}, {dy});
  }
  at::NoGradGuard no_grad;
  const auto loss = [&] { return (layer.attention(x, info).to(at::kDouble) * dy).sum().item<double>(); };
  for (int64_t h = 0; h < 4; ++h) {
    constexpr double kStep = 1e-2;
    const at::Tensor sink = sinks.master[h];
    sink.add_(kStep), layer.store.masters_changed();
    const double above = loss();
    sink.sub_(2 * kStep), layer.store.masters_changed();
    const double below = loss();
    sink.add_(kStep), layer.store.masters_changed();
    EXPECT_NEAR((above - below) / (2 * kStep), sinks.weight.grad[h].item<double>(), 1e-2) << h;
  }
  EXPECT_GT(sinks.weight.grad.abs().max().item<double>(), 0.1);
}

}  // namespace
}  // namespace halftone::nn
