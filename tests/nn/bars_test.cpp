// Accuracy bars from the recipes' sources (numerics.md 13.2), on the CPU's data sets and sizes, on every device.
#include <gtest/gtest.h>

#include "nn/linear_support.h"

namespace halftone::nn {
namespace {

// L: X ~ N(0, 1), W ~ U(+-1 / sqrt(K)).
at::Tensor data_l(int64_t n, int64_t k, uint64_t seed) {
  at::manual_seed(seed);
  return at::rand({n, k}).mul_(2).sub_(1).div_(std::sqrt(static_cast<double>(k))).to(at::kBFloat16).to(test_device());
}

// d mse_loss(y, target) / dy in y's dtype.
at::Tensor mse_gradient(const at::Tensor& y, const at::Tensor& target) {
  return ((y.to(at::kFloat) - target) * (2.0 / static_cast<double>(y.numel()))).to(y.scalar_type());
}

LinearRecipe recipe(const char* scheme, const std::function<void(RecipeOptions&)>& set = {}) {
  RecipeOptions o;
  if (set) set(o);
  return layer_recipe(scheme, o, "test").linear;
}

struct Bar {
  double y, dx, dw;
};

// The layer against the unquantised bf16 layer; each computes dY from its own Y.
void compare(const LinearRecipe& r, const at::Tensor& x, const at::Tensor& w, const at::Tensor& target, Bar bar,
             const at::Tensor& bias = {}) {
  test_step() = {1234, 1, 0};
  OneLinear plain(w, recipe("none"), bias), layer(w, r, bias);
  const LinearResult e = plain.run(x, mse_gradient(plain.forward(x), target)), y = layer.run(x, mse_gradient(layer.forward(x), target));
  EXPECT_GE(sqnr(e.y, y.y), bar.y) << r.name;
  EXPECT_GE(sqnr(e.dx, y.dx), bar.dx) << r.name;
  EXPECT_GE(sqnr(e.dw, y.dw), bar.dw) << r.name;
  if (bias.defined()) {
    EXPECT_GE(sqnr(e.db, y.db), 26) << r.name;
  }
}

class Bars : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(On, Bars, test_devices(), [](const auto& info) { return info.param; });

TEST_P(Bars, Fp8Dynamic) {
  const at::Tensor x = data_r({1024, 1024}, 1234), w = data_r({2048, 1024}, 1235), one = at::ones({}, on_device());
  for (const char* scheme : {"fp8_tensorwise", "fp8_rowwise", "fp8_rowwise_with_gw_hp"}) compare(recipe(scheme), x, w, one, {25, 24, 23});
}

TEST_P(Bars, Fp8Blockwise) {
  // sum: dY = 1 is exact, so only X and W are tested.
  const at::Tensor x = data_r({256, 4096}, 1234), w = data_l(2048, 4096, 1235);
  const at::Tensor dy = at::ones({256, 2048}, on_device(at::kBFloat16));
  const LinearResult e = OneLinear(w, recipe("none")).run(x, dy), y = OneLinear(w, recipe("fp8_blockwise")).run(x, dy);
  EXPECT_GE(sqnr(e.y, y.y), 25);
  EXPECT_GE(sqnr(e.dx, y.dx), 30);
  EXPECT_GE(sqnr(e.dw, y.dw), 30);
  compare(recipe("fp8_blockwise"), data_r({128, 128}, 0), data_r({128, 128}, 1), data_r({128, 128}, 2).to(at::kFloat), {25, 25, 25});
}

TEST_P(Bars, Mxfp8) {
  const at::Tensor x = data_r({1024, 1024}, 1234), w = data_l(2048, 1024, 1235), one = at::ones({}, on_device());
  compare(recipe("mxfp8_e4m3"), x, w, one, {27, 25, 24});
  compare(recipe("mxfp8_e4m3"), x, w, one, {26, 25, 24}, data_l(1, 2048, 7).view(-1));
  const LinearRecipe hp = recipe("mxfp8_e4m3", [](auto& o) { o.wgrad_hp = true; });
  compare(hp, x, w, one, {27, 25, 34});
}

TEST_P(Bars, BiasGradientIsTheSumOfDy) {
  const at::Tensor x = data_r({1024, 1024}, 1234), w = data_l(2048, 1024, 1235), dy = data_r({1024, 2048}, 3);
  const LinearResult r = OneLinear(w, recipe("mxfp8_e4m3"), data_l(1, 2048, 7).view(-1)).run(x, dy);
  EXPECT_GE(sqnr(dy.to(at::kDouble).sum(0), r.db), 100);  // numerics.md 13.2 asks for 40
}

TEST_P(Bars, Nvfp4OfTorchao) {
  const at::Tensor x = data_r({1024, 1024}, 1234), w = data_r({1152, 1024}, 1235);
  compare(recipe("nvfp4", [](auto& o) { o.style = "torchao"; }), x, w, at::ones({}, on_device()), {15, 14, 14});
}

TEST_P(Bars, Int8Switches) {
  const at::Tensor x = data_r({64, 64}, 1), w = data_r({64, 64}, 2), dy = data_r({64, 64}, 3);
  const LinearResult e = exact(x, w, dy);
  for (const bool output : {false, true}) {
    for (const bool grad : {false, true}) {
      const LinearRecipe r = recipe("int8", [&](auto& o) { o.output = output, o.grad_input = grad, o.grad_weight = grad; });
      const LinearResult y = OneLinear(w, r).run(x, dy);
      EXPECT_GE(sqnr(e.y, y.y), 35);
      EXPECT_GE(sqnr(e.dx, y.dx), 35);
      EXPECT_GE(sqnr(e.dw, y.dw), 35);
      EXPECT_EQ(sqnr(e.y, y.y) < 50, output);
      EXPECT_EQ(sqnr(e.dx, y.dx) < 50, grad);
      EXPECT_EQ(sqnr(e.dw, y.dw) < 50, grad);
    }
  }
}

// A layer with stored codes equals the fp32 layer of the dequantised weights.
TEST_P(Bars, StoredWeightsEqualTheirNumbers) {
  at::manual_seed(4);
  for (const char* scheme : {"int8_weight", "int4_weight"}) {
    for (const std::vector<int64_t>& lead : {std::vector<int64_t>{5}, {2, 3}, {2, 3, 4}}) {
      std::vector<int64_t> shape = lead, out = lead;
      shape.push_back(32), out.push_back(32);
      const at::Tensor x = normal(shape), dy = normal(out), w = normal({32, 32});
      const LinearRecipe r = recipe(scheme);
      OneLinear layer(w, r);
      layer.store_weight(r.w_forward);
      OneLinear plain(dequantize(*layer.weight().stored), recipe("none"));
      const LinearResult e = plain.run(x, dy), y = layer.run(x, dy);
      EXPECT_TRUE(at::allclose(y.y, e.y, 1.3e-6, 1e-5));
      EXPECT_TRUE(at::allclose(y.dx, e.dx, 1.3e-6, 1e-5));
      EXPECT_TRUE(at::allclose(y.dw, e.dw, 1.3e-6, 1e-5));
    }
  }
}

// 13.3's figures for the weight-only recipes, which have no float weight to compare with.
TEST_P(Bars, StoredWeightsAreAsExactAsTheirCodes) {
  struct Case {
    const char *scheme, *activation;
    double y, dx, y_o, dx_o;
  };
  for (const bool outliers : {false, true}) {
    const auto data = [&](uint64_t seed) { return outliers ? data_o({1024, 1024}, seed) : data_r({1024, 1024}, seed); };
    const at::Tensor x = data(1234), w = data(1235), dy = data(1236);
    const LinearResult e = exact(x, w, dy);
    for (const Case& c : {Case{"int8_weight", "none", 41.75, 41.75, 25.7, 25.75},
                          {"int8_weight", "int8", 38.9, 41.75, 0, 25.75},
                          {"int4_weight", "none", 22.1, 22.1, 20.5, 20.6}}) {
      const LinearRecipe r = recipe(c.scheme, [&](auto& o) { o.activation = c.activation; });
      OneLinear layer(w, r);
      layer.store_weight(r.w_forward);
      const LinearResult y = layer.run(x, dy);
      const double low = outliers ? 0.6 : 0.3, high = outliers ? 0.8 : 0.5, y_ref = outliers ? c.y_o : c.y,
                   dx_ref = outliers ? c.dx_o : c.dx;
      if (y_ref > 0) {
        EXPECT_GT(sqnr(e.y, y.y), y_ref - low) << c.scheme << c.activation;
        EXPECT_LT(sqnr(e.y, y.y), y_ref + high) << c.scheme << c.activation;
      }
      EXPECT_GT(sqnr(e.dx, y.dx), dx_ref - low) << c.scheme << c.activation;
      EXPECT_LT(sqnr(e.dx, y.dx), dx_ref + high) << c.scheme << c.activation;
      EXPECT_GT(sqnr(e.dw, y.dw), 90);
    }
  }
}

TEST_P(Bars, BitnetEqualsFakeQuantisation) {
  // Figures of 13.3 against the unquantised layer on R.
  const at::Tensor xb = data_r({1024, 1024}, 1234), wb = data_r({1024, 1024}, 1235), dyb = data_r({1024, 1024}, 1236);
  const LinearResult fp = exact(xb, wb, dyb), r = OneLinear(wb, recipe("bitnet")).run(xb, dyb);
  EXPECT_NEAR(sqnr(fp.y, r.y), 5.8, 0.4);
  EXPECT_NEAR(sqnr(fp.dx, r.dx), 5.8, 0.4);
  EXPECT_NEAR(sqnr(fp.dw, r.dw), 41.7, 0.4);
  // fp32 layer against straight-through fake quantisation, written out here.
  at::manual_seed(11);
  const at::Tensor x = normal({24, 32}), w = normal({32, 32}), dy = normal({24, 32});
  const at::Tensor sx = x.abs().amax(1, true).div(127).clamp_min(1e-5), xq = (x * sx.reciprocal()).round().clamp(-127, 127) * sx;
  const at::Tensor sw = w.abs().mean(at::kDouble).to(at::kFloat).clamp_min(1e-5), wq = (w * sw.reciprocal()).round().clamp(-1, 1) * sw;
  const LinearResult y = OneLinear(w, recipe("bitnet")).run(x, dy);
  EXPECT_TRUE(at::allclose(y.y, at::mm(xq, wq.t()), 1.3e-6, 1e-5));
  EXPECT_TRUE(at::allclose(y.dx, at::mm(dy, wq), 1.3e-6, 1e-5));
  EXPECT_TRUE(at::allclose(y.dw, at::mm(dy.t(), xq), 1.3e-6, 1e-5));
}

}  // namespace
}  // namespace halftone::nn
