// Every recipe against its definition, and on the inputs of numerics.md 13.4.
#include <gtest/gtest.h>

#include <limits>

#include "halftone/base/error.h"
#include "halftone/formats/support.h"
#include "halftone/ops/hardware.h"
#include "nn/linear_support.h"
#include "ops/recipe_reference.h"

namespace halftone::nn {
namespace {

struct Variant {
  std::string name, scheme;
  std::function<void(RecipeOptions&)> set;
};
std::ostream& operator<<(std::ostream& out, const Variant& v) { return out << v.name; }

const std::vector<Variant>& variants() {
  static const std::vector<Variant> kVariants = [] {
    std::vector<Variant> v;
    for (const LinearRecipe& r : kLinearRecipes) {
      const std::string name(r.name);
      v.push_back({name, name, [](auto&) {}});
      if (name.starts_with("mx") || name == "nvfp4" || name == "amdfp4" || name == "nvint4") {
        const bool tiles = r.w_forward.granularity == Granularity::tile;  // the other form
        v.push_back({name + (tiles ? "_1dw" : "_2dw"), name, [tiles](auto& o) { o.use_2dblock_w = !tiles; }});
        v.push_back({name + "_2dx_sr", name, [](auto& o) { o.use_2dblock_x = true, o.use_sr_grad = true; }});
        v.push_back({name + "_wgrad_hp", name, [](auto& o) { o.wgrad_hp = true; }});
        v.push_back({name + "_only_output", name, [](auto& o) { o.grad_input = o.grad_weight = false; }});
        v.push_back({name + "_no_output", name, [](auto& o) { o.output = false; }});
        v.push_back({name + "_x_hp", name, [](auto& o) { o.x_hp = true; }});
        v.push_back({name + "_w_hp", name, [](auto& o) { o.w_hp = true; }});
        v.push_back({name + "_dy_hp", name, [](auto& o) { o.dy_hp = true; }});
      }
      if (name == "int8" || name == "int4") {
        v.push_back({name + "_sr", name, [](auto& o) { o.stochastic_rounding = true; }});
        v.push_back({name + "_only_grad_input", name, [](auto& o) { o.output = o.grad_weight = false; }});
      }
      if (name.starts_with("fp8_")) {
        const bool pow2 = r.x_forward.scale == ScaleFormat::fp32_pow2;
        v.push_back({name + (pow2 ? "_any_scale" : "_pow2"), name, [pow2](auto& o) { o.round_scales_to_power_of_2 = !pow2; }});
        v.push_back({name + "_emulated", name, [](auto& o) { o.emulate = true; }});
      }
    }
    v.push_back({"fp8_blockwise_sr", "fp8_blockwise", [](auto& o) { o.use_sr_grad = true; }});
    v.push_back({"nvfp4_torchao", "nvfp4", [](auto& o) { o.style = "torchao"; }});
    v.push_back({"nvfp4_amax", "nvfp4", [](auto& o) { o.scale_choice = "none"; }});
    v.push_back({"nvfp4_amax_2dw", "nvfp4", [](auto& o) { o.scale_choice = "none", o.use_2dblock_w = true; }});
    v.push_back({"amdfp4_largest_2dw", "amdfp4", [](auto& o) { o.scale_choice_error = "largest", o.use_2dblock_w = true; }});
    v.push_back({"nvfp4_no_outer", "nvfp4", [](auto& o) { o.two_level_scaling = "none"; }});
    v.push_back({"mxfp4_macro", "mxfp4", [](auto& o) { o.two_level_scaling = "blockwise"; }});
    v.push_back({"mxfp4_macro_2dw", "mxfp4", [](auto& o) { o.two_level_scaling = "blockwise", o.use_2dblock_w = true; }});
    v.push_back({"mxfp4_macro_2dx", "mxfp4", [](auto& o) { o.two_level_scaling = "blockwise", o.use_2dblock_x = true; }});
    v.push_back({"mxfp4_macro_x_hp", "mxfp4", [](auto& o) { o.two_level_scaling = "blockwise", o.x_hp = true; }});
    v.push_back({"mxfp4_macro_w_hp", "mxfp4", [](auto& o) { o.two_level_scaling = "blockwise", o.w_hp = true; }});
    v.push_back({"mxfp4_macro_dy_hp", "mxfp4", [](auto& o) { o.two_level_scaling = "blockwise", o.dy_hp = true; }});
    v.push_back({"mxfp4_2dx_no_output", "mxfp4", [](auto& o) { o.use_2dblock_x = true, o.output = false; }});
    v.push_back({"mxfp4_2dx_no_grad_input", "mxfp4", [](auto& o) { o.use_2dblock_x = true, o.grad_input = false; }});
    v.push_back({"mxfp4_dy_hp_emulated", "mxfp4", [](auto& o) { o.emulate = true, o.dy_hp = true; }});
    v.push_back({"mxfp4_emulated", "mxfp4", [](auto& o) { o.emulate = true; }});
    v.push_back({"mxfp4_static_clip", "mxfp4", [](auto& o) { o.clip_mode = "static"; }});
    v.push_back({"mxfp4_dynamic_clip", "mxfp4", [](auto& o) { o.clip_mode = "dynamic"; }});
    v.push_back({"int8_weight_int8", "int8_weight", [](auto& o) { o.activation = "int8"; }});
    v.push_back({"int8_weight_int8_sr", "int8_weight", [](auto& o) { o.activation = "int8_sr"; }});
    return v;
  }();
  return kVariants;
}

LinearRecipe recipe_of(const Variant& v) {
  RecipeOptions options;
  v.set(options);
  return layer_recipe(v.scheme, options, v.name).linear;
}

// A layer; its weight is stored as codes if the recipe says so.
std::unique_ptr<OneLinear> make_layer(const LinearRecipe& r, const at::Tensor& w) {
  auto layer = std::make_unique<OneLinear>(w, r);
  if (r.w_forward.stored) layer->store_weight(r.w_forward);
  return layer;
}

// Required accuracy of a GEMM against fp64 (numerics.md 13.1): fp8 tensor cores 50 dB, 40 with fast accumulation.
double product_bar(const LinearRecipe& r, int product) {
  const OperandSpec &a = product == 0   ? r.x_forward
                         : product == 1 ? r.dy_dgrad
                                        : r.dy_wgrad,
                    &b = product == 0   ? r.w_forward
                         : product == 1 ? r.w_dgrad
                                        : r.x_wgrad;
  const Path path = r.emulate ? Path::dequantized : product_support(a, b, hardware_of(test_device())).path;
  return path != Path::fp8 && path != Path::folded ? 90 : r.fast_accum[static_cast<size_t>(product)] ? 40 : 50;
}

class Recipes : public OnDeviceWith<Variant> {
 protected:
  void SetUp() override {
    OnDeviceWith::SetUp();
    test_step() = {17, 3, 64};
  }
  const LinearRecipe recipe_ = recipe_of(param());

