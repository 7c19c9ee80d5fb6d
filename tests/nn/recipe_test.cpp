#include "halftone/nn/recipe.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "halftone/base/error.h"
#include "halftone/nn/layers.h"
#include "halftone/nn/parameter_store.h"
#include "halftone/nn/target.h"

namespace halftone::nn::recipe_test {
namespace {

class Net : public Module {
 public:
  Net()
      : first(add<Linear>("first", 64, 32, Init{})),
        odd(add<Linear>("odd", 20, 32, Init{})),
        output(add<Linear>("output", 32, 16, Init{})) {
    assign_names("");
  }
  Linear &first, &odd, &output;
};

RecipeRules rules(const std::string& scheme, std::vector<std::string> targets = {"Linear"}) {
  RecipeRules p;
  RecipeRule rule;
  rule.scheme = scheme, rule.targets = std::move(targets);
  p.rules.push_back(rule);
  return p;
}

TEST(Recipe, IgnoredAndMisfitLayersStayUnquantised) {
  Net net;
  const auto lines = apply_recipes(net, rules("int8"), 0, at::kCPU);
  EXPECT_EQ(net.first.recipe().name, "int8");
  EXPECT_EQ(net.odd.recipe().name, "none");
  EXPECT_EQ(net.output.recipe().name, "none");
  ASSERT_EQ(lines.size(), 2);  // which layers, and how their GEMMs run here
  EXPECT_NE(lines[0].find("int8 on 1 Linear"), std::string::npos);
  EXPECT_NE(lines[0].find("1 ignored (output)"), std::string::npos);
  EXPECT_NE(lines[0].find("odd: sizes must be multiples of 16"), std::string::npos);
}

// GEMMs of a layer with a recipe read only codes: it has no compute copy, and a unit of its own.
TEST(Recipe, WeightsReadAsCodesAloneHaveNoCopy) {
  Net net;
  apply_recipes(net, rules("int8"), 0, at::kCPU);
  EXPECT_EQ(ParameterStore::least_bytes(net, {}), 64 * 32 * (4 + 4) + (20 * 32 + 32 * 16) * (4 + 4 + 2));
  ParameterStore store;
  store.materialize(net, {});
  store.initialize(1);
  ASSERT_EQ(store.units().size(), 2);
  EXPECT_EQ(store.units()[0].name, net.first.weight.unit + ".quantized");
  EXPECT_FALSE(store.units()[0].flat.compute.defined());
  const Weight &codes = net.first.weight.weight, &plain = net.odd.weight.weight;
  EXPECT_TRUE(codes.master.is_alias_of(net.first.weight.master));
  EXPECT_EQ(codes.value.sizes(), net.first.weight.master.sizes());
  EXPECT_EQ(codes.value.scalar_type(), at::kBFloat16);
  EXPECT_EQ(codes.value.storage().nbytes(), 2);
  EXPECT_TRUE(codes.value.requires_grad());
  EXPECT_FALSE(plain.master.defined());
  EXPECT_TRUE(at::equal(plain.value, net.odd.weight.master.to(at::kBFloat16)));

  Net floats;  // unquantised: the quantiser reads them directly
  apply_recipes(floats, rules("int8"), 0, at::kCPU);
  StorageOptions options;
  options.compute = at::kFloat;
  ParameterStore whole;
  whole.materialize(floats, options);
  EXPECT_EQ(whole.units().size(), 1);
  EXPECT_TRUE(floats.first.weight.weight.value.is_alias_of(floats.first.weight.master));
}

TEST(Recipe, MatchingFollowsRuleC) {
  Net net;
  const auto matches = [](const Module& module, const char* text) { return Target(text, Target::Rule::c, "").matches(module); };
  EXPECT_TRUE(matches(net.first, "Linear"));
  EXPECT_TRUE(matches(net.first, "first"));
  EXPECT_TRUE(matches(net.first, "re:fir"));    // from the start, not to the end
  EXPECT_FALSE(matches(net.first, "re:irst"));  // not from the start
  EXPECT_FALSE(matches(net.first, "re:fir$"));
  EXPECT_TRUE(matches(net.first, "re:f(?:ir|i)[^a-q]\\w$"));
  EXPECT_TRUE(matches(net.first, "re:\\u0066irst"));  // as ECMAScript has it
  EXPECT_FALSE(matches(net.first, "fir"));
  EXPECT_TRUE(matches(net.output, "lm_head"));
  EXPECT_THROW(matches(net.first, "re:("), Error);
}

TEST(Recipe, MatchingByPartsOfNames) {
  Net net;
  const auto matches = [](const Module& module, const char* text) { return Target(text, Target::Rule::substring, "").matches(module); };
  EXPECT_TRUE(matches(net.first, "irs"));
  EXPECT_FALSE(matches(net.first, "Linear"));
  EXPECT_FALSE(matches(net.first, "re:first"));
}

// Backtracking would effectively never end.
TEST(Recipe, PatternsThatTakeForeverAreErrors) {
  struct Deep : Module {
    Linear& last = add<Linear>("layers.10.feed_forward.w1", 16, 16, Init{});
  } net;
  net.assign_names("");
  try {
    Target("re:(.*)*(.*)*(.*)*(.*)*(.*)*ww", Target::Rule::c, "F.yaml:2: quantize.targets: ").matches(net.last);
    FAIL() << "it matched or did not";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("F.yaml:2: quantize.targets: 're:(.*)*"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("with layers.10.feed_forward.w1 failed (match limit exceeded); write a simpler pattern"),
              std::string::npos)
        << e.what();
  }
}

TEST(Recipe, MistakesAreErrors) {
  Net net;
  EXPECT_THROW(apply_recipes(net, rules("int9"), 0, at::kCPU), Error);
  EXPECT_THROW(apply_recipes(net, rules("int8", {"re:nothing"}), 0, at::kCPU), Error);
  EXPECT_THROW(apply_recipes(net, rules("int8", {}), 0, at::kCPU), Error);
  RecipeRules wide = rules("mxfp4");
  wide.rules[0].lora_rank = 1 << 20;  // before anything of that size is allocated
  EXPECT_THROW(apply_recipes(net, wide, 0, at::kCPU), Error);
  RecipeRules twice = rules("int8");
  twice.rules.push_back(rules("fp8_rowwise", {"first"}).rules[0]);
  EXPECT_THROW(apply_recipes(net, twice, 0, at::kCPU), Error);
}

TEST(Recipe, SwitchesChooseTheProducts) {
  Net net;
  RecipeRules p = rules("int8");
  p.rules[0].grad_weight = false, p.rules[0].use_sr_grad = true;
  apply_recipes(net, p, 0, at::kCPU);
  EXPECT_FALSE(net.first.recipe().x_wgrad.quantized());
  EXPECT_TRUE(net.first.recipe().dy_dgrad.stochastic);
  EXPECT_FALSE(net.first.recipe().x_forward.stochastic);
  p.rules[0].scheme = "fp8_rowwise";
  EXPECT_THROW(apply_recipes(net, p, 0, at::kCPU), Error);
}

// A scheme that the table does not have: fp8 rows forward, compute dtype backward. Its row alone makes a layer run with it.
TEST(Recipe, AToySchemeIsOneRow) {
  constexpr auto kRow = detail::kRow8;
  static constexpr SchemeFamily kFamily{.options = "fast_accum", .experts = false};
  const Scheme toy{detail::operands("toy", 16, kRow, kRow, {}, {}, {}, {}), "fp8 rows forward", &kFamily};
  RecipeOptions options;
  options.fast_accum = StringList{"forward"};
  const LayerRecipe recipe = layer_recipe(toy, options, "first");
  EXPECT_EQ(recipe.options, StringList{"fast_accum = [\"forward\"]"});
  EXPECT_TRUE(recipe.linear.fast_accum[0]);
  EXPECT_FALSE(recipe.scheme.family->experts);
  RecipeOptions wrong;
  wrong.use_dge = true;
  try {
    layer_recipe(toy, wrong, "first");
    FAIL() << "it took an option that its row does not name";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("found true with quantize.scheme = toy"), std::string::npos) << e.what();
  }

