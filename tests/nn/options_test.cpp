// Effect of a recipe's options on a layer: the gradient estimator, the low-rank side branch, de-oscillation, bitnet norms, stored weights
// under the optimizer; and which combinations are rejected.
#include <gtest/gtest.h>

#include "halftone/base/error.h"
#include "halftone/formats/dge.h"
#include "halftone/formats/float_code.h"
#include "halftone/nn/bitnet.h"
#include "halftone/nn/deoscillation.h"
#include "halftone/nn/parameter_store.h"
#include "nn/linear_support.h"

namespace halftone::nn {
namespace {

LayerRecipe recipe(const char* scheme, const std::function<void(RecipeOptions&)>& set = {}) {
  RecipeOptions o;
  if (set) set(o);
  return layer_recipe(scheme, o, "layers.0.wq");
}

class Net : public Module {
 public:
  explicit Net(int64_t in = 64, int64_t out = 96) : first(add<Linear>("first", in, out, Init{Init::Kind::normal, 0.1})) {
    assign_names("");
  }
  Linear& first;
};

StorageOptions floats(at::ScalarType compute = at::kFloat) {
  StorageOptions s;
  s.compute = compute, s.device = test_device();
  return s;
}

class OptionsOn : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(Device, OptionsOn, test_devices(), [](const auto& info) { return info.param; });

TEST_P(OptionsOn, EstimatorScalesEachGradientBySlope) {
  // A block whose largest weight is 6 has scale 1: the other weights are the check values of numerics.md section 6.
  const std::vector<std::pair<float, float>> checks = {{0.0f, 0.2f},     {0.1f, 0.30096f}, {0.24f, 2.62653f},
                                                       {0.25f, 3.0f},    {0.7f, 0.72478f}, {3.3f, 0.41628f},
                                                       {4.5f, 0.34822f}, {6.0f, 0.2f},     {-2.2f, 0.30096f}};
  at::Tensor w = at::zeros({32, 32}, on_device());
  for (size_t i = 0; i < checks.size(); ++i) w[3][static_cast<int64_t>(i)] = checks[i].first;
  at::manual_seed(1);
  const at::Tensor x = normal({64, 32}), dy = normal({64, 32});
  for (const bool tiles : {true, false}) {
    const auto set = [&](bool dge) {
      return recipe("mxfp4", [&](auto& o) { o.use_dge = dge, o.use_sr_grad = false, o.use_2dblock_w = tiles; }).linear;
    };
    const at::Tensor ratio = OneLinear(w, set(true)).run(x, dy).dw / OneLinear(w, set(false)).run(x, dy).dw;
    for (size_t i = 0; i < checks.size(); ++i) {
      EXPECT_NEAR(ratio[3][static_cast<int64_t>(i)].item<float>(), checks[i].second, 2e-5) << checks[i].first;
    }
  }
}

// With outer scales and macro blocks the slope is evaluated at w / (all scales), before rounding: v = w * code / (quantised w).
TEST_P(OptionsOn, EstimatorReadsEveryFactorOfTheWeight) {
  at::manual_seed(2);
  const at::Tensor w = normal({64, 256}), x = normal({32, 256}), dy = normal({32, 64});
  for (const std::string scheme : {"mxfp4", "nvfp4", "amdfp4"}) {
    const auto set = [&](bool dge) {
      return recipe(scheme.c_str(),
                    [&](auto& o) {
                      o.use_dge = dge, o.use_sr_grad = false;
                      if (scheme == "mxfp4") o.two_level_scaling = "blockwise";
                    })
          .linear;
    };
    const at::Tensor ratio = OneLinear(w, set(true)).run(x, dy).dw / OneLinear(w, set(false)).run(x, dy).dw;
    CopyRequest request;
    request.spec = set(true).w_forward, request.codes = true;
    const Operand operand = quantize(w, &request, nullptr).row;
    const at::Tensor q = dequantize(operand);
    int64_t seen = 0;
    for (int64_t r = 0; r < 64; r += 3) {
      for (int64_t c = 0; c < 256; c += 5) {
        const float code = decode(Float::e2m1, operand.codes[r][c].item<uint8_t>());
        if (code == 0 || std::isnan(ratio[r][c].item<float>())) continue;  // argument cannot be recovered, or dW = 0
        const float v = w[r][c].item<float>() * code / q[r][c].item<float>();
        const float low = dge_factor(v * (1 - 1e-6f)), high = dge_factor(v * (1 + 1e-6f)), middle = dge_factor(v);
        EXPECT_NEAR(ratio[r][c].item<float>(), middle, 1e-4f * middle + std::fabs(high - low)) << scheme << " at " << r << ", " << c;
        ++seen;
      }
    }
    EXPECT_GT(seen, 500);
  }
}

TEST_P(OptionsOn, SideProductStartsAtZeroAndLearns) {
  at::manual_seed(3);
  for (const char* scheme : {"mxfp4", "mxfp8_e4m3", "nvfp4"}) {
    Net net(128, 256);
    net.first.set_recipe(recipe(scheme, [](auto& o) { o.lora_rank = 32; }));
    ParameterStore store;
    store.materialize(net, floats());
    store.initialize(1);
    EXPECT_EQ(store.parameters().size(), 4);
    EXPECT_EQ(store.parameters()[1]->fqn, "first.lora_v");
    test_step() = {1, 1, 0};
    const at::Tensor x = normal({96, 128}).set_requires_grad(true), dy = normal({96, 256});
    OneLinear dense(net.first.weight.weight.value, recipe(scheme).linear);
    at::AutoGradMode grad(true);
    const at::Tensor y = net.first(x, test_step());
    EXPECT_TRUE(at::allclose(y, dense.forward(x), 1e-4, 1e-4));
    torch::autograd::backward({y}, {dy});
    Parameter &v = *store.parameters()[1], &sigma = *store.parameters()[2], &u = *store.parameters()[3];
    EXPECT_GT(v.weight.grad.norm().item<double>(), 0);      // through u
    EXPECT_EQ(sigma.weight.grad.norm().item<double>(), 0);  // x v is zero
    EXPECT_EQ(u.weight.grad.norm().item<double>(), 0);
    at::NoGradGuard no_grad;
    v.master.normal_(0, 0.1), sigma.master.normal_(1, 0.1);
    store.masters_changed();
    const at::Tensor side = at::mm(at::mm(x, v.master.t()) * sigma.master, u.master.t());
    EXPECT_GT(sqnr(at::mm(x, net.first.weight.master.t()) + side, net.first(x, test_step())), 10);
    EXPECT_GT(sqnr(side, net.first(x, test_step()) - dense.forward(x)), 10);
  }
}

// A head's loss is computed without autograd: its side branch must count there as in a layer.
TEST_P(OptionsOn, SideProductOfAHeadCountsInItsLoss) {
  at::manual_seed(4);
  Net net(128, 256);
  net.first.set_recipe(recipe("mxfp8_e4m3", [](auto& o) { o.lora_rank = 32; }));
  ParameterStore store;
  store.materialize(net, floats());
  store.initialize(1);
  {
    at::NoGradGuard no_grad;
    store.parameters()[1]->master.normal_(0, 0.1), store.parameters()[2]->master.normal_(1, 0.1);
    store.masters_changed();
  }
  test_step() = {1, 1, 0};
  const at::Tensor labels = at::arange(1280, on_device(at::kLong)).remainder(256);
  const at::Tensor x = normal({1280, 128}).set_requires_grad(true), again = x.detach().clone().set_requires_grad(true);
  at::AutoGradMode grad(true);
  const at::Tensor expected = at::cross_entropy_loss(net.first(x, test_step()), labels);
  torch::autograd::backward({expected}, {});
  std::vector<at::Tensor> gradients;
  for (Parameter* p : store.parameters()) gradients.push_back(p->weight.grad.clone()), p->weight.grad.zero_();
  const HeadLoss found = head_loss(again, net.first.head(), labels, 1.0 / 1280, test_step());
  torch::autograd::backward({found.loss}, {});
  EXPECT_NEAR(found.loss.item<double>(), expected.item<double>(), 1e-5 * expected.item<double>());
  EXPECT_GT(sqnr(x.grad(), again.grad()), 60);
  for (size_t i = 0; i < gradients.size(); ++i) EXPECT_GT(sqnr(gradients[i], store.parameters()[i]->weight.grad), 60) << i;
}

// Weights that oscillate around a rounding boundary are set to the grid; those that drift are not changed.
TEST_P(OptionsOn, OscillatingWeightsAreSetOnTheGrid) {
  Net net(64, 32);
  net.first.set_recipe(recipe("mxfp4", [](auto& o) { o.deosc_step = 5, o.deosc_period = 4, o.deosc_ratio = 4.0, o.use_2dblock_w = true; }));
  ParameterStore store;
  store.materialize(net, floats(at::kBFloat16));
  at::NoGradGuard no_grad;
  at::Tensor& w = net.first.weight.master;
  w.zero_();
  w.select(1, 0).fill_(6), w.select(1, 32).fill_(6);  // scale 1 in both tiles
  Deoscillator deosc(net);
  for (int64_t step = 1; step <= 9; ++step) {
    const double hop = step % 2 == 0 ? 2.44 : 2.56;  // around the boundary 2.5 between 2 and 3
    w[4][10] = hop, w[7][40] = 0.1 * static_cast<double>(step), w[9][50] = hop;
    if (step >= 8) w[9][50] = 0.3;  // drifted
    store.masters_changed();
    EXPECT_EQ(deosc.step(step), step == 9) << step;
    EXPECT_EQ(deosc.state(net.first.weight).size(), step < 5 ? 0 : 3);
  }
  EXPECT_EQ(w[4][10].item<float>(), 3.0f);  // Q(2.56)
  EXPECT_NEAR(w[7][40].item<float>(), 0.9f, 1e-6);
  EXPECT_NEAR(w[9][50].item<float>(), 0.3f, 1e-6);
  EXPECT_EQ(w[0][0].item<float>(), 6.0f);
  for (const auto& [name, tensor] : deosc.state(net.first.weight)) {
    EXPECT_TRUE(name == "deosc_w_prev" ? at::equal(tensor, w) : tensor.abs().max().item<float>() == 0) << name;
  }
}

TEST_P(OptionsOn, BitnetLayersNormaliseTheirInput) {
  Net net(64, 96);
  net.first.set_recipe(recipe("bitnet"));
  add_bitnet_norms(net, {&net.first});
  ParameterStore store;
  store.materialize(net, floats());
  store.initialize(1);
  ASSERT_EQ(store.parameters().size(), 2);
  EXPECT_EQ(store.parameters()[1]->fqn, "first.norm.weight");
  const at::Tensor x = normal({8, 64}) * 50;
  const at::Tensor normal = x * (x.square().mean(1, true) + 1e-5).rsqrt();
  EXPECT_TRUE(at::allclose(net.first(x, test_step()), OneLinear(net.first.weight.weight.value, recipe("bitnet").linear).forward(normal),
                           1e-4, 1e-4));
}

// The optimizer step on codes: AdamW on the dequantised values, fresh scales, unbiased stochastic rounding.
TEST_P(OptionsOn, StoredWeightsAreRequantisedOnceAStep) {
  for (const char* scheme : {"int8_weight", "int4_weight"}) {
    Net net(64, 96);
    net.first.set_recipe(recipe(scheme));
    ParameterStore store;
    store.materialize(net, floats(at::kBFloat16));
    store.initialize(1);
    ASSERT_EQ(store.units().size(), 1);
    FlatParameters& flat = store.units()[0].flat;
    EXPECT_FALSE(flat.param.defined());
    EXPECT_FALSE(net.first.weight.master.defined());
    flat.states = {at::zeros_like(flat.grad), at::zeros_like(flat.grad)};
    OptimizerSegment segment;
    segment.count = 64 * 96, segment.lr = 1e-3, segment.weight_decay = 0.1, segment.key = philox_key(7, "first.weight#param");
    flat.segments = {segment};
    const at::Tensor before = dequantize(*net.first.weight.weight.stored);
    at::manual_seed(6);
    flat.grad.narrow(0, 0, 64 * 96).normal_();
    // The same step in floating point.
    FlatParameters reference;
    reference.param = before.clone().view(-1), reference.grad = flat.grad.clone();
    for (const at::Tensor& state : flat.states) reference.states.push_back(state.clone());
    reference.segments = {segment};
    optimizer_step(reference, {}, 1);
    optimizer_step(flat, {}, 1);
    EXPECT_EQ(flat.grad.abs().max().item<float>(), 0);
    EXPECT_TRUE(at::equal(flat.states[0], reference.states[0]));
    const StoredWeight& s = *net.first.weight.weight.stored;
    const at::Tensor wanted = reference.param.view({96, 64}), found = dequantize(s);
    const at::Tensor quantum = scheme[3] == '8' ? s.scales.unsqueeze(1).expand({96, 64}) : s.scales.repeat_interleave(32, 1);
    const at::Tensor error = (found - wanted) / quantum;
    EXPECT_LT(error.abs().max().item<float>(), 1.001);
    EXPECT_GT(error.abs().max().item<float>(), 0.6);                            // stochastic, not to nearest
    EXPECT_NEAR(error.mean().item<float>(), 0, 4 * 0.41 / std::sqrt(96 * 64));  // 4 standard errors
    if (scheme[3] == '8') {
      EXPECT_TRUE(at::allclose(s.scales, wanted.abs().amax(1) / 127, 1e-6, 0));
    }
    // An element's draw is a function of key, step and index only.
    StoredWeight again = allocate_stored(s.spec, 96, 64, test_device());
    Rounding rounding;
    rounding.stochastic = true, rounding.key = segment.key, rounding.step = 1;
    halftone::store(wanted.contiguous(), rounding, again);
    EXPECT_TRUE(at::equal(again.codes, s.codes));
    rounding.step = 2;
    halftone::store(wanted.contiguous(), rounding, again);
    EXPECT_FALSE(at::equal(again.codes, s.codes));
  }
}

// numerics.md 7.4: the error of every illegal combination names option, scheme and module.
TEST(Options, IllegalCombinationsAreRefused) {
  struct Case {
    const char *scheme, *option;
    std::function<void(RecipeOptions&)> set;
  };
  const std::vector<Case> cases = {
      {"fp8_rowwise", "use_2dblock_x", [](auto& o) { o.use_2dblock_x = true; }},
      {"int8", "use_2dblock_w", [](auto& o) { o.use_2dblock_w = true; }},
      {"bitnet", "use_2dblock_x", [](auto& o) { o.use_2dblock_x = true; }},
      {"fp8_tensorwise", "use_sr_grad", [](auto& o) { o.use_sr_grad = true; }},
      {"int8_weight", "use_sr_grad", [](auto& o) { o.use_sr_grad = true; }},
      {"mxfp8_e4m3", "use_hadamard", [](auto& o) { o.use_hadamard = true; }},
      {"int4", "use_hadamard", [](auto& o) { o.use_hadamard = true; }},
      {"mxfp8_e5m2", "use_dge", [](auto& o) { o.use_dge = true; }},
      {"fp8_blockwise", "deosc_step", [](auto& o) { o.deosc_step = 10; }},
      {"mxfp4", "use_hadamard", [](auto& o) { o.use_hadamard = true, o.use_2dblock_x = true; }},
      {"nvfp4", "use_hadamard", [](auto& o) { o.use_hadamard = true, o.wgrad_hp = true; }},
      {"mxfp4", "two_level_scaling", [](auto& o) { o.two_level_scaling = "tensorwise"; }},
      {"nvfp4", "two_level_scaling", [](auto& o) { o.two_level_scaling = "blockwise"; }},
      {"int8", "two_level_scaling", [](auto& o) { o.two_level_scaling = "tensorwise"; }},
      {"nvfp4", "clip_mode", [](auto& o) { o.clip_mode = "static"; }},
      {"mxfp4", "clip_mode", [](auto& o) { o.clip_mode = "static", o.use_2dblock_x = true; }},
      {"mxfp4", "clip_mode", [](auto& o) { o.clip_mode = "static", o.use_uos = true; }},
      {"mxfp4", "clip_mode", [](auto& o) { o.clip_mode = "static", o.wgrad_hp = true; }},
      {"mxfp4", "clip_mode", [](auto& o) { o.preset = "alto", o.clip_mode = "dynamic"; }},
      {"mxfp4", "clip_mode", [](auto& o) { o.clip_mode = "half"; }},
      {"mxfp8_e4m3", "use_uos", [](auto& o) { o.use_uos = true; }},
      {"mxfp4", "use_uos", [](auto& o) { o.use_uos = true, o.scale_mode = "even"; }},
      {"nvfp4", "scale_mode", [](auto& o) { o.scale_mode = "even"; }},
      {"mxfp4", "scale_mode", [](auto& o) { o.scale_mode = "nearest"; }},
      {"mxfp4", "style", [](auto& o) { o.style = "torchao"; }},
      {"mxfp4", "scale_choice", [](auto& o) { o.scale_choice = "four_over_six"; }},
      {"nvint4", "scale_choice", [](auto& o) { o.scale_choice = "four_over_six"; }},
      {"nvfp4", "scale_choice", [](auto& o) { o.scale_choice = "squared"; }},
      {"nvfp4", "scale_choice_error", [](auto& o) { o.scale_choice = "none", o.scale_choice_error = "absolute"; }},
      {"nvfp4", "scale_choice_error", [](auto& o) { o.scale_choice = "four_over_six", o.scale_choice_error = "mean"; }},
      {"nvint4", "use_dge", [](auto& o) { o.use_dge = true; }},
      {"mxint8", "use_hadamard", [](auto& o) { o.use_hadamard = true; }},
      {"nvfp4", "use_2dblock_x", [](auto& o) { o.style = "torchao", o.use_2dblock_x = true; }},
      {"nvfp4", "use_dge", [](auto& o) { o.style = "torchao", o.use_dge = true; }},
      {"nvfp4", "use_sr_grad", [](auto& o) { o.style = "torchao", o.use_sr_grad = false; }},
      {"nvfp4", "two_level_scaling", [](auto& o) { o.style = "torchao", o.two_level_scaling = "none"; }},
      {"nvfp4", "wgrad_hp", [](auto& o) { o.style = "torchao", o.wgrad_hp = true; }},
      {"fp8_rowwise", "lora_rank", [](auto& o) { o.lora_rank = 32; }},
      {"mxfp4", "lora_rank", [](auto& o) { o.lora_rank = 16; }},
      {"nvfp4", "lora_rank", [](auto& o) { o.lora_rank = 24; }},
      {"int8", "wgrad_hp", [](auto& o) { o.wgrad_hp = true; }},
      {"fp8_tensorwise", "wgrad_hp", [](auto& o) { o.wgrad_hp = true; }},
      {"fp8_rowwise", "stochastic_rounding", [](auto& o) { o.stochastic_rounding = true; }},
      {"fp8_rowwise", "grad_weight", [](auto& o) { o.grad_weight = false; }},
      {"mxfp4", "grad_weight", [](auto& o) { o.grad_weight = false, o.wgrad_hp = true; }},
      {"mxfp4", "use_hadamard", [](auto& o) { o.use_hadamard = true, o.grad_weight = false; }},
      {"mxfp4", "use_hadamard", [](auto& o) { o.use_hadamard = true, o.x_hp = true; }},
      {"nvfp4", "use_hadamard", [](auto& o) { o.use_hadamard = true, o.dy_hp = true; }},
      {"mxfp4", "clip_mode", [](auto& o) { o.clip_mode = "static", o.grad_weight = false; }},
      {"mxfp4", "clip_mode", [](auto& o) { o.clip_mode = "static", o.dy_hp = true; }},
      {"mxfp4", "clip_mode", [](auto& o) { o.clip_mode = "dynamic", o.x_hp = true; }},
      {"amdfp4", "use_sr_grad", [](auto& o) { o.use_sr_grad = true, o.dy_hp = true; }},
      {"mxfp8_e4m3", "use_sr_grad", [](auto& o) { o.use_sr_grad = true, o.grad_input = false, o.wgrad_hp = true; }},
      {"nvfp4", "use_dge", [](auto& o) { o.use_dge = true, o.output = false; }},
      {"nvfp4", "use_dge", [](auto& o) { o.use_dge = true, o.w_hp = true; }},
      {"mxfp4", "deosc_step", [](auto& o) { o.deosc_step = 10, o.output = false; }},
      {"mxfp4", "deosc_step", [](auto& o) { o.deosc_step = 10, o.w_hp = true; }},
      {"mxfp4", "deosc_period", [](auto& o) { o.deosc_period = 10, o.w_hp = true; }},
      {"nvfp4", "x_hp", [](auto& o) { o.style = "torchao", o.x_hp = true; }},
      {"nvfp4", "output", [](auto& o) { o.style = "torchao", o.output = false; }},
      {"int8", "x_hp", [](auto& o) { o.x_hp = true; }},
      {"fp8_rowwise", "w_hp", [](auto& o) { o.w_hp = true; }},
      {"int8", "activation", [](auto& o) { o.activation = "int8"; }},
      {"int8_weight", "activation", [](auto& o) { o.activation = "int4"; }},
      {"fp8_blockwise", "fast_accum", [](auto& o) { o.fast_accum = std::vector<std::string>{"forward"}; }},
      {"fp8_rowwise", "fast_accum", [](auto& o) { o.fast_accum = std::vector<std::string>{"backward"}; }},
      {"fp8_rowwise_with_gw_hp", "fast_accum", [](auto& o) { o.fast_accum = std::vector<std::string>{"wgrad"}; }},
      {"mxfp8_e4m3", "round_scales_to_power_of_2", [](auto& o) { o.round_scales_to_power_of_2 = true; }},
      {"fp8_rowwise_with_gw_hp", "auto_filter_small_kn", [](auto& o) { o.auto_filter_small_kn = true; }},
      {"mxfp4", "deosc_period", [](auto& o) { o.preset = "alto", o.deosc_period = 100; }},
      {"nvfp4", "deosc_ratio", [](auto& o) { o.style = "torchao", o.deosc_ratio = 8; }},
      {"mxfp4", "deosc_ratio", [](auto& o) { o.deosc_step = 1, o.deosc_ratio = 0; }},
      {"mxfp4", "deosc_ratio", [](auto& o) { o.deosc_step = 1, o.deosc_ratio = 3; }},
      {"amdfp4", "deosc_ratio", [](auto& o) { o.deosc_step = 1, o.deosc_ratio = 33; }},
      {"int8", "use_sr_grad", [](auto& o) { o.stochastic_rounding = true, o.use_sr_grad = true; }},
      {"int4", "use_sr_grad", [](auto& o) { o.stochastic_rounding = true, o.use_sr_grad = false; }},
      {"mxfp4", "preset", [](auto& o) { o.preset = "best"; }},
      {"mxfp5", "scheme", [](auto&) {}},
  };
  for (const Case& c : cases) {
    try {
      recipe(c.scheme, c.set);
      ADD_FAILURE() << c.scheme << " took " << c.option;
    } catch (const Error& e) {
      const std::string text = e.what();
      EXPECT_EQ(text.rfind(std::string("quantize.") + c.option, 0), 0) << text;
      EXPECT_NE(text.find("layers.0.wq"), std::string::npos) << text;
      if (std::string(c.option) != "preset") {
        EXPECT_NE(text.find(c.scheme), std::string::npos) << text;
      }
      EXPECT_EQ(text.find('\n'), std::string::npos);
    }
  }
}

TEST(Options, PresetsFillWhatIsNotSet) {
  const LinearRecipe recommended = recipe("nvfp4").linear, alto = recipe("nvfp4", [](auto&o) { o.preset = "alto"; }).linear;
  EXPECT_EQ(recommended.x_wgrad.hadamard, 32);
  EXPECT_TRUE(recommended.dy_dgrad.stochastic);
  EXPECT_EQ(recommended.w_forward.two_level, TwoLevel::tensor);
  EXPECT_EQ(alto.x_wgrad.hadamard, 0);
  EXPECT_FALSE(alto.dy_dgrad.stochastic);
  EXPECT_EQ(alto.w_forward.two_level, TwoLevel::none);
  EXPECT_EQ(recipe("nvfp4", [](auto& o) { o.preset = "alto"; }).warnings.size(), 1);
  EXPECT_TRUE(recipe("nvfp4").warnings.empty());
  // The recommended rotation is dropped if options leave nothing to rotate.
  EXPECT_EQ(recipe("mxfp4", [](auto& o) { o.use_2dblock_x = true; }).linear.x_wgrad.hadamard, 0);
  const LinearRecipe torchao = recipe("nvfp4", [](auto& o) { o.preset = "alto", o.style = "torchao"; }).linear;
  const auto deosc_step = [](const char* scheme, const std::function<void(RecipeOptions&)>& set = {}) {
    return recipe(scheme, set).deosc.step;
  };
  for (const char* scheme : {"mxfp4", "nvfp4", "amdfp4"}) EXPECT_EQ(deosc_step(scheme), 2000);
  EXPECT_EQ(deosc_step("mxfp4", [](auto& o) { o.deosc_step = 0; }), 0);
  EXPECT_EQ(deosc_step("mxfp4", [](auto& o) { o.preset = "alto"; }), 0);
  EXPECT_EQ(deosc_step("nvfp4", [](auto& o) { o.style = "torchao"; }), 0);
  EXPECT_EQ(deosc_step("mxfp8_e4m3"), 0);
  EXPECT_EQ(torchao.x_wgrad.hadamard, 16);
  EXPECT_EQ(torchao.w_forward.chain, Fp4Chain::torchao);
  EXPECT_TRUE(torchao.dy_wgrad.stochastic);
  EXPECT_FALSE(torchao.x_wgrad.stochastic);
  EXPECT_FALSE(recipe("fp8_rowwise", [](auto& o) { o.fast_accum = std::vector<std::string>{}; }).linear.fast_accum[0]);
}

// A letter per operand, in the order of a LinearRecipe: q quantised, h in the compute dtype.
std::string operands_text(const LinearRecipe& r) {
  std::string text;
  for (const OperandSpec* s : {&r.x_forward, &r.w_forward, &r.dy_dgrad, &r.w_dgrad, &r.dy_wgrad, &r.x_wgrad}) {
    text += s->quantized() ? 'q' : 'h';
    EXPECT_TRUE(s->quantized() || *s == OperandSpec()) << r.name << ": a property of an unquantised operand";
  }
  return text;
}

TEST(Options, ProductsAndOperandsAreLeftInTheComputeDtype) {
  struct Case {
    void (*set)(RecipeOptions&);
    const char* operands;
    bool rotates, deoscillates;
  };
  for (const Case& c : std::initializer_list<Case>{{[](RecipeOptions&) {}, "qqqqqq", true, true},
                                                   {[](RecipeOptions& o) { o.output = false; }, "hhqqqq", true, false},
                                                   {[](RecipeOptions& o) { o.grad_input = false; }, "qqhhqq", true, true},
                                                   {[](RecipeOptions& o) { o.grad_weight = false; }, "qqqqhh", false, true},
                                                   {[](RecipeOptions& o) { o.x_hp = true; }, "hqqqqh", false, true},
                                                   {[](RecipeOptions& o) { o.w_hp = true; }, "qhqhqq", true, false},
                                                   {[](RecipeOptions& o) { o.dy_hp = true; }, "qqhqhq", false, true},
                                                   {[](RecipeOptions& o) { o.x_hp = o.dy_hp = true; }, "hqhqhh", false, true},
                                                   {[](RecipeOptions& o) { o.output = false, o.dy_hp = true; }, "hhhqhq", false, false}}) {
    for (const char* scheme : {"mxfp4", "nvfp4", "amdfp4"}) {
      const LayerRecipe r = recipe(scheme, [&](RecipeOptions& o) { o.use_2dblock_w = true, c.set(o); });
      EXPECT_EQ(operands_text(r.linear), c.operands) << scheme;
      EXPECT_EQ(r.linear.x_wgrad.hadamard, c.rotates ? 32 : 0) << scheme << " " << c.operands;
      EXPECT_EQ(r.linear.dy_wgrad.hadamard, c.rotates ? 32 : 0) << scheme << " " << c.operands;
      EXPECT_EQ(r.deosc.step, c.deoscillates ? 2000 : 0) << scheme << " " << c.operands;
      // W of dgrad reads the codes of the forward W only if these exist.
      EXPECT_EQ(r.linear.w_dgrad.same_as_forward, r.linear.w_dgrad.quantized() && r.linear.w_forward.quantized()) << c.operands;
    }
    EXPECT_EQ(operands_text(recipe("mxfp8_e4m3", c.set).linear), c.operands);
  }
  const LinearRecipe square = recipe("mxfp4", [](auto& o) { o.use_2dblock_x = true, o.output = o.grad_input = false; }).linear;
  EXPECT_FALSE(square.x_wgrad.same_as_forward || square.dy_wgrad.same_as_forward);
  EXPECT_EQ(operands_text(recipe("fp8_rowwise", [](auto& o) { o.wgrad_hp = true; }).linear), "qqqqhh");
}

}  // namespace
}  // namespace halftone::nn
