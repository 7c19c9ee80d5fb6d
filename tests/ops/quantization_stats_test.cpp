#include "halftone/ops/quantization_stats.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>
#include <map>
#include <ostream>

#include "ops/recipe_reference.h"
#include "ops/test_device.h"

namespace halftone {

std::ostream& operator<<(std::ostream& out, const LinearRecipe& r) { return out << r.name; }

namespace {

using Report = std::map<std::string, QuantizationFigures>;  // by "layer operand"

// Installed for its lifetime, as for one step.
struct Watch {
  explicit Watch(bool pads = false) { quantization_stats() = std::make_shared<QuantizationStats>(pads); }
  ~Watch() { quantization_stats().reset(); }
  Report read() const {
    Report r;
    for (const QuantizationFigures& f : quantization_stats()->read()) r[f.layer + " " + std::string(f.operand)] = f;
    return r;
  }
};

// Two weights of one group: layers.0.attention.wq [n0, k] and wk [n1, k].
struct Pair {
  Weight weights[2];
  FusedLinears fused;
  Pair(const LinearRecipe& recipe, int64_t k, int64_t n0, int64_t n1, at::ScalarType type) {
    fused.recipe = recipe;
    for (int i = 0; i < 2; ++i) {
      Weight& w = weights[i];
      w.name = i == 0 ? "layers.0.attention.wq.weight" : "layers.0.attention.wk.weight";
      w.value = (at::randn({i == 0 ? n0 : n1, k}) / std::sqrt(static_cast<double>(k))).to(type).to(test_device()).set_requires_grad(true);
      w.grad = at::zeros(w.value.sizes(), w.value.options().dtype(at::kFloat).requires_grad(false));
      fused.weights.push_back(&w);
      if (!recipe.w_forward.stored) continue;
      const at::Tensor value = w.value.detach().to(at::kFloat).contiguous();
      w.stored = std::make_shared<StoredWeight>(allocate_stored(recipe.w_forward, value.size(0), k, test_device()));
      store(value, {}, *w.stored);
      w.value = at::full({1}, NAN, w.value.options()).expand(value.sizes()).detach().set_requires_grad(true);
    }
  }
  // Returns Y and dX on the CPU; gradients are in the weights.
  std::pair<at::Tensor, at::Tensor> run(const at::Tensor& x_in, const at::Tensor& dy, bool again = false) {
    const at::Tensor x = x_in.detach().to(test_device()).clone().set_requires_grad(true);
    at::AutoGradMode grad(true);
    if (again) {  // the first pass of a recomputed block
      at::NoGradGuard no_grad;
      linear(x, fused, test_step());
    }
    const at::Tensor y = linear(x, fused, test_step());
    torch::autograd::backward({y}, {dy.to(test_device())});
    return {y.detach().cpu(), x.grad().cpu()};
  }
};

double db(double signal, double noise) { return noise == 0 ? INFINITY : 10 * std::log10(signal / noise); }

// Signal and noise of a matrix and its approximation, by one fp64 formula.
struct Energies {
  double signal = 0, noise = 0;
  void add(const at::Tensor& original, const at::Tensor& found) {
    const at::Tensor o = original.to(at::kDouble), e = o - found.to(at::kDouble);
    signal += (o * o).sum().item<double>(), noise += (e * e).sum().item<double>();
  }
  double db() const { return halftone::db(signal, noise); }
};

// Undoes the rotation of values [R, C]: H is orthogonal, H^T column by column.
at::Tensor unrotated(const at::Tensor& numbers, int n, const RotationSigns& signs) {
  at::Tensor h = at::empty({n, n}, at::kDouble);
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < n; ++i) {
      const bool negative = (std::popcount(static_cast<unsigned>(i & j)) + static_cast<int>(signs.negative(j))) % 2 != 0;
      h[i][j] = (negative ? -1 : 1) / std::sqrt(static_cast<double>(n));
    }
  }
  return numbers.reshape({-1, n}).mm(h).reshape(numbers.sizes());
}

