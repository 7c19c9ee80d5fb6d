#include "halftone/nn/latent_attention.h"

#include <gtest/gtest.h>

#include <map>

#include "halftone/nn/parameter_store.h"
#include "halftone/ops/recompute_results.h"
#include "ops/attention_reference.h"

namespace halftone::nn::latent_attention_test {
namespace {

constexpr int64_t kDim = 48, kBatch = 2, kSeq = 37;

LatentAttention::Shape shape(int64_t q_lora_rank) {
  return {.dim = kDim,
          .heads = 3,
          .q_lora_rank = q_lora_rank,
          .kv_lora_rank = 32,
          .qk_nope_dim = 24,
          .qk_rope_dim = 8,
          .v_dim = 16,
          .norm_eps = 1e-5,
          .scale_factor = 1.3};
}

class Layer : public Module {
 public:
  explicit Layer(int64_t q_lora_rank)
      : attention(add<LatentAttention>("attention", shape(q_lora_rank), 0, Init{Init::Kind::normal, 0.2}, Init{Init::Kind::normal, 0.2})) {
    assign_names("");
    StorageOptions floats;
    floats.compute = at::kFloat, floats.device = test_device();
    store.materialize(*this, floats);
    store.initialize(1);
    // Norm weights that differ from 1.
    at::NoGradGuard no_grad;
    for (const Parameter* p : store.parameters()) {
      if (p->shape.size() == 1) p->master.copy_(at::rand(p->shape) + 0.5);
    }
    store.masters_changed();
  }
  SequenceInfo info(bool documents) const {
    SequenceInfo i;
    i.batch = kBatch, i.seq = kSeq;
    std::tie(i.cos, i.sin) = rope_tables(kSeq, attention.shape().qk_rope_dim, 10000, {}, test_device());
    if (documents) i.documents = packed(kBatch, kSeq);
    return i;
  }
  LatentAttention& attention;
  ParameterStore store;
};

struct Gradients {
  at::Tensor y, dx;
  std::map<std::string, at::Tensor> weights;
};

// The definition with ATen operations, in fp64.
Gradients reference(Layer& layer, const at::Tensor& x, const at::Tensor& dy, const SequenceInfo& info) {
  at::AutoGradMode grad(true);
  const LatentAttention::Shape& s = layer.attention.shape();
  std::map<std::string, at::Tensor> w;
  for (const Parameter* p : layer.store.parameters()) w[p->fqn.substr(std::string("attention.").size())] = leaf_of(p->master);
  const at::Tensor leaf = leaf_of(x);
  const auto project = [&](const at::Tensor& t, const std::string& name) { return at::matmul(t, w.at(name + ".weight").t()); };
  const auto norm = [&](const at::Tensor& t, const std::string& name) {
    return t * at::rsqrt(t.square().mean(1, true) + s.norm_eps) * w.at(name + ".weight");
  };
  AttentionArgs a;
  a.batch = kBatch, a.seq = kSeq, a.heads = s.heads, a.cos = info.cos, a.sin = info.sin, a.documents = info.documents;
  a.scale = s.scale_factor / std::sqrt(32.0);
  const auto heads = [&](const at::Tensor& t, int64_t n) { return t.reshape({kBatch, kSeq, n, -1}); };
  const at::Tensor q = heads(s.q_lora_rank > 0 ? project(norm(project(leaf, "wq_a"), "q_norm"), "wq_b") : project(leaf, "wq"), s.heads);
  const at::Tensor down = project(leaf, "wkv_a");
  const at::Tensor kv = heads(project(norm(down.narrow(1, 0, 32), "kv_norm"), "wkv_b"), s.heads);
  const at::Tensor shared = rotate_reference(heads(down.narrow(1, 32, 8), 1), a).expand({kBatch, kSeq, s.heads, 8});
  const at::Tensor out = attend_reference(at::cat({q.narrow(3, 0, 24), rotate_reference(q.narrow(3, 24, 8), a)}, 3),
                                          at::cat({kv.narrow(3, 0, 24), shared}, 3), kv.narrow(3, 24, 16), a, {});
  const at::Tensor y = project(out, "wo");
  torch::autograd::backward({y}, {dy.to(at::kDouble)});
  Gradients g{y.detach(), leaf.grad(), {}};
  for (const auto& [name, t] : w) g.weights[name] = t.grad();
  return g;
}

Gradients run(Layer& layer, const at::Tensor& x, const at::Tensor& dy, const SequenceInfo& info) {
  layer.store.gradients_are_stale(false);
  at::AutoGradMode grad(true);
  const at::Tensor leaf = x.clone().set_requires_grad(true), y = layer.attention(leaf, info);
  torch::autograd::backward({y}, {dy});
  Gradients g{y.detach(), leaf.grad(), {}};
  for (const Parameter* p : layer.store.parameters()) g.weights[p->fqn.substr(std::string("attention.").size())] = p->weight.grad.clone();
  return g;
}

// Rank of the queries; 0: projected from the input directly.
using LatentAttentionLayer = OnDeviceWith<int64_t>;
INSTANTIATE_TEST_SUITE_P(On, LatentAttentionLayer,
                         testing::Combine(testing::Values(std::string("cpu"), std::string("cuda")), testing::Values<int64_t>(0, 40)),
                         [](const auto& info) { return fmt::format("{}_rank{}", std::get<0>(info.param), std::get<1>(info.param)); });

TEST_P(LatentAttentionLayer, HasTheGradientsOfItsDefinition) {
  at::manual_seed(41);
  Layer layer(param());
  const at::Tensor x = random(kBatch * kSeq, kDim, at::kFloat), dy = random(kBatch * kSeq, kDim, at::kFloat);
  for (const bool documents : {false, true}) {
    const SequenceInfo info = layer.info(documents);
    const Gradients expected = reference(layer, x, dy, info), found = run(layer, x, dy, info);
    EXPECT_LT(relative(expected.y, found.y), 1e-5);
    EXPECT_LT(relative(expected.dx, found.dx), 2e-5);
    EXPECT_EQ(expected.weights.size(), param() > 0 ? 7u : 5u);
    for (const auto& [name, grad] : expected.weights) EXPECT_LT(relative(grad, found.weights.at(name)), 2e-5) << name;
  }
}

TEST_P(LatentAttentionLayer, ACacheGivesTheRowsOfTheWholeSequence) {
  at::manual_seed(42);
  Layer layer(param());
  const at::Tensor x = random(kBatch * kSeq, kDim, at::kFloat);
  at::NoGradGuard no_grad;
  SequenceInfo info = layer.info(false);
  const at::Tensor whole = layer.attention(x, info).view({kBatch, kSeq, kDim});
  const auto [k, v] = layer.attention.cache_widths();
  std::vector<KvCache> caches = {{at::empty({kBatch, kSeq, k}, x.options()), at::empty({kBatch, kSeq, v}, x.options()), 0}};
  info.caches = &caches;
  int64_t first = 0;
  for (const int64_t n : {20, 1, 16}) {
    info.seq = n;
    const at::Tensor rows = x.view({kBatch, kSeq, kDim}).narrow(1, first, n).reshape({-1, kDim});
    EXPECT_LT(relative(whole.narrow(1, first, n).reshape({-1, kDim}), layer.attention(rows, info)), 1e-5) << first;
    first += n;
  }
}

// Activation checkpointing in mode "op", which keeps GEMM outputs as they were written.
TEST_P(LatentAttentionLayer, RecomputationChangesNoBit) {
  const Deterministic on;
  at::manual_seed(43);
  Layer layer(param());
  const at::Tensor x = random(kBatch * kSeq, kDim, at::kFloat), dy = random(kBatch * kSeq, kDim, at::kFloat);
  SequenceInfo info = layer.info(true);
  const Gradients once = run(layer, x, dy, info);
  // Whichever GEMM is the first one kept.
  for (const bool shifted : {false, true}) {
    info.step.recompute_results = std::make_shared<RecomputeResults>();
    const auto shift = [&] {
      if (shifted) info.step.recompute_results->product(at::zeros({1}), [] {});
    };
    {
      at::NoGradGuard no_grad;
      shift();
      layer.attention(x, info);
    }
    info.step.recompute_results->begin_again();
    shift();
    const Gradients again = run(layer, x, dy, info);
    EXPECT_TRUE(at::equal(once.y, again.y)) << shifted;
    EXPECT_TRUE(at::equal(once.dx, again.dx)) << shifted;
    for (const auto& [name, grad] : once.weights) EXPECT_TRUE(at::equal(grad, again.weights.at(name))) << name << " " << shifted;
  }
}

TEST(LatentAttentionNorms, AreReadByTheirProductsAlone) {
  LatentAttention low(shape(40), 0, {}, {}), plain(shape(0), 0, {}, {});
  ASSERT_EQ(low.norm_uses().size(), 2u);
  ASSERT_EQ(plain.norm_uses().size(), 1u);
  low.assign_names("a");
  for (const NormUse& use : low.norm_uses()) {
    ASSERT_EQ(use.readers.size(), 1u);
    EXPECT_EQ(use.readers[0]->fqn(), use.norm->fqn() == "a.q_norm" ? "a.wq_b" : "a.wkv_b");
  }
  ASSERT_EQ(low.readers().size(), 2u);
  EXPECT_EQ(low.readers()[0]->fqn(), "a.wq_a");
  EXPECT_EQ(low.readers()[1]->fqn(), "a.wkv_a");
}

}  // namespace
}  // namespace halftone::nn::latent_attention_test
