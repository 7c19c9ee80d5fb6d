// Bars of numerics.md 13.2 that need a GPU: data A, and GEMMs above 0.1 TFLOP.
#include <ATen/ops/silu.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "halftone/ops/hardware.h"
#include "halftone/ops/product.h"
#include "nn/linear_support.h"

namespace halftone::nn::large_bars_test {
namespace {

class LargeBars : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    test_step() = {1234, 1, 0};
  }
};
INSTANTIATE_TEST_SUITE_P(On, LargeBars, testing::Values(std::string("cuda")), [](const auto& info) { return info.param; });

LinearRecipe recipe(const char* scheme, const std::function<void(RecipeOptions&)>& set = {}) {
  RecipeOptions o;
  if (set) set(o);
  return layer_recipe(scheme, o, "test").linear;
}

// Like data O, but from the device's generator, reseeded before every tensor: X, W and the target share leading values.
at::Tensor data_a(at::IntArrayRef shape) {
  at::manual_seed(1234);
  const at::Tensor x = at::randn(shape, on_device()).to(at::kBFloat16);
  const at::Tensor mask = at::rand(shape, on_device()).lt(0.005).to(at::kBFloat16);
  return x + (at::randn(shape, on_device()).to(at::kBFloat16) * 100) * mask;
}
at::Tensor device_randn(at::IntArrayRef shape, uint64_t seed) {
  at::manual_seed(seed);
  return at::randn(shape, on_device()).to(at::kBFloat16);
}

using Decibels = std::array<double, 3>;  // Y, dX, dW

// Against the unquantised layer under mse_loss(Y, target); each layer computes dY from its own Y.
Decibels measure(const LinearRecipe& r, int64_t m, int64_t k, int64_t n) {
  const at::Tensor x = data_a({m, k}), w = data_a({n, k}), target = data_a({m, n});
  const auto run = [&](const LinearRecipe& recipe) {
    OneLinear layer(w, recipe);
    const at::Tensor y = layer.forward(x);
    const at::Tensor dy = ((y.to(at::kFloat) - target.to(at::kFloat)) * (2.0 / static_cast<double>(y.numel()))).to(y.scalar_type());
    return layer.run(x, dy);
  };
  const LinearResult e = run(recipe("none")), q = run(r);
  return {sqnr(e.y, q.y), sqnr(e.dx, q.dx), sqnr(e.dw, q.dw)};
}

struct Shape {
  int64_t m, k, n;
};
constexpr Shape kSmall{512, 128, 384}, kLarge{4096, 2048, 1024};

void expect(const char* what, const Decibels& found, const Decibels& bars) {
  constexpr const char* kNames[] = {"Y", "dX", "dW"};
  for (size_t i = 0; i < 3; ++i) EXPECT_GE(found[i], bars[i]) << what << " " << kNames[i];
}

TEST_P(LargeBars, Mxfp8OnDataA) {
  for (const Shape& s : {kSmall, kLarge}) {
    expect("e4m3", measure(recipe("mxfp8_e4m3"), s.m, s.k, s.n), {24, 15, 15});
    expect("e5m2", measure(recipe("mxfp8_e5m2"), s.m, s.k, s.n), {19, 12, 12});
  }
}

struct Options {
  const char* name;
  std::function<void(RecipeOptions&)> set;
};

TEST_P(LargeBars, Mxfp4OnDataA) {
  const std::vector<Options> all = {
      {"recommended", [](auto&) {}},
      {"alto", [](auto& o) { o.preset = "alto"; }},
      {"1-D W", [](auto& o) { o.preset = "alto", o.use_2dblock_w = false; }},
      {"2-D X", [](auto& o) { o.preset = "alto", o.use_2dblock_x = true; }},
      {"rotated", [](auto& o) { o.preset = "alto", o.use_hadamard = true; }},
      {"stochastic", [](auto& o) { o.preset = "alto", o.use_sr_grad = true; }},
      {"uos", [](auto& o) { o.preset = "alto", o.use_uos = true; }},
      {"macro blocks", [](auto& o) { o.two_level_scaling = "blockwise"; }},
      {"dynamic clip", [](auto& o) { o.clip_mode = "dynamic"; }},
      {"static clip", [](auto& o) { o.clip_mode = "static"; }},
  };
  for (const Options& o : all) {
    const bool fixed = std::string(o.name) == "static clip", one_dim = std::string(o.name) == "1-D W";
    for (const Shape& s : {kSmall, kLarge}) {
      const double bar = fixed ? 6 : 8.4;
      expect(o.name, measure(recipe("mxfp4", o.set), s.m, s.k, s.n), {one_dim ? 10 : bar, bar, bar});
    }
  }
}