class Stats : public OnDeviceWith<LinearRecipe> {
 protected:
  void SetUp() override {
    OnDeviceWith::SetUp();
    at::manual_seed(11);
    test_step() = {17, 3, 64};
  }
};
std::string test_name(const testing::TestParamInfo<std::tuple<std::string, LinearRecipe>>& info) {
  return std::get<0>(info.param) + "_" + std::string(std::get<1>(info.param).name);
}

// Every SQNR of a group over two micro-batches against the scalar reference quantiser and fp64 GEMMs.
TEST_P(Stats, EqualFiguresComputedIndependently) {
  const LinearRecipe& r = param();
  const bool wide = r.dy_wgrad.hadamard > 32;  // whole groups: padding counts in the report
  const int64_t tokens = wide ? 128 : 96, k = 160, n[2] = {wide ? 256 : 64, wide ? 128 : 96};
  Pair pair(r, k, n[0], n[1], at::kBFloat16);
  const std::string first = pair.weights[0].name;
  std::map<std::string, Energies> expected;
  Watch watch;
  for (int batch = 0; batch < 2; ++batch) {
    test_step().first_row = 64 + batch * tokens;
    const at::Tensor x = at::randn({tokens, k}).to(at::kBFloat16), dy = (at::randn({tokens, n[0] + n[1]}) * 1e-3).to(at::kBFloat16);
    for (Weight& w : pair.weights) w.grad.zero_();
    const auto [y, dx] = pair.run(x, dy);
    const auto operand = [&](const at::Tensor& m, const OperandSpec& spec, bool transposed, const std::string& key, const std::string& to) {
      if (!spec.quantized() || spec.stored) return;
      const RotationSigns signs = reference_signs(spec, key, first);
      at::Tensor numbers = reference_numbers(m, spec, transposed, key, signs);
      if (spec.hadamard > 0) numbers = unrotated(numbers, spec.hadamard, signs);
      const at::Tensor original = transposed ? m.t() : m;
      expected[to].add(original, numbers.narrow(1, 0, original.size(1)));
    };
    const bool forward_codes = r.x_wgrad.same_as_forward && r.x_wgrad.granularity == Granularity::row;
    at::Tensor exact_dx = at::zeros({tokens, k}, at::kDouble);
    int64_t n0 = 0;
    for (int i = 0; i < 2; ++i) {
      const Weight& w = pair.weights[i];
      const std::string to = i == 0 ? "layers.0.attention.wq " : "layers.0.attention.wk ";
      const at::Tensor value = (w.stored ? dequantize(*w.stored) : w.value.detach()).cpu(), part = dy.narrow(1, n0, n[i]);
      operand(x, r.x_forward, false, first + "#x.fwd", to + "x.fwd");
      if (forward_codes) {
        const at::Tensor numbers = reference_numbers(x, r.x_forward, false, first + "#x.fwd", {});
        expected[to + "x.wgrad"].add(x, numbers.to(at::kFloat).to(at::kBFloat16));
      } else {
        operand(x, r.x_wgrad, true, first + (r.x_wgrad.same_as_forward ? "#x.fwd" : "#x.wgrad"), to + "x.wgrad");
      }
      operand(part, r.dy_dgrad, false, w.name + "#dy.dgrad", to + "dy.dgrad");
      operand(part, r.dy_wgrad, true, w.name + (r.dy_wgrad.same_as_forward ? "#dy.dgrad" : "#dy.wgrad"), to + "dy.wgrad");
      if (batch == 0) {
        operand(value, r.w_forward, false, w.name + "#w.fwd", to + "w.fwd");
        operand(value, r.w_dgrad, true, w.name + (r.w_dgrad.same_as_forward ? "#w.fwd" : "#w.dgrad"), to + "w.dgrad");
      }
      const at::Tensor xd = x.to(at::kDouble), wd = value.to(at::kDouble), dyd = part.to(at::kDouble);
      if (r.x_forward.quantized() || r.w_forward.quantized()) expected[to + "y"].add(xd.mm(wd.t()), y.narrow(1, n0, n[i]));
      if (r.dy_wgrad.quantized() || r.x_wgrad.quantized()) expected[to + "dw"].add(dyd.t().mm(xd), w.grad.cpu());
      exact_dx += dyd.mm(wd);
      n0 += n[i];
    }
    if (r.dy_dgrad.quantized() || r.w_dgrad.quantized()) {
      for (const char* layer : {"layers.0.attention.wq dx", "layers.0.attention.wk dx"}) expected[layer].add(exact_dx, dx);
    }
  }
  const Report report = watch.read();
  EXPECT_EQ(report.size(), 12 + (r.x_forward.quantized() || r.w_forward.quantized() ? 2 : 0) +
                               (r.dy_dgrad.quantized() || r.w_dgrad.quantized() ? 2 : 0) +
                               (r.dy_wgrad.quantized() || r.x_wgrad.quantized() ? 2 : 0));
  for (const auto& [where, figures] : report) {
    const auto e = expected.find(where);
    ASSERT_EQ(figures.sqnr.has_value(), e != expected.end()) << where;
    if (figures.sqnr) {
      // Reference for GEMMs: fp32 sums in the device's order.
      const bool product = figures.operand.size() <= 2;
      EXPECT_NEAR(*figures.sqnr, e->second.db(), product && test_device().is_cuda() ? 1e-2 : 1e-3) << where;
    }
    EXPECT_EQ(figures.nonfinite, 0) << where;
  }
}

