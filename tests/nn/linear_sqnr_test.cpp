// SQNR of Y, dX and dW of a linear layer in every recipe: a table of recipe, problem and bounds in dB.
#include <ATen/ops/silu.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <ostream>

#include "nn/linear_support.h"

namespace halftone::nn::linear_sqnr_test {
namespace {

struct Problem {
  at::Tensor x, w, dy, target, bias;  // dY is `dy`, or from mse_loss(Y, target) of each layer's own Y
};

// Data and reference of several rows, and where their bounds are from.
struct Setting {
  const char* name;
  std::function<Problem()> make;
  bool fp64;  // the reference: fp64 GEMMs, or the unquantised bf16 layer
  const char* source;
};

// L: X ~ N(0, 1), W ~ U(+-1 / sqrt(K)).
at::Tensor data_l(int64_t n, int64_t k, uint64_t seed) {
  at::manual_seed(seed);
  return at::rand({n, k}).mul_(2).sub_(1).div_(std::sqrt(static_cast<double>(k))).to(at::kBFloat16).to(test_device());
}
at::Tensor device_l(int64_t n, int64_t k, uint64_t seed) {
  at::manual_seed(seed);
  return at::rand({n, k}, on_device()).mul_(2).sub_(1).div_(std::sqrt(static_cast<double>(k))).to(at::kBFloat16);
}
at::Tensor device_r(at::IntArrayRef shape, uint64_t seed) {
  at::manual_seed(seed);
  return at::randn(shape, on_device()).to(at::kBFloat16);
}
// Like data O, but from the device's generator, reseeded before every tensor: X, W and the target share leading values.
at::Tensor data_a(at::IntArrayRef shape) {
  at::manual_seed(1234);
  const at::Tensor x = at::randn(shape, on_device()).to(at::kBFloat16);
  const at::Tensor mask = at::rand(shape, on_device()).lt(0.005).to(at::kBFloat16);
  return x + (at::randn(shape, on_device()).to(at::kBFloat16) * 100) * mask;
}

at::Tensor one() { return at::ones({}, on_device()); }
Problem square(const std::function<at::Tensor(at::IntArrayRef, uint64_t)>& data, int64_t n, uint64_t seed) {
  return {data({n, n}, seed), data({n, n}, seed + 1), data({n, n}, seed + 2), {}, {}};
}
Problem on_a(int64_t m, int64_t k, int64_t n) { return {data_a({m, k}), data_a({n, k}), {}, data_a({m, n}).to(at::kFloat), {}}; }
Problem to_vocabulary(int64_t m, int64_t n) {
  return {device_r({m, 4096}, 1234), device_l(n, 4096, 1235), at::ones({m, n}, on_device(at::kBFloat16)), {}, {}};
}
Problem for_mxfp8(bool bias) {
  return {data_r({1024, 1024}, 1234), data_l(2048, 1024, 1235), {}, one(), bias ? data_l(1, 2048, 7).view(-1) : at::Tensor()};
}

constexpr const char *k132 = "numerics.md 13.2", *k133 = "numerics.md 13.3";
const Setting kOnR{"R", [] { return square(data_r, 1024, 1234); }, true, k133},
    kOnO{"O", [] { return square(data_o, 1024, 1234); }, true, k133};
const Setting kFp8{"fp8", [] { return Problem{data_r({1024, 1024}, 1234), data_r({2048, 1024}, 1235), {}, one(), {}}; }, false, k132};
// dY = 1 is exact, so only X and W are tested.
const Setting kBlocksOfOnes{
    "sum",
    [] {
      return Problem{data_r({256, 4096}, 1234), data_l(2048, 4096, 1235), at::ones({256, 2048}, on_device(at::kBFloat16)), {}, {}};
    },
    false, k132};
const Setting kBlocks{"mse",
                      [] {
                        return Problem{data_r({128, 128}, 0), data_r({128, 128}, 1), {}, data_r({128, 128}, 2).to(at::kFloat), {}};
                      },
                      false, k132};
const Setting kMxfp8{"L", [] { return for_mxfp8(false); }, false, k132}, kMxfp8Bias{"L_bias", [] { return for_mxfp8(true); }, false, k132};
const Setting kNvfp4{"nvfp4", [] { return Problem{data_r({1024, 1024}, 1234), data_r({1152, 1024}, 1235), {}, one(), {}}; }, false, k132};
const Setting kSmallInt8{"small", [] { return square(data_r, 64, 1); }, true, k132};
const Setting kSmallA{"A_small", [] { return on_a(512, 128, 384); }, false, k132},
    kLargeA{"A_large", [] { return on_a(4096, 2048, 1024); }, false, k132};
const Setting kVocabulary[] = {{"256_to_4096", [] { return to_vocabulary(256, 4096); }, false, k132},
                               {"256_to_128256", [] { return to_vocabulary(256, 128256); }, false, k132},
                               {"2048_to_4096", [] { return to_vocabulary(2048, 4096); }, false, k132},
                               {"2048_to_128256", [] { return to_vocabulary(2048, 128256); }, false, k132}};

constexpr double kNone = std::numeric_limits<double>::infinity();
struct Bound {
  double low = -kNone, high = kNone;  // too good means that an operand was not quantised
};
using Set = std::function<void(RecipeOptions&)>;
struct Case {
  std::string name, scheme;
  Set set;
  const Setting* setting;
  std::array<Bound, 3> bounds;  // Y, dX, dW
  bool stored = false;          // the weight is codes without a master copy
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name << ", bounds of " << c.setting->source; }

void alto(RecipeOptions& o) { o.preset = "alto"; }
void plain(RecipeOptions&) {}
// Square blocks of W under scales of amax / 6, as numerics.md 13.3 measured.
void tiled(RecipeOptions& o) { o.use_2dblock_w = true, o.scale_choice = "none"; }

constexpr double kExact = kNone;                                        // unquantised operands: at most bf16 rounding, 54 dB
constexpr double kNotGiven = std::numeric_limits<double>::quiet_NaN();  // the source has no figure

// Figures of numerics.md 13.3 at M = K = N = 1024, with their tolerances: -0.3 and +0.5 dB on R, -0.6 and +0.8 dB on O.
struct Figures {
  const char* name;
  const char* scheme;
  Set set;
  std::array<double, 3> r, o;
  bool stored = false;
};
const std::vector<Figures>& figures() {
  static const std::vector<Figures> kFigures = {
      {"fp8_tensorwise", "fp8_tensorwise", alto, {28.5, 24.6, 24.6}, {28.5, 24.6, 24.5}},
      {"fp8_rowwise", "fp8_rowwise", alto, {28.45, 28.45, 28.45}, {28.5, 28.4, 28.5}},
      {"fp8_rowwise_wgrad_hp", "fp8_rowwise", [](auto& o) { o.wgrad_hp = true; }, {28.45, 28.45, kExact}, {28.5, 28.4, kExact}},
      {"fp8_rowwise_with_gw_hp", "fp8_rowwise_with_gw_hp", alto, {28.45, 28.45, kExact}, {28.5, 28.4, kExact}},
      {"fp8_blockwise", "fp8_blockwise", alto, {28.65, 28.65, 28.75}, {31.4, 31.4, 37.6}},
      {"mxfp8_e4m3", "mxfp8_e4m3", alto, {28.45, 28.45, 28.45}, {28.5, 28.4, 28.5}},
      {"mxfp8_e4m3_1d", "mxfp8_e4m3", [](auto& o) { o.use_2dblock_w = false; }, {28.45, 28.45, 28.45}, {28.5, 28.4, 28.5}},
      {"mxfp8_e4m3_sr", "mxfp8_e4m3", [](auto& o) { o.use_sr_grad = true; }, {28.45, 26.75, 26.75}, {28.5, kNotGiven, kNotGiven}},
      {"mxfp8_e4m3_wgrad_hp", "mxfp8_e4m3", [](auto& o) { o.wgrad_hp = true; }, {28.45, 28.45, kExact}, {28.5, 28.4, kExact}},
      {"mxfp8_e4m3_even", "mxfp8_e4m3", [](auto& o) { o.scale_mode = "even"; }, {28.25, 28.25, 28.15}, {27.0, 27.0, 26.5}},
      {"mxfp8_e4m3_adaptive", "mxfp8_e4m3", [](auto& o) { o.scale_mode = "adaptive"; }, {28.25, 28.25, 28.15}, {27.0, 27.0, 26.5}},
      {"mxfp8_e5m2", "mxfp8_e5m2", alto, {22.5, 22.5, 22.5}, {22.5, 22.5, 22.6}},
      {"mxfp4_1d", "mxfp4", [](auto& o) { alto(o), o.use_2dblock_w = false; }, {16.05, 16.05, 16.05}, {15.9, 15.9, 15.9}},
      {"mxfp4_2dw", "mxfp4", alto, {15.4, 15.4, 16.05}, {13.7, 13.7, 15.9}},
      {"mxfp4_2dw_hadamard", "mxfp4", [](auto& o) { alto(o), o.use_hadamard = true; }, {15.4, 15.4, 16.05}, {13.7, 13.7, 16.65}},
      {"mxfp4", "mxfp4", tiled, {15.4, 13.8, 14.25}, {13.7, 11.9, 15.0}},
      {"mxfp4_2dx", "mxfp4", [](auto& o) { alto(o), o.use_2dblock_x = true; }, {14.8, 14.8, 14.8}, {12.3, 12.3, 12.3}},
      {"mxfp4_2dx_sr",
       "mxfp4",
       [](auto& o) { alto(o), o.use_2dblock_x = true, o.use_sr_grad = true; },
       {14.8, 13.0, 13.0},
       {12.3, 5.7, 5.7}},
      {"mxfp4_uos", "mxfp4", [](auto& o) { alto(o), o.use_uos = true; }, {15.65, 15.65, 16.05}, {13.6, 13.6, 15.7}},
      {"mxfp4_macro", "mxfp4", [](auto& o) { alto(o), o.two_level_scaling = "blockwise"; }, {15.75, 15.75, 16.3}, {14.85, 14.85, 21.4}},
      {"mxfp4_recipe_macro",
       "mxfp4",
       [](auto& o) { tiled(o), o.two_level_scaling = "blockwise"; },
       {15.75, 14.1, 14.5},
       {14.85, 13.45, 15.2}},
      {"mxfp4_static_clip",
       "mxfp4",
       [](auto& o) { alto(o), o.use_hadamard = true, o.clip_mode = "static"; },
       {15.4, 15.4, 15.3},
       {13.7, 13.7, 16.7}},
      {"mxfp4_dynamic_clip",
       "mxfp4",
       [](auto& o) { alto(o), o.use_hadamard = true, o.clip_mode = "dynamic"; },
       {15.4, 15.4, 15.1},
       {13.7, 13.7, kNotGiven}},
      {"nvfp4_rne", "nvfp4", [](auto& o) { alto(o), o.two_level_scaling = "tensorwise"; }, {16.7, 16.7, 17.45}, {17.7, 17.65, 23.8}},
      {"amdfp4_rne", "amdfp4", [](auto& o) { alto(o), o.two_level_scaling = "tensorwise"; }, {16.7, 16.7, 17.45}, {17.7, 17.65, 23.8}},
      {"nvfp4_torchao", "nvfp4", [](auto& o) { o.style = "torchao"; }, {16.7, 15.05, 15.55}, {17.7, 15.9, 16.9}},
      {"nvfp4", "nvfp4", tiled, {16.7, 15.05, 15.55}, {17.7, 15.9, 15.8}},
      {"amdfp4", "amdfp4", tiled, {16.7, 15.05, 15.55}, {17.7, 15.9, 15.8}},
      {"nvfp4_4over6",
       "nvfp4",
       [](auto& o) { alto(o), o.two_level_scaling = "tensorwise", o.scale_choice = "four_over_six", o.use_2dblock_w = false; },
       {18.2, 18.2, 18.2},
       {24.8, 24.8, 24.8}},
      {"mxint8", "mxint8", alto, {37.3, 37.3, 38.3}, {22.4, 22.4, 31.9}},
      {"nvint4", "nvint4", [](auto& o) { alto(o), o.two_level_scaling = "tensorwise"; }, {16.3, 16.3, 18.3}, {17.6, 17.6, 23.7}},
      {"nvfp4_2dx",
       "nvfp4",
       [](auto& o) { alto(o), o.two_level_scaling = "tensorwise", o.use_2dblock_x = true; },
       {16.1, 16.1, 16.05},
       {15.3, 15.3, 15.3}},
      {"nvfp4_2dx_sr",
       "nvfp4",
       [](auto& o) { alto(o), o.two_level_scaling = "tensorwise", o.use_2dblock_x = true, o.use_sr_grad = true; },
       {16.1, 14.25, 14.25},
       {15.3, 9.9, 9.9}},
      {"int8", "int8", alto, {38.9, 38.9, 38.9}, {22.7, 22.7, 22.65}},
      {"int8_sr", "int8", [](auto& o) { o.stochastic_rounding = true; }, {36.0, 36.0, 36.0}, {19.6, 19.6, 19.6}},
      {"int4", "int4", alto, {14.25, 14.25, 14.25}, {13.5, 13.5, 13.5}},
      {"int8_weight", "int8_weight", plain, {41.75, 41.75, kNotGiven}, {25.7, 25.75, kNotGiven}, true},
      {"int8_weight_int8",
       "int8_weight",
       [](auto& o) { o.activation = "int8"; },
       {38.9, 41.75, kNotGiven},
       {kNotGiven, 25.75, kNotGiven},
       true},
      {"int4_weight", "int4_weight", plain, {22.1, 22.1, kNotGiven}, {20.5, 20.6, kNotGiven}, true},
  };
  return kFigures;
}

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const bool outliers : {false, true}) {
    for (const Figures& f : figures()) {
      Case c{std::string(f.name) + (outliers ? "_on_O" : "_on_R"), f.scheme, f.set, outliers ? &kOnO : &kOnR, {}, f.stored};
      for (size_t i = 0; i < 3; ++i) {
        const double db = outliers ? f.o[i] : f.r[i];
        if (db == kExact) c.bounds[i] = {54};
        if (std::isfinite(db)) c.bounds[i] = {db - (outliers ? 0.6 : 0.3), db + (outliers ? 0.8 : 0.5)};
      }
      if (f.stored) c.bounds[2] = {90};
      out.push_back(std::move(c));
    }
  }
  out.push_back({"bitnet_on_R", "bitnet", plain, &kOnR, {{{5.4, 6.2}, {5.4, 6.2}, {41.3, 42.1}}}});
  const auto least = [&](std::string name, const char* scheme, Set set, const Setting& setting, const std::array<double, 3>& low) {
    out.push_back({std::move(name), scheme, std::move(set), &setting, {{{low[0]}, {low[1]}, {low[2]}}}});
  };
  for (const char* scheme : {"fp8_tensorwise", "fp8_rowwise", "fp8_rowwise_with_gw_hp"}) {
    least(std::string(scheme) + "_of_ones", scheme, plain, kFp8, {25, 24, 23});
  }
  least("fp8_blockwise_sum", "fp8_blockwise", plain, kBlocksOfOnes, {25, 30, 30});
  least("fp8_blockwise_mse", "fp8_blockwise", plain, kBlocks, {25, 25, 25});
  least("mxfp8_e4m3_on_L", "mxfp8_e4m3", plain, kMxfp8, {27, 25, 24});
  least("mxfp8_e4m3_wgrad_hp_on_L", "mxfp8_e4m3", [](auto& o) { o.wgrad_hp = true; }, kMxfp8, {27, 25, 34});
  least("mxfp8_e4m3_bias_on_L", "mxfp8_e4m3", plain, kMxfp8Bias, {26, 25, 24});
  least("nvfp4_torchao_of_ones", "nvfp4", [](auto& o) { o.style = "torchao"; }, kNvfp4, {15, 14, 14});
  for (const bool output : {false, true}) {
    for (const bool grad : {false, true}) {
      const Bound y = output ? Bound{35, 50} : Bound{50}, g = grad ? Bound{35, 50} : Bound{50};
      out.push_back({fmt::format("int8_output_{}_grad_{}", output, grad),
                     "int8",
                     [=](auto& o) { o.output = output, o.grad_input = grad, o.grad_weight = grad; },
                     &kSmallInt8,
                     {{y, g, g}}});
    }
  }
  return out;
}

