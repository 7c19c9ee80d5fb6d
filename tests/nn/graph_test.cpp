// A layer's step in a CUDA graph (numerics.md 13.4): replays redraw, using the step in device memory.
#include <ATen/Context.h>

#include "halftone/base/error.h"
#include "halftone/ops/graph.h"
#include "nn/linear_support.h"

namespace halftone::nn {
namespace {

struct Variant {
  std::string name, scheme;
  std::function<void(RecipeOptions&)> set;
};
std::ostream& operator<<(std::ostream& out, const Variant& v) { return out << v.name; }

// Every recipe with random draws, and one without.
std::vector<Variant> variants() {
  const auto gradients = [](auto& o) { o.use_sr_grad = true; };
  const auto everything = [](auto& o) { o.stochastic_rounding = true; };
  std::vector<Variant> v = {{"fp8_tensorwise", "fp8_tensorwise", [](auto&) {}},
                            {"mxfp4", "mxfp4", gradients},
                            {"mxfp4_no_rotation", "mxfp4", [](auto& o) { o.use_sr_grad = true, o.use_hadamard = false; }},
                            {"mxfp4_rotation_only", "mxfp4", [](auto& o) { o.use_sr_grad = false, o.use_hadamard = true; }},
                            {"mxfp4_2dx", "mxfp4", [](auto& o) { o.use_2dblock_x = o.use_sr_grad = true; }},
                            {"mxfp4_macro", "mxfp4", [](auto& o) { o.two_level_scaling = "blockwise", o.use_sr_grad = true; }},
                            {"nvfp4", "nvfp4", gradients},
                            {"nvfp4_torchao", "nvfp4", [](auto& o) { o.style = "torchao"; }},
                            {"amdfp4", "amdfp4", gradients},
                            {"mxfp8_e4m3", "mxfp8_e4m3", gradients},
                            {"mxfp8_e5m2", "mxfp8_e5m2", gradients},
                            {"fp8_blockwise", "fp8_blockwise", gradients},
                            {"int8", "int8", everything},
                            {"int8_gradients", "int8", gradients},
                            {"int4", "int4", everything},
                            {"int8_weight", "int8_weight", [](auto& o) { o.activation = "int8_sr"; }}};
  return v;
}
LinearRecipe recipe_of(const Variant& v) {
  RecipeOptions options;
  v.set(options);
  return layer_recipe(v.scheme, options, v.name).linear;
}
bool draws(const OperandSpec& a) { return a.stochastic || a.hadamard == 32; }

class GraphedLinear : public OnDeviceWith<Variant> {
 protected:
  void TearDown() override {
    test_step() = {};
    at::globalContext().setDeterministicAlgorithms(false, false);
    OnDeviceWith::TearDown();
  }
  static LinearResult pass(OneLinear& layer, const at::Tensor& x, const at::Tensor& dy) {
    at::NoGradGuard no_grad;
    layer.weight().grad.zero_();
    LinearOptions options;
    options.step = test_step(), options.keep = true, options.out = x.scalar_type();
    const LinearCall call = linear_call(x, layer.fused(), options);
    return {call.y, call.backward(dy, true), layer.weight().grad, {}};
  }
  static LinearResult on_cpu(const LinearResult& r) { return {r.y.cpu().clone(), r.dx.cpu().clone(), r.dw.cpu().clone(), {}}; }
  std::unique_ptr<OneLinear> layer(const at::Tensor& w) const {
    auto made = std::make_unique<OneLinear>(w, recipe_);
    if (recipe_.w_forward.stored) made->store_weight(recipe_.w_forward);
    return made;
  }

