#include "halftone/nn/moe.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "halftone/base/error.h"
#include "halftone/nn/deoscillation.h"
#include "halftone/nn/parameter_store.h"
#include "halftone/nn/recipe.h"
#include "ops/test_device.h"

namespace halftone::nn {
namespace {

constexpr Init kInit{Init::Kind::normal, 0.3, 0};
constexpr int64_t kDim = 32, kHidden = 48;

class Root : public Module {
 public:
  explicit Root(const MoE::Shape& shape) : moe(add<MoE>("moe", shape, kInit, kInit, kInit)) {
    make_unit("layers.0", 0);
    assign_names("layers.0");
  }
  MoE& moe;
};

struct Built {
  Root root;
  ParameterStore store;
  explicit Built(const MoE::Shape& shape, at::ScalarType compute = at::kFloat) : root(shape) {
    StorageOptions o;
    o.device = test_device(), o.compute = compute;
    store.materialize(root, o);
    store.initialize(5);
    root.moe.prepare(test_device());
  }
  at::Tensor weight(const std::string& name) {
    for (Parameter* p : store.parameters()) {
      if (p->fqn == "layers.0.moe." + name) return p->master.detach().clone().set_requires_grad(!p->buffer);
    }
    fail("no parameter {}", name);
  }
  at::Tensor grad(const std::string& name) {
    for (Parameter* p : store.parameters()) {
      if (p->fqn == "layers.0.moe." + name) return p->weight.grad_to_add();
    }
    fail("no parameter {}", name);
  }
};

MoE::Shape shape(int64_t experts, int64_t top_k) {
  MoE::Shape s;
  s.dim = kDim, s.hidden = kHidden, s.routing.experts = experts, s.routing.top_k = top_k;
  return s;
}

struct Case {
  std::string name;
  MoE::Shape shape;
};
std::vector<Case> cases() {
  std::vector<Case> all;
  all.push_back({"softmax", shape(8, 2)});
  all.push_back({"normalised", shape(8, 3)});
  all.back().shape.routing.normalize = true;
  all.push_back({"one_expert", shape(1, 1)});
  all.push_back({"all_experts", shape(4, 4)});
  all.push_back({"many_empty", shape(64, 1)});
  all.push_back({"deepseek", shape(16, 4)});
  MoE::Shape& d = all.back().shape;
  d.routing.score = Routing::Score::sigmoid, d.routing.normalize = true, d.routing.scale = 2.5, d.routing.groups = 4;
  d.routing.kept_groups = 2, d.shared_hidden = 40, d.balance = 1e-3;
  all.push_back({"gpt_oss", shape(8, 4)});
  all.back().shape.clamped = true, all.back().shape.routing.normalize = true;
  all.push_back({"with_losses", shape(8, 2)});
  all.back().shape.aux_loss = 0.3, all.back().shape.z_loss = 0.2;
  return all;
}

// The block as defined in platform.md 4.7, token by token, with LibTorch's gradients.
at::Tensor reference(Built& b, const at::Tensor& x, std::map<std::string, at::Tensor>& w, const MoE::Shape& s, double grad_scale,
                     at::Tensor& extra) {
  const auto get = [&](const std::string& name) -> at::Tensor& {
    if (!w.contains(name)) w[name] = b.weight(name);
    return w[name];
  };
  const Routing& r = s.routing;
  at::Tensor logits = at::matmul(x, get("router.gate.weight").t());
  if (s.clamped) logits = logits + get("router.gate.bias");
  const at::Tensor scores = r.score == Routing::Score::softmax ? at::softmax(logits, 1) : at::sigmoid(logits);
  const at::Tensor bias = s.balance > 0 ? b.weight("expert_bias") : at::zeros({r.experts}, x.options());
  std::vector<at::Tensor> out;
  at::Tensor counts = at::zeros({r.experts}, x.options());
  for (int64_t t = 0; t < x.size(0); ++t) {
    std::vector<std::pair<double, int64_t>> of_group, order;
    const auto choice = [&](int64_t e) { return scores[t][e].item<double>() + bias[e].item<double>(); };
    const int64_t groups = std::max<int64_t>(r.groups, 1), each = r.experts / groups;
    for (int64_t g = 0; g < groups; ++g) {
      std::vector<double> in;
      for (int64_t e = g * each; e < (g + 1) * each; ++e) in.push_back(-choice(e));
      std::sort(in.begin(), in.end());
      of_group.emplace_back(in[0] + (each > 1 ? in[1] : 0), g);
    }
    std::sort(of_group.begin(), of_group.end());
    for (int64_t i = 0; i < (r.groups > 0 ? r.kept_groups : 1); ++i) {
      for (int64_t e = 0; e < each; ++e) order.emplace_back(-choice(of_group[i].second * each + e), of_group[i].second * each + e);
    }
    std::sort(order.begin(), order.end());
    at::Tensor sum = at::zeros({s.dim}, x.options()), total = at::zeros({}, x.options());
    for (int64_t j = 0; j < r.top_k; ++j) total = total + scores[t][order[j].second];
    for (int64_t j = 0; j < r.top_k; ++j) {
      const int64_t e = order[j].second;
      counts[e] += 1;
      const at::Tensor gate = scores[t][e] * r.scale / (r.normalize ? total : at::ones({}, x.options()));
      at::Tensor y;
      if (s.clamped) {
        const at::Tensor gu = at::matmul(get("experts.mlp1_weight")[e], x[t]) + get("experts.mlp1_bias")[e];
        const at::Tensor g = gu.slice(0, 0, gu.size(0), 2).clamp_max(7), u = gu.slice(0, 1, gu.size(0), 2).clamp(-7, 7);
        y = at::matmul(get("experts.mlp2_weight")[e], g * at::sigmoid(1.702 * g) * (u + 1)) + get("experts.mlp2_bias")[e];
      } else {
        const at::Tensor h = at::silu(at::matmul(get("experts.w1")[e], x[t])) * at::matmul(get("experts.w3")[e], x[t]);
        y = at::matmul(get("experts.w2")[e], h);
      }
      sum = sum + gate * y;
    }
    if (s.shared_hidden > 0) {
      const at::Tensor h = at::silu(at::matmul(get("shared_experts.w1.weight"), x[t])) * at::matmul(get("shared_experts.w3.weight"), x[t]);
      sum = sum + at::matmul(get("shared_experts.w2.weight"), h);
    }
    out.push_back(sum);
  }
  const double tokens = static_cast<double>(x.size(0));
  extra = at::zeros({}, x.options());
  if (s.aux_loss > 0)
    extra = extra + s.aux_loss * tokens * grad_scale * static_cast<double>(r.experts) *
                        (counts / (tokens * static_cast<double>(r.top_k)) * scores.mean(0)).sum();
  if (s.z_loss > 0) extra = extra + s.z_loss * grad_scale * at::logsumexp(logits, -1).square().sum();
  return at::stack(out);
}

class MoEOn : public OnDeviceWith<Case> {};

TEST_P(MoEOn, IsItsDefinitionForwardAndBackward) {
  const MoE::Shape& s = param().shape;
  Built b(s);
  at::manual_seed(11);
  constexpr int64_t kTokens = 37;
  const at::Tensor x = at::randn({kTokens, kDim}).to(test_device()).set_requires_grad(true);
  const at::Tensor x2 = x.detach().clone().set_requires_grad(true);
  if (s.balance > 0) {
    for (Parameter* p : b.store.parameters()) {
      if (p->buffer) p->master.copy_(at::randn(p->shape) * 0.3);
    }
  }
  SequenceInfo info;
  constexpr double kScale = 0.125;
  info.counts = true, info.grad_scale = kScale / 2;
  info.loss_factor = at::full({1}, 2.0, at::TensorOptions().dtype(at::kDouble).device(test_device()));
  const at::Tensor y = b.root.moe(x, info);
  std::map<std::string, at::Tensor> w;
  at::Tensor extra;
  const at::Tensor expected = reference(b, x2, w, s, kScale, extra);
  EXPECT_TRUE(y.allclose(expected, 1e-5, 1e-5)) << (y - expected).abs().max().item<float>();
  const at::Tensor d = at::randn({kTokens, kDim}).to(test_device());
  y.backward(d);
  ((expected * d).sum() + extra).backward();
  EXPECT_TRUE(x.grad().allclose(x2.grad(), 1e-4, 1e-5)) << (x.grad() - x2.grad()).abs().max().item<float>();
  for (auto& [name, weight] : w) {
    const at::Tensor g = b.grad(name), g2 = weight.grad().defined() ? weight.grad() : at::zeros_like(weight);
    EXPECT_TRUE(g.allclose(g2, 1e-4, 1e-5)) << name << " by " << (g - g2).abs().max().item<float>();
  }
  const at::Tensor load = b.root.moe.load();
  EXPECT_EQ(load.narrow(0, 0, s.routing.experts).sum().item<double>(), static_cast<double>(kTokens * s.routing.top_k));
  EXPECT_EQ(load[s.routing.experts + 1].item<double>(), static_cast<double>(kTokens));
  const double entropy = load[s.routing.experts].item<double>() / static_cast<double>(kTokens);
  EXPECT_GE(entropy, 0);
  EXPECT_LE(entropy, std::log(static_cast<double>(s.routing.experts)) + 1e-6);
}
INSTANTIATE_TEST_SUITE_P(All, MoEOn, ::testing::Combine(test_devices(), ::testing::ValuesIn(cases())),
                         [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param).name; });

// Tokens between places of padding are sent, counted and weighed as without these.
TEST_P(MoEOn, SendsNoPadding) {
  const MoE::Shape& s = param().shape;
  Built b(s);
  at::manual_seed(12);
  constexpr int64_t kTokens = 37, kPlaces = 60;
  const at::Tensor real = at::randperm(kPlaces).narrow(0, 0, kTokens).msort().to(test_device());
  const at::Tensor x0 = at::randn({kTokens, kDim}).to(test_device()), d = at::randn({kTokens, kDim}).to(test_device());
  const auto spread = [&](const at::Tensor& t) { return at::zeros({kPlaces, kDim}, t.options()).index_copy_(0, real, t); };
  SequenceInfo info;
  info.counts = true, info.grad_scale = 0.125;
  const auto run = [&](at::Tensor x, const at::Tensor& dy) {
    b.store.gradients_are_stale(false);
    b.root.moe.load().zero_();
    x.set_requires_grad(true);
    const at::Tensor y = b.root.moe(x, info);
    y.backward(dy);
    std::vector<at::Tensor> all = {y.detach(), x.grad(), b.root.moe.load().clone()};
    for (Parameter* p : b.store.parameters())
      if (!p->buffer) all.push_back(p->weight.grad_to_add().clone());
    return all;
  };
  const std::vector<at::Tensor> expected = run(x0.clone(), d);
  info.padding = at::ones({kPlaces}, x0.options().dtype(at::kBool)).index_fill_(0, real, false);
  std::vector<at::Tensor> found = run(spread(x0), spread(d));
  for (const size_t i : {0, 1}) {
    EXPECT_EQ(found[i].index_select(0, info.padding.nonzero().flatten()).abs().max().item<float>(), 0) << i;
    found[i] = found[i].index_select(0, real);
  }
  EXPECT_TRUE(at::equal(found[2].narrow(0, 0, s.routing.experts), expected[2].narrow(0, 0, s.routing.experts)));
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(found[i].allclose(expected[i], 1e-5, 1e-6)) << i << " by " << (found[i] - expected[i]).abs().max().item<double>();
}

class MoEBalance : public OnDevice {};

// The bias moves against the load by one step, its mean is unchanged, and a skipped step leaves it.
TEST_P(MoEBalance, MovesTheBiasAgainstTheLoad) {
  MoE::Shape s = shape(4, 1);
  s.balance = 0.01;
  Built b(s);
  const auto options = at::TensorOptions().device(test_device());
  const std::vector<double> loads = {10, 2, 4, 4, 0, 20, 0};
  b.root.moe.load().copy_(at::tensor(loads, at::kDouble));
  b.root.moe.balance(at::zeros({}, options.dtype(at::kBool)));
  EXPECT_EQ(b.root.moe.expert_bias()->master.abs().max().item<float>(), 0);
  EXPECT_EQ(b.root.moe.load().abs().max().item<double>(), 0);
  b.root.moe.load().copy_(at::tensor(loads, at::kDouble));
  b.root.moe.balance({});
  const std::vector<float> expected = {-0.015f, 0.005f, 0.005f, 0.005f};
  EXPECT_TRUE(b.root.moe.expert_bias()->master.cpu().allclose(at::tensor(expected), 1e-5, 1e-7));
}

TEST_P(MoEBalance, CanBeForced) {
  Built b(shape(6, 2));
  b.root.moe.force_balance();
  SequenceInfo info;
  info.counts = true;
  b.root.moe(at::randn({9, kDim}).to(test_device()), info);
  for (int64_t e = 0; e < 6; ++e) EXPECT_EQ(b.root.moe.load()[e].item<double>(), 3);
  info.padding = (at::arange(15) % 5).ge(3).to(test_device());  // nine tokens of fifteen
  b.root.moe(at::randn({15, kDim}).to(test_device()), info);
  for (int64_t e = 0; e < 6; ++e) EXPECT_EQ(b.root.moe.load()[e].item<double>(), 6);
}
INSTANTIATE_TEST_SUITE_P(On, MoEBalance, test_devices());

RecipeRules plan(const std::string& scheme, std::vector<std::string> targets) {
  RecipeRules p;
  p.rules.emplace_back();
  p.rules[0].scheme = scheme, p.rules[0].targets = std::move(targets);
  return p;
}

TEST(MoERecipe, ExpertsAreNamedByClassAndRouterGatesByName) {
  for (const bool clamped : {false, true}) {
    MoE::Shape s = shape(4, 1);
    s.shared_hidden = 32, s.clamped = clamped;
    Root root(s);
    const auto lines =
        apply_recipes(root, plan("mxfp8_e4m3", {"Linear", clamped ? "GptOssGroupedExperts" : "GroupedExperts"}), 1, at::kCPU);
    EXPECT_TRUE(lines[0].starts_with("quantize: mxfp8_e4m3 on 3 Linear"));  // of the shared experts
  }
  Root root(shape(4, 1));
  apply_recipes(root, plan("int8", {"GroupedExperts"}), 1, at::kCPU);
  EXPECT_EQ(root.moe.experts().recipe().name, "int8");
}

TEST(MoERecipe, RefusesWhatExpertsCannotHave) {
  Root root(shape(4, 1));
  const auto refuses = [&](const char* scheme, auto set, const std::string& word) {
    RecipeRules p = plan(scheme, {"GroupedExperts"});
    set(p.rules[0]);
    try {
      apply_recipes(root, p, 1, at::kCPU);
      ADD_FAILURE() << scheme << " was taken, expected an error about " << word;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
    }
  };
  const auto nothing = [](RecipeRule&) {};
  refuses("int8_weight", nothing, "quantize.scheme: int8_weight supports linear layers only; layers.0.moe.experts");
  refuses("bitnet", nothing, "quantize.scheme: bitnet supports linear layers only");
  const auto low_rank = [](RecipeRule& r) { r.lora_rank = 16; };
  refuses("nvfp4", low_rank, "quantize.lora_rank: layers.0.moe.experts");
}

// One expert's weight oscillates around the boundary between 2 and 3 on its own grid: the next expert's grid is 1000 times as wide.
TEST(MoERecipe, OscillatingWeightsOfExpertsAreSetOnTheirGrid) {
  for (const char* scheme : {"mxfp4", "nvfp4"}) {
    MoE::Shape shape_of_32 = shape(4, 1);
    shape_of_32.hidden = 32;  // full blocks
    Root root(shape_of_32);
    RecipeRules p = plan(scheme, {"GroupedExperts"});
    p.rules[0].deosc_step = 1, p.rules[0].deosc_period = 4;
    p.rules[0].scale_choice = "none";  // a block has the same scale in each step
    apply_recipes(root, p, 1, at::kCPU);
    ParameterStore store;
    store.materialize(root, {});
    at::NoGradGuard no_grad;
    for (Parameter* weight : root.moe.experts().weights()) weight->master.zero_();
    at::Tensor w2 = root.moe.experts().weights()[1]->master;
    w2[2][0][0] = 6, w2[3][0][0] = 6000;
    Deoscillator deosc(root);
    for (int64_t step = 1; step <= 5; ++step) {
      w2[2][0][1] = step % 2 == 0 ? 2.44 : 2.56;
      store.masters_changed();
      EXPECT_EQ(deosc.step(step), step == 5) << step;
    }
    EXPECT_NEAR(w2[2][0][1].item<float>(), 3, 1e-6) << scheme;
  }
}

}  // namespace
}  // namespace halftone::nn