// Rows that need a GPU: data A, and GEMMs above 0.1 TFLOP.
std::vector<Case> large_cases() {
  std::vector<Case> out;
  const auto least = [&](const std::string& name, const char* scheme, Set set, const Setting& setting, double y, double dx, double dw) {
    out.push_back({name + "_" + setting.name, scheme, std::move(set), &setting, {{{y}, {dx}, {dw}}}});
  };
  for (const Setting* s : {&kSmallA, &kLargeA}) {
    least("mxfp8_e4m3", "mxfp8_e4m3", plain, *s, 24, 15, 15);
    least("mxfp8_e5m2", "mxfp8_e5m2", plain, *s, 19, 12, 12);
    least("mxfp4", "mxfp4", plain, *s, 8.4, 8.4, 8.4);
    least("mxfp4_alto", "mxfp4", alto, *s, 8.4, 8.4, 8.4);
    least(
        "mxfp4_1d", "mxfp4", [](auto& o) { alto(o), o.use_2dblock_w = false; }, *s, 10, 8.4, 8.4);
    least(
        "mxfp4_2dx", "mxfp4", [](auto& o) { alto(o), o.use_2dblock_x = true; }, *s, 8.4, 8.4, 8.4);
    least(
        "mxfp4_hadamard", "mxfp4", [](auto& o) { alto(o), o.use_hadamard = true; }, *s, 8.4, 8.4, 8.4);
    least(
        "mxfp4_sr", "mxfp4", [](auto& o) { alto(o), o.use_sr_grad = true; }, *s, 8.4, 8.4, 8.4);
    least(
        "mxfp4_uos", "mxfp4", [](auto& o) { alto(o), o.use_uos = true; }, *s, 8.4, 8.4, 8.4);
    least(
        "mxfp4_macro", "mxfp4", [](auto& o) { o.two_level_scaling = "blockwise"; }, *s, 8.4, 8.4, 8.4);
    least(
        "mxfp4_dynamic_clip", "mxfp4", [](auto& o) { o.clip_mode = "dynamic"; }, *s, 8.4, 8.4, 8.4);
    least(
        "mxfp4_static_clip", "mxfp4", [](auto& o) { o.clip_mode = "static"; }, *s, 6, 6, 6);
  }
  for (const Setting& s : kVocabulary) least("fp8_blockwise", "fp8_blockwise", plain, s, 25, 30, 30);
  return out;
}