TEST_P(Stats, ChangeNothing) {
  const auto train = [&](bool watched) {
    at::manual_seed(12);
    Pair pair(param(), 96, 64, 32, at::kBFloat16);
    std::unique_ptr<Watch> watch = watched ? std::make_unique<Watch>() : nullptr;
    at::Tensor y, dx;
    for (int batch = 0; batch < 2; ++batch) {
      test_step().first_row = 64 * batch;
      std::tie(y, dx) = pair.run(at::randn({64, 96}).to(at::kBFloat16), at::randn({64, 96}).to(at::kBFloat16));
    }
    EXPECT_TRUE(!watch || !watch->read().empty());
    return std::vector<at::Tensor>{y, dx, pair.weights[0].grad, pair.weights[1].grad};
  };
  const std::vector<at::Tensor> off = train(false), on = train(true);
  for (size_t i = 0; i < off.size(); ++i) EXPECT_TRUE(at::equal(off[i], on[i])) << i;
}

TEST_P(Stats, CountARecomputedLayerOnce) {
  const auto report = [&](bool again) {
    at::manual_seed(13);
    Pair pair(param(), 96, 64, 32, at::kBFloat16);
    Watch watch;
    pair.run(at::randn({64, 96}).to(at::kBFloat16), at::randn({64, 96}).to(at::kBFloat16), again);
    return watch.read();
  };
  const Report once = report(false), twice = report(true);
  ASSERT_EQ(once.size(), twice.size());
  for (const auto& [where, f] : once) {
    const QuantizationFigures& g = twice.at(where);
    EXPECT_EQ(f.amax, g.amax) << where;
    EXPECT_EQ(f.saturated, g.saturated) << where;
    EXPECT_EQ(f.flushed, g.flushed) << where;
    EXPECT_EQ(f.sqnr, g.sqnr) << where;
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, Stats,
                         testing::Combine(test_devices(),
                                          testing::ValuesIn(std::vector<LinearRecipe>(kLinearRecipes.begin(), kLinearRecipes.end()))),
                         test_name);

std::vector<LinearRecipe> variants() {
  const auto changed = [](std::string_view base, std::string_view name, auto&& change) {
    LinearRecipe r = *find_linear_recipe(base);
    r.name = name;
    change(r);
    return r;
  };
  const auto each = [](LinearRecipe& r, auto&& f) {
    for (OperandSpec* o : {&r.x_forward, &r.w_forward, &r.dy_dgrad, &r.w_dgrad, &r.dy_wgrad, &r.x_wgrad}) f(*o);
  };
  return {changed("int8", "int8_stochastic", [&](auto& r) { each(r, [](OperandSpec& o) { o.stochastic = true; }); }),
          changed("int4", "int4_stochastic", [&](auto& r) { each(r, [](OperandSpec& o) { o.stochastic = true; }); }),
          changed("mxfp4", "mxfp4_macro", [&](auto& r) { each(r, [](OperandSpec& o) { o.two_level = TwoLevel::macro; }); }),
          changed("mxfp4", "mxfp4_clip", [&](auto& r) { r.dy_wgrad.clip = r.x_wgrad.clip = Clip::fixed; }),
          changed("mxfp4", "mxfp4_emulated", [&](auto& r) { r.emulate = true; }),
          changed("int8", "int8_forward", [&](auto& r) { r.dy_dgrad = r.w_dgrad = r.dy_wgrad = r.x_wgrad = {}; })};
}
INSTANTIATE_TEST_SUITE_P(Variants, Stats, testing::Combine(test_devices(), testing::ValuesIn(variants())), test_name);

// A recipe that quantises only X, and only in the forward GEMM.
LinearRecipe forward_only(const OperandSpec& x) {
  LinearRecipe r = kLinearRecipes[0];
  r.x_forward = x;
  return r;
}

QuantizationFigures figures_of(const at::Tensor& x, const OperandSpec& spec) {
  Pair pair(forward_only(spec), x.size(1), 32, 32, at::kFloat);
  Watch watch;
  pair.run(x, at::ones({x.size(0), 64}));
  return watch.read().at("layers.0.attention.wq x.fwd");
}

class QuantizationShares : public OnDevice {};

TEST_P(QuantizationShares, OfHandMadeRows) {
  // Scale 1 by the rule floor: 7.9 and -7.5 round beyond 6, the largest e2m1 value; 6.9 rounds to it; 0.2 and -0.1 to zero.
  OperandSpec mx = find_linear_recipe("mxfp4")->x_forward;
  mx.mode = ScaleMode::floor;
  at::Tensor x = at::zeros({2, 32});
  const float row[] = {7.9f, -7.5f, 6.9f, 6.0f, 3.0f, 0.2f, -0.1f, 0.3f};
  for (int i = 0; i < 8; ++i) x[0][i] = row[i];
  const QuantizationFigures f = figures_of(x, mx);
  EXPECT_EQ(f.saturated, 2.0 / 64);
  EXPECT_EQ(f.flushed, 2.0 / 64);
  EXPECT_FLOAT_EQ(static_cast<float>(f.amax), 7.9f);
  double signal = 0, noise = 0;
  const float numbers[] = {6, -6, 6, 6, 3, 0, 0, 0.5f};
  for (int i = 0; i < 8; ++i) {
    signal += static_cast<double>(row[i]) * row[i];
    noise += std::pow(static_cast<double>(row[i]) - numbers[i], 2);
  }
  EXPECT_NEAR(*f.sqnr, db(signal, noise), 1e-9);

  // A row's amax maps exactly to the largest code: nothing saturates. 127 * 0.4 = 50.8: 0.4 and less flush.
  at::Tensor i8 = at::zeros({1, 32});
  i8[0][0] = -127, i8[0][1] = 0.4, i8[0][2] = -0.3, i8[0][3] = 0.6, i8[0][4] = 126.4;
  const QuantizationFigures g = figures_of(i8, find_linear_recipe("int8")->x_forward);
  EXPECT_EQ(g.saturated, 0);
  EXPECT_EQ(g.flushed, 2.0 / 32);

  // int4 has one more code below zero: 7 * 2^-3 maps to 7, -1 to -8, both exactly.
  at::Tensor i4 = at::zeros({1, 32});
  i4[0][0] = 0.875, i4[0][1] = -1;
  const QuantizationFigures h = figures_of(i4, find_linear_recipe("int4")->x_forward);
  EXPECT_EQ(h.saturated, 0);
  EXPECT_EQ(*h.sqnr, std::numeric_limits<double>::infinity());

  // Ternary values are -m, 0, m with the mean m = 1 of |x|: 1.6 and -2.9 would round beyond it, 1.4 would not.
  OperandSpec ternary = find_linear_recipe("bitnet")->w_forward;
  LinearRecipe r = kLinearRecipes[0];
  r.w_forward = ternary;
  Pair pair(r, 32, 1, 1, at::kFloat);
  at::Tensor w = at::full({1, 32}, (32 - 1.6 - 2.9 - 1.4 - 0.1) / 28);
  w[0][0] = 1.6, w[0][1] = -2.9, w[0][2] = 1.4, w[0][3] = 0.1;
  pair.weights[0].value = w.to(test_device()).set_requires_grad(true);
  Watch watch;
  pair.run(at::ones({4, 32}), at::ones({4, 2}));
  const QuantizationFigures t = watch.read().at("layers.0.attention.wq w.fwd");
  EXPECT_EQ(t.saturated, 2.0 / 32);
  EXPECT_EQ(t.flushed, 1.0 / 32);
}

TEST_P(QuantizationShares, CountWhatIsNotFinite) {
  const OperandSpec int8 = find_linear_recipe("int8")->x_forward;
  at::Tensor x = at::ones({4, 32});
  x[1][3] = INFINITY, x[2][0] = -INFINITY;
  QuantizationFigures f = figures_of(x, int8);
  EXPECT_EQ(f.nonfinite, 2);
  EXPECT_EQ(f.amax, INFINITY);
  EXPECT_TRUE(std::isnan(*f.sqnr));
  x[3][3] = NAN;
  f = figures_of(x, int8);
  EXPECT_EQ(f.nonfinite, 3);
  EXPECT_TRUE(std::isnan(f.amax) && std::isnan(*f.sqnr));
  // Unquantised layers are counted too.
  EXPECT_EQ(figures_of(x, {}).nonfinite, 3);
  EXPECT_FALSE(figures_of(x, {}).sqnr.has_value());
}

// Tokens of zeros behind the others, of which a bias makes numbers: shares, errors and largest magnitudes are those without.
TEST_P(QuantizationShares, LeaveOutPadding) {
  const auto report = [&](int64_t padding) {
    at::manual_seed(16);
    Pair pair(*find_linear_recipe("mxfp4"), 64, 32, 32, at::kFloat);
    Weight bias;
    bias.name = "layers.0.attention.wq.bias", bias.value = at::full({32}, 1e3, at::TensorOptions().device(test_device()));
    pair.fused.biases = {&bias, nullptr};
    const auto padded = [&](const at::Tensor& t) { return at::constant_pad_nd(t, {0, 0, 0, padding}); };
    Watch watch(true);
    pair.run(padded(at::randn({96, 64}).pow(5)), padded(at::randn({96, 64}).pow(5)));
    return watch.read();
  };
  const Report expected = report(0), found = report(32);
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [where, e] : expected) {
    const QuantizationFigures& f = found.at(where);
    EXPECT_EQ(f.amax, e.amax) << where;
    EXPECT_EQ(f.saturated, e.saturated) << where;
    EXPECT_EQ(f.flushed, e.flushed) << where;
    EXPECT_EQ(f.sqnr.has_value(), e.sqnr.has_value()) << where;
    EXPECT_NEAR(f.sqnr.value_or(0), e.sqnr.value_or(0), 1e-6) << where;
  }
  EXPECT_GT(*expected.at("layers.0.attention.wq x.fwd").flushed, 0.1);
}

