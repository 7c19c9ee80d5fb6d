#include "halftone/nn/recipe.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

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

RecipePlan plan(const std::string& scheme, std::vector<std::string> targets = {"Linear"}) {
  RecipePlan p;
  RecipeRule rule;
  rule.scheme = scheme, rule.targets = std::move(targets);
  p.rules.push_back(rule);
  return p;
}

TEST(Recipe, IgnoredAndMisfitLayersStayUnquantised) {
  Net net;
  const auto lines = apply_recipes(net, plan("int8"), 0, at::kCPU);
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
  apply_recipes(net, plan("int8"), 0, at::kCPU);
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
  apply_recipes(floats, plan("int8"), 0, at::kCPU);
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
  EXPECT_THROW(apply_recipes(net, plan("int9"), 0, at::kCPU), Error);
  EXPECT_THROW(apply_recipes(net, plan("int8", {"re:nothing"}), 0, at::kCPU), Error);
  EXPECT_THROW(apply_recipes(net, plan("int8", {}), 0, at::kCPU), Error);
  RecipePlan wide = plan("mxfp4");
  wide.rules[0].lora_rank = 1 << 20;  // before anything of that size is allocated
  EXPECT_THROW(apply_recipes(net, wide, 0, at::kCPU), Error);
  RecipePlan twice = plan("int8");
  twice.rules.push_back(plan("fp8_rowwise", {"first"}).rules[0]);
  EXPECT_THROW(apply_recipes(net, twice, 0, at::kCPU), Error);
}

TEST(Recipe, SwitchesChooseTheProducts) {
  Net net;
  RecipePlan p = plan("int8");
  p.rules[0].grad_weight = false, p.rules[0].use_sr_grad = true;
  apply_recipes(net, p, 0, at::kCPU);
  EXPECT_FALSE(net.first.recipe().x_wgrad.quantized());
  EXPECT_TRUE(net.first.recipe().dy_dgrad.stochastic);
  EXPECT_FALSE(net.first.recipe().x_forward.stochastic);
  p.rules[0].scheme = "fp8_rowwise";
  EXPECT_THROW(apply_recipes(net, p, 0, at::kCPU), Error);
}

}  // namespace
}  // namespace halftone::nn::recipe_test