LinearResult measured(const Problem& p, OneLinear& layer) {
  if (p.dy.defined()) return layer.run(p.x, p.dy);
  const at::Tensor y = layer.forward(p.x);
  return layer.run(p.x, ((y.to(at::kFloat) - p.target) * (2.0 / static_cast<double>(y.numel()))).to(y.scalar_type()));
}

LinearRecipe recipe(const std::string& scheme, const Set& set) {
  RecipeOptions o;
  set(o);
  return layer_recipe(scheme, o, "test").linear;
}

class LinearSqnr : public OnDeviceWith<Case> {};

TEST_P(LinearSqnr, IsWithinTheBounds) {
  const Case& c = param();
  test_step() = {1234, c.setting->fp64 ? 7u : 1u, 0};
  static std::pair<std::string, std::pair<Problem, LinearResult>> last;  // rows of one setting follow each other
  const std::string key = test_device().str() + c.setting->name;
  if (last.first != key) {
    last = {};
    const Problem p = c.setting->make();
    OneLinear layer(p.w, recipe("none", plain), p.bias);
    last = {key, {p, c.setting->fp64 ? exact(p.x, p.w, p.dy) : measured(p, layer)}};
  }
  const auto& [p, e] = last.second;
  const LinearRecipe r = recipe(c.scheme, c.set);
  OneLinear layer(p.w, r, p.bias);
  if (c.stored) layer.store_weight(r.w_forward);
  const LinearResult y = measured(p, layer);
  const at::Tensor wanted[] = {e.y, e.dx, e.dw}, found[] = {y.y, y.dx, y.dw};
  constexpr const char* kNames[] = {"Y", "dX", "dW"};
  for (size_t i = 0; i < 3; ++i) {
    const double db = sqnr(wanted[i], found[i]);
    const Bound& b = c.bounds[i];
    EXPECT_TRUE(b.low == -kNone || db > b.low) << kNames[i] << " is " << db << ", expected more than " << b.low;
    EXPECT_TRUE(b.high == kNone || db < b.high) << kNames[i] << " is " << db << ", expected less than " << b.high;
  }
  EXPECT_TRUE(!p.bias.defined() || sqnr(e.db, y.db) >= 26);
}