INSTANTIATE_TEST_SUITE_P(On, QuantizationShares, test_devices(), [](const auto& info) { return info.param; });

// The table of docs/numerics_report.md: which rules clip, for blocks whose largest elements cover an entire binade.
TEST(QuantizationStats, ScaleRulesThatClip) {
  at::Tensor x = at::rand({1024, 32}) * 0.25;
  for (int i = 0; i < 1024; ++i) x[i][0] = 1 + i / 1024.0;
  const auto clips = [&](Element element, ScaleMode mode, Clip clip = Clip::none) {
    OperandSpec s = detail::block(element, 32, ScaleFormat::e8m0);
    s.mode = mode, s.clip = clip;
    return *figures_of(x, s).saturated > 0;
  };
  for (const Element e : {Element::e2m1, Element::e2m3, Element::e3m2, Element::e4m3, Element::e5m2}) {
    EXPECT_TRUE(clips(e, ScaleMode::floor)) << static_cast<int>(e);
    EXPECT_FALSE(clips(e, ScaleMode::ceil)) << static_cast<int>(e);
    EXPECT_FALSE(clips(e, ScaleMode::rceil)) << static_cast<int>(e);
    // e4m3's largest value is 1.75 * 2^8: the next code is NaN.
    EXPECT_EQ(clips(e, ScaleMode::even), e == Element::e4m3) << static_cast<int>(e);
    EXPECT_EQ(clips(e, ScaleMode::adaptive), e == Element::e4m3) << static_cast<int>(e);
  }
  EXPECT_TRUE(clips(Element::e2m1, ScaleMode::uos));
  EXPECT_TRUE(clips(Element::e2m1, ScaleMode::adaptive, Clip::dynamic));
  for (const ScaleMode mode : {ScaleMode::adaptive, ScaleMode::floor, ScaleMode::uos})
    EXPECT_FALSE(clips(Element::e2m1, mode, Clip::fixed)) << static_cast<int>(mode);
}