  const LinearRecipe recipe_ = recipe_of(param());
};

TEST_P(GraphedLinear, DrawsAnewInEveryReplay) {
  at::globalContext().setDeterministicAlgorithms(true, true);  // no timed choice of algorithm: equal bits
  for (const int64_t m : {96, 17}) {
    const int64_t k = 288, n = 160;
    at::manual_seed(3);
    const at::Tensor x = normal({m, k}, at::kBFloat16), w = normal({n, k}, at::kBFloat16), dy = normal({m, n}, at::kBFloat16);
    const auto layer = this->layer(w);
    at::Tensor step = at::zeros({1}, on_device(at::kInt));
    LinearResult out{at::empty({m, n}, x.options()), at::empty({m, k}, x.options()), at::empty({n, k}, on_device()), {}};
    LinearResult eager[2];
    for (const uint32_t s : {3u, 4u}) {
      test_step() = {11, s, 64};
      ++layer->weight().version;  // weights are quantised once per step
      eager[s - 3] = on_cpu(pass(*layer, x, dy));
    }
    test_step() = {11, 1000, 64, static_cast<const uint32_t*>(step.const_data_ptr())};
    Graph graph(test_device(), [&] {
      const LinearResult r = pass(*layer, x, dy);
      out.y.copy_(r.y), out.dx.copy_(r.dx), out.dw.copy_(r.dw);
    });
    LinearResult replayed[2];
    for (const int s : {3, 4, 3}) {
      step.fill_(s);
      graph.replay();
      LinearResult& r = replayed[s - 3];
      r = on_cpu(out);
      EXPECT_TRUE(at::equal(r.y, eager[s - 3].y)) << "Y of step " << s << ", " << m << " rows";
      EXPECT_TRUE(at::equal(r.dx, eager[s - 3].dx)) << "dX of step " << s << ", " << m << " rows";
      EXPECT_TRUE(at::equal(r.dw, eager[s - 3].dw)) << "dW of step " << s << ", " << m << " rows";
    }
    EXPECT_EQ(at::equal(replayed[0].y, replayed[1].y), !draws(recipe_.x_forward) && !draws(recipe_.w_forward));
    EXPECT_EQ(at::equal(replayed[0].dx, replayed[1].dx), !draws(recipe_.dy_dgrad) && !draws(recipe_.w_dgrad));
    EXPECT_EQ(at::equal(replayed[0].dw, replayed[1].dw), !draws(recipe_.dy_wgrad) && !draws(recipe_.x_wgrad));
  }
}

// Operands made in a capture exist only in its replays, and earlier ones are not reused, so a replay sees the current weight.
TEST_P(GraphedLinear, ReadsTheWeightOfTheReplay) {
  if (recipe_.w_forward.stored) return;
  at::globalContext().setDeterministicAlgorithms(true, true);
  at::manual_seed(4);
  const at::Tensor x = normal({64, 96}, at::kBFloat16), w = normal({64, 96}, at::kBFloat16), dy = normal({64, 64}, at::kBFloat16);
  const auto layer = this->layer(w);
  at::Tensor step = at::full({1}, 3, on_device(at::kInt)), y = at::empty({64, 64}, x.options());
  const at::Tensor twice = w * 2;
  test_step() = {11, 3, 0};
  layer->weight().value.detach().copy_(twice), ++layer->weight().version;
  const at::Tensor expected = pass(*layer, x, dy).y.cpu().clone();
  layer->weight().value.detach().copy_(w), ++layer->weight().version;
  const at::Tensor before = pass(*layer, x, dy).y.cpu().clone();
  test_step().device_step = static_cast<const uint32_t*>(step.const_data_ptr());
  Graph graph(test_device(), [&] { y.copy_(pass(*layer, x, dy).y); });
  layer->weight().value.detach().copy_(twice);
  graph.replay();
  EXPECT_TRUE(at::equal(y.cpu(), expected));
  EXPECT_FALSE(at::equal(expected, before));
}

// A capture never searches for an algorithm, whatever shape comes first.
TEST_P(GraphedLinear, TakesNewShapes) {
  at::manual_seed(5);
  const at::Tensor x = normal({192, 352}, at::kBFloat16), w = normal({224, 352}, at::kBFloat16), dy = normal({192, 224}, at::kBFloat16);
  const auto layer = this->layer(w);
  at::Tensor step = at::full({1}, 3, on_device(at::kInt)), y = at::empty({192, 224}, x.options());
  test_step() = {11, 3, 0, static_cast<const uint32_t*>(step.const_data_ptr())};
  Graph graph(test_device(), [&] { y.copy_(pass(*layer, x, dy).y); });
  graph.replay();
  const at::Tensor replayed = y.cpu().clone();
  EXPECT_GE(sqnr(pass(*layer, x, dy).y.cpu(), replayed), 40);
}

TEST_P(GraphedLinear, RefusesToRepeatTheDrawsOfOneStep) {
  const bool random = draws(recipe_.x_forward) || draws(recipe_.dy_dgrad) || draws(recipe_.dy_wgrad) || draws(recipe_.x_wgrad);
  at::manual_seed(6);
  const at::Tensor x = normal({64, 96}, at::kBFloat16), w = normal({64, 96}, at::kBFloat16), dy = normal({64, 64}, at::kBFloat16);
  const auto layer = this->layer(w);
  test_step() = {11, 3, 0};
  pass(*layer, x, dy);
  const auto capture = [&] { Graph graph(test_device(), [&] { pass(*layer, x, dy); }); };
  if (!random) {
    EXPECT_NO_THROW(capture());
    return;
  }
  try {
    capture();
    ADD_FAILURE() << "captured";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("StepContext::device_step"), std::string::npos) << e.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, GraphedLinear, testing::Combine(testing::Values(std::string("cuda")), testing::ValuesIn(variants())),
                         [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param).name; });

}  // namespace
}  // namespace halftone::nn