std::string name_of(const testing::TestParamInfo<std::tuple<std::string, Case>>& info) {
  return std::get<0>(info.param) + "_" + std::get<1>(info.param).name;
}
INSTANTIATE_TEST_SUITE_P(Recipes, LinearSqnr, testing::Combine(test_devices(), testing::ValuesIn(cases())), name_of);
INSTANTIATE_TEST_SUITE_P(Large, LinearSqnr, testing::Combine(testing::Values(std::string("cuda")), testing::ValuesIn(large_cases())),
                         name_of);

class LargeLinearSqnr : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(On, LargeLinearSqnr, testing::Values(std::string("cuda")), [](const auto& info) { return info.param; });

// nvfp4 and amdfp4 with their outer scales: every figure, and median and mean of all figures for a class of K.
struct Shape {
  int64_t m, k, n;
};
void fp4_on_data_a(bool stochastic) {
  test_step() = {1234, 1, 0};
  struct Class {
    std::vector<Shape> shapes;
    double each, middle;
  };
  const std::vector<Class> classes = {{{Shape{512, 128, 384}, {256, 192, 512}}, stochastic ? 12.0 : 16.0, stochastic ? 14.0 : 17.5},
                                      {{{512, 256, 384}, {1024, 512, 512}}, stochastic ? 10.0 : 14.0, stochastic ? 12.0 : 17.0},
                                      {{Shape{4096, 2048, 1024}, {1024, 1024, 1024}}, stochastic ? 9.0 : 12.0, stochastic ? 11.0 : 14.0}};
  for (const Class& c : classes) {
    std::vector<double> figures;
    for (const char* scheme : {"nvfp4", "amdfp4"}) {
      for (const bool tiles : {true, false}) {
        for (const bool rotated : {true, false}) {
          const LinearRecipe r =
              recipe(scheme, [&](RecipeOptions& o) { o.use_sr_grad = stochastic, o.use_2dblock_w = tiles, o.use_hadamard = rotated; });
          for (const Shape& s : c.shapes) {
            const Problem p = on_a(s.m, s.k, s.n);
            OneLinear unquantised(p.w, recipe("none", plain)), layer(p.w, r);
            const LinearResult e = measured(p, unquantised), y = measured(p, layer);
            for (const double db : {sqnr(e.y, y.y), sqnr(e.dx, y.dx), sqnr(e.dw, y.dw)}) {
              figures.push_back(db);
              EXPECT_GE(db, c.each) << scheme << (tiles ? " 2-D W" : " 1-D W") << (rotated ? " rotated" : "") << " K " << s.k;
            }
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
TEST_P(LargeLinearSqnr, Fp4ToNearestOnDataA) { fp4_on_data_a(false); }
TEST_P(LargeLinearSqnr, Fp4StochasticOnDataA) { fp4_on_data_a(true); }

// The feed-forward block of Llama: w2(silu(w1 x) * w3 x), sum of Y.
TEST_P(LargeLinearSqnr, Fp8FeedForward) {
  test_step() = {1234, 1, 0};
  const int64_t m = 8192, d = 4096, h = 14336;
  const at::Tensor x = device_r({m, d}, 1234);
  const at::Tensor w1 = device_l(h, d, 1235), w3 = device_l(h, d, 1236), w2 = device_l(d, h, 1237);
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
  const Result e = run(recipe("none", plain));
  for (const char* scheme : {"fp8_tensorwise", "fp8_rowwise", "fp8_rowwise_with_gw_hp"}) {
    const Result q = run(recipe(scheme, plain));
    EXPECT_GE(sqnr(e.y, q.y), 20) << scheme;
    for (size_t i = 0; i < 3; ++i) EXPECT_GE(sqnr(e.dw[i], q.dw[i]), 20) << scheme << " weight " << i;
  }
}

}  // namespace
}  // namespace halftone::nn::linear_sqnr_test