TEST(QuantizationStats, CallsAreCountedInTheOrderOfTheForward) {
  Watch watch;
  for (const char layer : {'0', '1'}) {
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      Pair pair(*find_linear_recipe("int8"), 64, 32, 32, at::kBFloat16);
      for (Weight& w : pair.weights) w.name[7] = layer;
      pair.run(at::randn({32, 64}).to(at::kBFloat16), at::randn({32, 64}).to(at::kBFloat16));
    }
  }
  const Report report = watch.read();
  const int64_t first = report.at("layers.0.attention.wq x.fwd").call;
  EXPECT_EQ(report.at("layers.0.attention.wk dx").call, first);
  EXPECT_GT(report.at("layers.1.attention.wq dw").call, first);
  EXPECT_EQ(report.at("layers.1.attention.wk y").call, report.at("layers.1.attention.wq dw").call);
}

TEST(QuantizationStats, FindsThePlantedLayer) {
  at::manual_seed(14);
  const LinearRecipe int8 = *find_linear_recipe("int8");
  Watch watch;
  std::vector<std::unique_ptr<Pair>> layers;
  for (int i = 0; i < 4; ++i) {
    layers.push_back(std::make_unique<Pair>(int8, 1024, 32, 32, at::kBFloat16));
    for (Weight& w : layers[i]->weights) w.name[7] = static_cast<char>('0' + i);
    at::Tensor x = at::randn({64, 1024});
    if (i == 2) x.select(1, 5).mul_(200);  // one feature much larger than the others
    layers[i]->run(x.to(at::kBFloat16), at::randn({64, 64}).to(at::kBFloat16));
  }
  std::map<std::string, std::pair<double, std::string>> worst;
  for (const auto& [where, f] : watch.read()) {
    auto& w = worst.try_emplace(std::string(f.operand), 1e9, "").first->second;
    if (*f.sqnr < w.first) w = {*f.sqnr, f.layer};
  }
  EXPECT_TRUE(worst["x.fwd"].second.starts_with("layers.2.")) << worst["x.fwd"].second;
  EXPECT_LT(worst["x.fwd"].first, 25);
  EXPECT_GT(worst["w.fwd"].first, 35);
}