// nvfp4 and amdfp4 with their outer scales: every figure, and median and mean of all figures for a class of K.
void fp4_on_data_a(bool stochastic) {
  struct Class {
    std::vector<Shape> shapes;
    double each, middle;
  };
  const std::vector<Class> classes = {{{kSmall, {256, 192, 512}}, stochastic ? 12.0 : 16.0, stochastic ? 14.0 : 17.5},
                                      {{{512, 256, 384}, {1024, 512, 512}}, stochastic ? 10.0 : 14.0, stochastic ? 12.0 : 17.0},
                                      {{kLarge, {1024, 1024, 1024}}, stochastic ? 9.0 : 12.0, stochastic ? 11.0 : 14.0}};
  for (const Class& c : classes) {
    std::vector<double> figures;
    for (const char* scheme : {"nvfp4", "amdfp4"}) {
      for (const bool tiles : {true, false}) {
        for (const bool rotated : {true, false}) {
          const LinearRecipe r =
              recipe(scheme, [&](auto& o) { o.use_sr_grad = stochastic, o.use_2dblock_w = tiles, o.use_hadamard = rotated; });
          for (const Shape& s : c.shapes) {
            const Decibels found = measure(r, s.m, s.k, s.n);
            figures.insert(figures.end(), found.begin(), found.end());
            const std::string what = fmt::format("{} {} {} K {}", scheme, tiles ? "2-D W" : "1-D W", rotated ? "rotated" : "", s.k);
            expect(what.c_str(), found, {c.each, c.each, c.each});
          }
        }
      }
    }
    std::sort(figures.begin(), figures.end());
    EXPECT_GE(figures[figures.size() / 2], c.middle) << "median, K " << c.shapes[0].k;
    EXPECT_GE(std::accumulate(figures.begin(), figures.end(), 0.0) / static_cast<double>(figures.size()), c.middle)
        << "mean, K " << c.shapes[0].k;
  }
}
TEST_P(LargeBars, Fp4ToNearestOnDataA) { fp4_on_data_a(false); }
TEST_P(LargeBars, Fp4StochasticOnDataA) { fp4_on_data_a(true); }

// W ~ U(+-1 / sqrt(K)) of data L.
at::Tensor data_l_weight(int64_t n, int64_t k, uint64_t seed) {
  at::manual_seed(seed);
  return at::rand({n, k}, on_device()).mul_(2).sub_(1).div_(std::sqrt(static_cast<double>(k))).to(at::kBFloat16);
}

// The feed-forward block of Llama: w2(silu(w1 x) * w3 x), sum of Y.
TEST_P(LargeBars, Fp8FeedForward) {
  const int64_t m = 8192, d = 4096, h = 14336;
  const at::Tensor x = device_randn({m, d}, 1234);
  const at::Tensor w1 = data_l_weight(h, d, 1235), w3 = data_l_weight(h, d, 1236), w2 = data_l_weight(d, h, 1237);
  struct Result {
    at::Tensor y;
    std::array<at::Tensor, 3> dw;
  };
  const auto run = [&](const LinearRecipe& r) {
    OneLinear a(w1, r), b(w3, r), c(w2, r);
    at::AutoGradMode grad(true);
    const at::Tensor input = x.detach().set_requires_grad(true);
    const StepContext& s = test_step();
    const at::Tensor y = linear(at::silu(linear(input, a.fused(), s)) * linear(input, b.fused(), s), c.fused(), s);
    torch::autograd::backward({y}, {at::ones_like(y)});
    return Result{y.detach(), {a.weight().grad, b.weight().grad, c.weight().grad}};
  };
  const Result e = run(recipe("none"));
  for (const char* scheme : {"fp8_tensorwise", "fp8_rowwise", "fp8_rowwise_with_gw_hp"}) {
    const Result q = run(recipe(scheme));
    EXPECT_GE(sqnr(e.y, q.y), 20) << scheme;
    for (size_t i = 0; i < 3; ++i) EXPECT_GE(sqnr(e.dw[i], q.dw[i]), 20) << scheme << " weight " << i;
  }
}

TEST_P(LargeBars, Fp8BlockwiseUpToTheVocabulary) {
  for (const int64_t m : {256, 2048}) {
    for (const int64_t n : {4096, 128256}) {
      const int64_t k = 4096;
      const at::Tensor x = device_randn({m, k}, 1234);
      const at::Tensor w = data_l_weight(n, k, 1235);
      const at::Tensor dy = at::ones({m, n}, on_device(at::kBFloat16));
      const LinearResult e = OneLinear(w, recipe("none")).run(x, dy), q = OneLinear(w, recipe("fp8_blockwise")).run(x, dy);
      expect(fmt::format("{} x {}", m, n).c_str(), {sqnr(e.y, q.y), sqnr(e.dx, q.dx), sqnr(e.dw, q.dw)}, {25, 30, 30});
    }
  }
}

// int8 and int4: every sum of codes is exact, (sum * row scale) * column scale in fp32 (numerics.md 13.1).
TEST_P(LargeBars, IntegerProductsAreExact) {
  for (const Element element : {Element::int8, Element::int4}) {
    const OperandSpec spec = detail::rows(element);
    for (const Shape& s :
         {Shape{1024, 1024, 1024}, {2048, 2048, 2048}, {4096, 4096, 4096}, {150, 2880, 1408}, {17, 1408, 2880}, {1, 96, 32}}) {
      const auto quantised = [&](int64_t rows, uint64_t seed) {
        CopyRequest request = copy_request(spec, spec, DType::bf16, CopyUse::rows, false, process_hardware(test_device().type()));
        return quantize(device_randn({rows, s.k}, seed), &request, nullptr).row;
      };
      const Operand a = quantised(s.m, 1), b = quantised(s.n, 2);
      const at::Tensor found = at::empty({s.m, s.n}, on_device());
      multiply(a, b, found, {});
      const auto codes = [](const Operand& o) { return o.codes.view(at::kChar).to(at::kDouble); };
      const at::Tensor sums = at::mm(codes(a), codes(b).t()).to(at::kFloat);  // exact in fp64
      EXPECT_TRUE(at::equal(found, sums * a.scales.unsqueeze(1) * b.scales)) << s.m << " x " << s.k << " x " << s.n;
    }
  }
}

}  // namespace
}  // namespace halftone::nn::large_bars_test