  Net toys, rows, plain;
  toys.first.set_recipe(recipe);
  rows.first.set_recipe(layer_recipe("fp8_rowwise", {}, "first"));
  std::vector<at::Tensor> y, dx, dw;
  at::manual_seed(1);
  const at::Tensor x = at::randn({48, 64}), dy = at::randn({48, 32}), w = at::randn({32, 64});
  for (Net* net : {&toys, &rows, &plain}) {
    at::NoGradGuard no_grad;
    ParameterStore store;
    StorageOptions storage;
    storage.compute = at::kFloat;
    store.materialize(*net, storage);
    store.initialize(1);
    net->first.weight.master.copy_(w);
    store.masters_changed();
    at::AutoGradMode grad(true);
    const at::Tensor input = x.clone().set_requires_grad(true), out = net->first(input, {1, 1, 0});
    torch::autograd::backward({out}, {dy});
    y.push_back(out.detach()), dx.push_back(input.grad()), dw.push_back(net->first.weight.weight.grad.clone());
  }
  EXPECT_TRUE(at::equal(y[0], y[1]));
  EXPECT_FALSE(at::equal(y[0], y[2]));
  EXPECT_TRUE(at::equal(dx[0], dx[2]) && at::equal(dw[0], dw[2]));
  EXPECT_FALSE(at::equal(dx[1], dx[2]) || at::equal(dw[1], dw[2]));
}

}  // namespace
}  // namespace halftone::nn::recipe_test