TEST(QuantizationStats, StoredWeightsHaveNoOriginal) {
  at::manual_seed(15);
  const LinearRecipe r = *find_linear_recipe("int8_weight");
  Pair pair(r, 64, 32, 32, at::kBFloat16);
  Watch watch;
  pair.run(at::randn({32, 64}).to(at::kBFloat16), at::randn({32, 64}).to(at::kBFloat16));
  const Report report = watch.read();
  const QuantizationFigures& w = report.at("layers.0.attention.wq w.fwd");
  EXPECT_EQ(w.amax, dequantize(*pair.weights[0].stored).abs().max().item<double>());
  EXPECT_FALSE(w.sqnr.has_value() || w.saturated.has_value());
  EXPECT_GT(*report.at("layers.0.attention.wk y").sqnr, 50);  // the products read exactly the stored numbers
}

TEST(QuantizationStats, ForwardPassesWithoutGradientsAreNotCounted) {
  Pair pair(*find_linear_recipe("int8"), 64, 32, 32, at::kBFloat16);
  Watch watch;
  {
    at::NoGradGuard no_grad;
    linear(at::randn({32, 64}).to(at::kBFloat16), pair.fused, test_step());
  }
  EXPECT_TRUE(watch.read().empty());
}

}  // namespace
}  // namespace halftone
