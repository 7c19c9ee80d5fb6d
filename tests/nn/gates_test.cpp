// The two-sided gates of numerics.md 13.3: SQNR of Y, dX and dW of every recipe at M = K = N = 1024. Too good means that an operand was
// not quantised.
#include <gtest/gtest.h>

#include <limits>
#include <ostream>

#include "nn/linear_support.h"

namespace halftone::nn {
namespace {

constexpr double kExact = std::numeric_limits<double>::infinity();  // unquantised operands: at most bf16 rounding
constexpr double kNotGated = std::numeric_limits<double>::quiet_NaN();

struct Case {
  const char* name;
  const char* scheme;
  std::function<void(RecipeOptions&)> set;
  std::array<double, 3> r, o;  // dB of Y, dX, dW on data R and O
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

void alto(RecipeOptions& o) { o.preset = "alto"; }

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = {
      {"fp8_tensorwise", "fp8_tensorwise", alto, {28.5, 24.6, 24.6}, {28.5, 24.6, 24.5}},
      {"fp8_rowwise", "fp8_rowwise", alto, {28.45, 28.45, 28.45}, {28.5, 28.4, 28.5}},
      {"fp8_rowwise_wgrad_hp", "fp8_rowwise", [](auto& o) { o.wgrad_hp = true; }, {28.45, 28.45, kExact}, {28.5, 28.4, kExact}},
      {"fp8_rowwise_with_gw_hp", "fp8_rowwise_with_gw_hp", alto, {28.45, 28.45, kExact}, {28.5, 28.4, kExact}},
      {"fp8_blockwise", "fp8_blockwise", alto, {28.65, 28.65, 28.75}, {31.4, 31.4, 37.6}},
      {"mxfp8_e4m3", "mxfp8_e4m3", alto, {28.45, 28.45, 28.45}, {28.5, 28.4, 28.5}},
      {"mxfp8_e4m3_1d", "mxfp8_e4m3", [](auto& o) { o.use_2dblock_w = false; }, {28.45, 28.45, 28.45}, {28.5, 28.4, 28.5}},
      {"mxfp8_e4m3_sr", "mxfp8_e4m3", [](auto& o) { o.use_sr_grad = true; }, {28.45, 26.75, 26.75}, {28.5, kNotGated, kNotGated}},
      {"mxfp8_e4m3_wgrad_hp", "mxfp8_e4m3", [](auto& o) { o.wgrad_hp = true; }, {28.45, 28.45, kExact}, {28.5, 28.4, kExact}},
      {"mxfp8_e4m3_even", "mxfp8_e4m3", [](auto& o) { o.scale_mode = "even"; }, {28.25, 28.25, 28.15}, {27.0, 27.0, 26.5}},
      {"mxfp8_e4m3_adaptive", "mxfp8_e4m3", [](auto& o) { o.scale_mode = "adaptive"; }, {28.25, 28.25, 28.15}, {27.0, 27.0, 26.5}},
      {"mxfp8_e5m2", "mxfp8_e5m2", alto, {22.5, 22.5, 22.5}, {22.5, 22.5, 22.6}},
      {"mxfp4_1d", "mxfp4", [](auto& o) { alto(o), o.use_2dblock_w = false; }, {16.05, 16.05, 16.05}, {15.9, 15.9, 15.9}},
      {"mxfp4_2dw", "mxfp4", alto, {15.4, 15.4, 16.05}, {13.7, 13.7, 15.9}},
      {"mxfp4_2dw_hadamard", "mxfp4", [](auto& o) { alto(o), o.use_hadamard = true; }, {15.4, 15.4, 16.05}, {13.7, 13.7, 16.65}},
      {"mxfp4", "mxfp4", [](auto&) {}, {15.4, 13.8, 14.25}, {13.7, 11.9, 15.0}},
      {"mxfp4_2dx", "mxfp4", [](auto& o) { alto(o), o.use_2dblock_x = true; }, {14.8, 14.8, 14.8}, {12.3, 12.3, 12.3}},
      {"mxfp4_2dx_sr",
       "mxfp4",
       [](auto& o) { alto(o), o.use_2dblock_x = true, o.use_sr_grad = true; },
       {14.8, 13.0, 13.0},
       {12.3, 5.7, 5.7}},
      {"mxfp4_uos", "mxfp4", [](auto& o) { alto(o), o.use_uos = true; }, {15.65, 15.65, 16.05}, {13.6, 13.6, 15.7}},
      {"mxfp4_macro", "mxfp4", [](auto& o) { alto(o), o.two_level_scaling = "blockwise"; }, {15.75, 15.75, 16.3}, {14.85, 14.85, 21.4}},
      {"mxfp4_recipe_macro", "mxfp4", [](auto& o) { o.two_level_scaling = "blockwise"; }, {15.75, 14.1, 14.5}, {14.85, 13.45, 15.2}},
      {"mxfp4_static_clip",
       "mxfp4",
       [](auto& o) { alto(o), o.use_hadamard = true, o.clip_mode = "static"; },
       {15.4, 15.4, 15.3},
       {13.7, 13.7, 16.7}},
      {"mxfp4_dynamic_clip",
       "mxfp4",
       [](auto& o) { alto(o), o.use_hadamard = true, o.clip_mode = "dynamic"; },
       {15.4, 15.4, 15.1},
       {13.7, 13.7, kNotGated}},
      {"nvfp4_rne", "nvfp4", [](auto& o) { alto(o), o.two_level_scaling = "tensorwise"; }, {16.7, 16.7, 17.45}, {17.7, 17.65, 23.8}},
      {"amdfp4_rne", "amdfp4", [](auto& o) { alto(o), o.two_level_scaling = "tensorwise"; }, {16.7, 16.7, 17.45}, {17.7, 17.65, 23.8}},
      {"nvfp4_torchao", "nvfp4", [](auto& o) { o.style = "torchao"; }, {16.7, 15.05, 15.55}, {17.7, 15.9, 16.9}},
      {"nvfp4", "nvfp4", [](auto&) {}, {16.7, 15.05, 15.55}, {17.7, 15.9, 15.8}},
      {"amdfp4", "amdfp4", [](auto&) {}, {16.7, 15.05, 15.55}, {17.7, 15.9, 15.8}},
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
  };
  return kCases;
}

class Gates : public OnDeviceWith<Case> {};

void gate(const Case& c, bool outliers, const std::array<double, 3>& reference) {
  test_step() = {1234, 7, 0};
  const auto data = [&](uint64_t seed) { return outliers ? data_o({1024, 1024}, seed) : data_r({1024, 1024}, seed); };
  struct Set {
    at::Tensor x, w, dy;
    LinearResult exact;
  };
  static std::map<std::pair<bool, bool>, Set> sets;
  const std::pair key(test_device().is_cuda(), outliers);
  if (!sets.count(key)) {
    Set s{data(1234), data(1235), data(1236), {}};
    s.exact = exact(s.x, s.w, s.dy);
    sets[key] = s;
  }
  const Set& s = sets[key];
  RecipeOptions options;
  c.set(options);
  OneLinear layer(s.w, layer_recipe(c.scheme, options, "test").linear);
  const LinearResult result = layer.run(s.x, s.dy);
  const at::Tensor wanted[] = {s.exact.y, s.exact.dx, s.exact.dw}, found[] = {result.y, result.dx, result.dw};
  constexpr const char* kNames[] = {"Y", "dX", "dW"};
  for (int i = 0; i < 3; ++i) {
    if (std::isnan(reference[i])) continue;
    const double db = sqnr(wanted[i], found[i]);
    if (std::isinf(reference[i])) {
      EXPECT_GT(db, 54) << kNames[i] << (outliers ? " on O" : " on R");
      continue;
    }
    EXPECT_GT(db, reference[i] - (outliers ? 0.6 : 0.3)) << kNames[i] << (outliers ? " on O" : " on R");
    EXPECT_LT(db, reference[i] + (outliers ? 0.8 : 0.5)) << kNames[i] << (outliers ? " on O" : " on R");
  }
}

TEST_P(Gates, OnNormalData) { gate(param(), false, param().r); }
TEST_P(Gates, OnOutliers) { gate(param(), true, param().o); }

INSTANTIATE_TEST_SUITE_P(Recipes, Gates, testing::Combine(test_devices(), testing::ValuesIn(cases())),
                         [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param).name; });

}  // namespace
}  // namespace halftone::nn