  void compare(at::ScalarType x_type, at::ScalarType w_type, int64_t m, int64_t k, int64_t n, double bar) {
    at::manual_seed(5);
    const at::Tensor x = normal({m, k}, x_type), w = normal({n, k}, w_type), dy = normal({m, n}, x_type);
    auto layer = make_layer(recipe_, w);
    const LinearResult y = layer->run(x, dy);
    const ReferenceLinear e = reference_linear(recipe_, x, w, dy, layer->weight().name, layer->weight().stored.get());
    const std::string where = fmt::format("{} x {} x {}, {} and {}", m, k, n, c10::toString(x_type), c10::toString(w_type));
    EXPECT_EQ(y.y.scalar_type(), x_type);
    EXPECT_EQ(y.dx.scalar_type(), x_type);
    EXPECT_GE(sqnr(e.y, y.y), std::min(bar, product_bar(recipe_, 0))) << where;
    EXPECT_GE(sqnr(e.dx, y.dx), std::min(bar, product_bar(recipe_, 1))) << where;
    EXPECT_GE(sqnr(e.dw, y.dw), product_bar(recipe_, 2)) << where;  // dW is fp32
  }
};

// fp32 in and out: only the summation order may differ (numerics.md 13.1: >= 90 dB); bf16 out: 54 dB.
TEST_P(Recipes, EqualTheProductsOfTheirOperands) {
  compare(at::kFloat, at::kFloat, 150, 288, 160, 90);  // tail blocks of M, K and N
  compare(at::kFloat, at::kBFloat16, 64, 96, 64, 90);
  compare(at::kBFloat16, at::kFloat, 17, 64, 32, 52);
  compare(at::kBFloat16, at::kBFloat16, 1, 160, 96, 50);
}

TEST_P(Recipes, TakeWidthsWithTails) {
  if (param().name != param().scheme) return;  // options do not change supported widths
  compare(at::kBFloat16, at::kBFloat16, 33, 2880, 160, 54);
  compare(at::kBFloat16, at::kBFloat16, 33, 160, 1408, 54);
}

// The same layer on CPU and GPU at full widths, for which the definition would be too slow: operands are equal, so only sums may differ.
TEST_P(Recipes, EqualTheProcessor) {
  if (test_device().is_cpu() || param().name != param().scheme) return;
  for (const auto& [m, k, n] : {std::array<int64_t, 3>{150, 2880, 1408}, {17, 1408, 2880}, {1, 2880, 1408}}) {
    at::manual_seed(6);
    const at::Tensor x = normal({m, k}, at::kBFloat16), w = normal({n, k}, at::kBFloat16), dy = normal({m, n}, at::kBFloat16);
    const LinearResult found = make_layer(recipe_, w)->run(x, dy), expected = make_layer(recipe_, w.cpu())->run(x.cpu(), dy.cpu());
    EXPECT_GE(sqnr(expected.y, found.y), std::min(54.0, product_bar(recipe_, 0))) << m << " x " << k << " x " << n;
    EXPECT_GE(sqnr(expected.dx, found.dx), std::min(54.0, product_bar(recipe_, 1))) << m << " x " << k << " x " << n;
    EXPECT_GE(sqnr(expected.dw, found.dw), product_bar(recipe_, 2)) << m << " x " << k << " x " << n;
  }
}

TEST_P(Recipes, GiveZeroForZeros) {
  const at::Tensor zero = at::zeros({64, 96}, on_device(at::kBFloat16)), one = at::ones({64, 96}, on_device(at::kBFloat16));
  const at::Tensor w = normal({32, 96}, at::kBFloat16), dy = normal({64, 32}, at::kBFloat16);
  auto layer = make_layer(recipe_, w);
  const LinearResult no_x = layer->run(zero, dy), no_dy = layer->run(one, at::zeros_like(dy));
  const LinearResult no_w = make_layer(recipe_, at::zeros_like(w))->run(one, dy);
  for (const at::Tensor& t : {no_x.y, no_x.dw, no_dy.dx, no_dy.dw, no_w.y, no_w.dx}) EXPECT_EQ(t.abs().max().item<double>(), 0);
}

TEST_P(Recipes, StayFiniteOnExtremeData) {
  const int64_t m = 64, k = 96, n = 32;
  const auto options = on_device(at::kBFloat16);
  at::Tensor spike = at::zeros({m, k}, options);
  spike[3][7] = 3e4;
  for (const at::Tensor& x : {at::full({m, k}, 5000, options), spike, at::full({m, k}, 1e-30, options), at::full({m, k}, 1e30, options)}) {
    const at::Tensor w = normal({n, k}, at::kBFloat16), dy = x.narrow(1, 0, n) * 1e-3;
    const LinearResult r = make_layer(recipe_, w)->run(x, dy);
    EXPECT_TRUE(r.y.isfinite().all().item<bool>());
    EXPECT_TRUE(r.dx.isfinite().all().item<bool>());
    const bool overflows = x.abs().max().item<double>() > 1e20;  // dW = dY^T X is beyond fp32
    if (!overflows) {
      EXPECT_TRUE(r.dw.isfinite().all().item<bool>());
    }
  }
}

// One bad element of X or dY affects exactly the outputs that read its scale group.
TEST_P(Recipes, ShowANanWhereItIs) {
  at::manual_seed(9);
  const int64_t m = 96, k = 160, n = 96, row = 40, column = 70;
  const at::Tensor x = normal({m, k}, at::kBFloat16), w = normal({n, k}, at::kBFloat16), dy = normal({m, n}, at::kBFloat16);
  // Rows (of the [rows, contracted] copy) that a bad element in row r poisons.
  const auto poisoned = [](const OperandSpec& s, int64_t r, int64_t rows) {
    at::Tensor bad = at::zeros({rows}, on_device(at::kBool));
    if (!s.quantized() || s.granularity == Granularity::row || s.granularity == Granularity::block) bad[r] = true;
    const int64_t high = s.two_level == TwoLevel::macro ? 128 : s.block;
    if (s.granularity == Granularity::tile) bad.narrow(0, r / high * high, std::min(high, rows - r / high * high)).fill_(true);
    if (s.granularity == Granularity::tensor || s.two_level == TwoLevel::tensor) bad.fill_(true);
    return bad;
  };
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    at::Tensor bad_x = x.clone(), bad_dy = dy.clone();
    bad_x[row][column] = value, bad_dy[row][column] = value;
    const LinearResult a = make_layer(recipe_, w)->run(bad_x, dy), b = make_layer(recipe_, w)->run(x, bad_dy);
    const bool hp_f = !recipe_.x_forward.quantized(), hp_d = !recipe_.dy_dgrad.quantized(), hp_w = !recipe_.x_wgrad.quantized();
    const auto not_finite = [](const at::Tensor& t) { return t.isfinite().logical_not(); };
    const auto expect_rows = [&](const at::Tensor& out, const at::Tensor& bad, bool hp, const char* what) {
      EXPECT_TRUE(at::equal(not_finite(out).any(1), bad)) << what << " " << value;
      if (!hp) {
        EXPECT_TRUE(at::equal(out.isnan().all(1), bad)) << what << " " << value;
      }
    };
    expect_rows(a.y, poisoned(recipe_.x_forward, row, m), hp_f, "Y of X");
    EXPECT_TRUE(a.dx.isfinite().all().item<bool>());
    expect_rows(b.dx, poisoned(recipe_.dy_dgrad, row, m), hp_d, "dX of dY");
    EXPECT_TRUE(b.y.isfinite().all().item<bool>());
    const bool forward_codes = recipe_.x_wgrad.same_as_forward && recipe_.x_wgrad.granularity == Granularity::row;
    if (forward_codes) {
      EXPECT_TRUE(a.dw.isnan().all().item<bool>());  // the entire token is bad
    } else {
      expect_rows(a.dw.t(), poisoned(recipe_.x_wgrad, column, k), hp_w, "dW of X");
    }
    if (recipe_.dy_wgrad.quantized()) expect_rows(b.dw, poisoned(recipe_.dy_wgrad, column, n), false, "dW of dY");

    at::Tensor bad_w = w.clone();
    bad_w[row][column] = value;
    const LinearResult c = make_layer(recipe_, bad_w)->run(x, dy);
    const OperandSpec &f = recipe_.w_forward, &d = recipe_.w_dgrad;
    expect_rows(c.y.t(), poisoned(f, row, n), !f.quantized(), "Y of W");
    at::Tensor columns = poisoned(d, column, k);
    if (f.element == Element::int8 && f.stored) columns.fill_(true);                                      // its scale is applied to dY
    if (f.element == Element::uint4) columns.narrow(0, column / f.block * f.block, f.block).fill_(true);  // groups of W, not of W^T
    expect_rows(c.dx.t(), columns, !d.quantized(), "dX of W");
    EXPECT_TRUE(c.dw.isfinite().all().item<bool>());
  }
}

// Two backward passes can use one forward pass's tensors; a third fails.
TEST_P(Recipes, GoBackwardTwice) {
  at::manual_seed(10);
  const at::Tensor w = normal({32, 96}, at::kBFloat16), x = normal({24, 96}, at::kBFloat16), dy = normal({24, 32}, at::kBFloat16);
  const LinearResult once = make_layer(recipe_, w)->run(x, dy), twice = make_layer(recipe_, w)->run(x, dy, 2);
  EXPECT_TRUE(at::equal(twice.y, once.y));
  EXPECT_TRUE(at::equal(twice.dx, once.dx * 2));
  EXPECT_GE(sqnr(once.dw * 2, twice.dw), 120);
  auto layer = make_layer(recipe_, w);
  at::AutoGradMode grad(true);
  const at::Tensor leaf = x.detach().set_requires_grad(true), y = linear(leaf, layer->fused(), test_step());
  torch::autograd::backward({y}, {dy});
  EXPECT_THROW(torch::autograd::backward({y}, {dy}), Error);
}

TEST_P(Recipes, TakeNoTokensAndAnyLayoutOfDy) {
  const at::Tensor w = normal({32, 96}, at::kBFloat16), x = normal({24, 96}, at::kBFloat16), dy = normal({24, 32}, at::kBFloat16);
  const LinearResult empty = make_layer(recipe_, w)->run(x.narrow(0, 0, 0), dy.narrow(0, 0, 0));
  EXPECT_EQ(empty.y.sizes(), (at::IntArrayRef{0, 32}));
  EXPECT_EQ(empty.dx.sizes(), (at::IntArrayRef{0, 96}));
  EXPECT_EQ(empty.dw.abs().max().item<double>(), 0);
  const LinearResult plain = make_layer(recipe_, w)->run(x, dy);
  const at::Tensor wide = at::zeros({24, 64}, on_device(at::kBFloat16));
  wide.narrow(1, 16, 32).copy_(dy);
  for (const at::Tensor& other : {dy.t().contiguous().t(), wide.narrow(1, 16, 32)}) {
    const LinearResult r = make_layer(recipe_, w)->run(x, other);
    EXPECT_TRUE(at::equal(r.dx, plain.dx));
    EXPECT_TRUE(at::equal(r.dw, plain.dw));
  }
  const LinearResult cube = make_layer(recipe_, w)->run(x.view({2, 3, 4, 96}), dy.view({2, 3, 4, 32}));
  EXPECT_EQ(cube.y.sizes(), (at::IntArrayRef{2, 3, 4, 32}));
  EXPECT_TRUE(at::equal(cube.y.view({24, 32}), plain.y));
  EXPECT_TRUE(at::equal(cube.dx.view({24, 96}), plain.dx));
  EXPECT_TRUE(at::equal(cube.dw, plain.dw));
}

INSTANTIATE_TEST_SUITE_P(All, Recipes, testing::Combine(test_devices(), testing::ValuesIn(variants())),
                         [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param).name; });

}  // namespace
}  // namespace halftone::nn
