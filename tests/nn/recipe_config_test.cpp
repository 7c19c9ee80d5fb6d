#include "halftone/nn/recipe_config.h"

#include <gtest/gtest.h>

#include <fstream>

#include "halftone/base/error.h"
#include "halftone/config/load.h"
#include "halftone/nn/layers.h"

namespace halftone::nn::recipe_config_test {
namespace {

using Strings = std::vector<std::string>;

JobConfig config(const Strings& args) { return load_config_text("", "X.toml", args).config; }
RecipeRules plan(const Strings& args, int64_t layers = 6) {
  const JobConfig c = config(args);
  return recipe_rules(c.quantize, c.model, layers);
}

TEST(RecipeConfig, EveryOptionReachesTheRule) {
  const RecipeRules p = plan({"--quantize.scheme=mxfp4",        "--quantize.targets=re:.*w1",     "--quantize.ignore=re:layers.0",
                              "--quantize.preset=alto",         "--quantize.use_2dblock_x=false", "--quantize.use_2dblock_w=false",
                              "--quantize.use_hadamard",        "--quantize.use_sr_grad",         "--quantize.use_dge",
                              "--quantize.clip_mode=dynamic",   "--quantize.scale_mode=even",     "--quantize.wgrad_hp=false",
                              "--quantize.lora_rank=64",        "--quantize.deosc_step=10",       "--quantize.deosc_period=20",
                              "--quantize.deosc_ratio=8",       "--quantize.deosc_log_freq=2",    "--quantize.emulate",
                              "--quantize.skip_first_layers=1", "--quantize.skip_last_layers=0.2"});
  ASSERT_EQ(p.rules.size(), 1u);
  const RecipeRule& r = p.rules[0];
  EXPECT_EQ(r.scheme, "mxfp4");
  EXPECT_EQ(r.targets, Strings{"re:.*w1"});
  EXPECT_EQ(r.ignore, Strings{"re:layers.0"});
  EXPECT_EQ(r.preset, "alto");
  EXPECT_EQ(r.use_2dblock_x, false);
  EXPECT_EQ(r.use_2dblock_w, false);
  EXPECT_EQ(r.use_hadamard, true);
  EXPECT_EQ(r.use_sr_grad, true);
  EXPECT_EQ(r.use_dge, true);
  EXPECT_EQ(plan({"--quantize.scheme=mxfp4", "--quantize.two_level_scaling=blockwise"}).rules[0].two_level_scaling, "blockwise");
  EXPECT_EQ(r.clip_mode, "dynamic");
  EXPECT_EQ(r.scale_mode, "even");
  EXPECT_EQ(r.wgrad_hp, false);
  EXPECT_EQ(r.lora_rank, 64);
  EXPECT_EQ(r.deosc_step, 10);
  EXPECT_EQ(r.deosc_period, 20);
  EXPECT_EQ(r.deosc_ratio, 8);
  EXPECT_EQ(r.deosc_log_freq, 2);
  EXPECT_TRUE(r.emulate);
  EXPECT_EQ(p.skip_first_layers, 1);
  EXPECT_EQ(p.skip_last_layers, 2);  // 0.2 * 6 rounded up
  EXPECT_EQ(plan({"--quantize.scheme=mxfp4", "--quantize.use_uos"}).rules[0].use_uos, true);
  EXPECT_EQ(plan({"--quantize.scheme=nvfp4", "--quantize.style=torchao"}).rules[0].style, "torchao");
  const RecipeRule integer =
      plan({"--quantize.scheme=int8", "--quantize.no_grad_input", "--quantize.no_grad_weight", "--quantize.stochastic_rounding"}).rules[0];
  EXPECT_EQ(plan({"--quantize.scheme=int8", "--quantize.no_output"}).rules[0].output, false);
  EXPECT_EQ(integer.grad_input, false);
  EXPECT_EQ(integer.grad_weight, false);
  EXPECT_EQ(integer.stochastic_rounding, true);
  EXPECT_EQ(plan({"--quantize.scheme=int8_weight", "--quantize.activation=int8_sr"}).rules[0].activation, "int8_sr");
  const RecipeRule fp8 =
      plan({"--quantize.scheme=fp8_rowwise", "--quantize.fast_accum=forward,wgrad", "--quantize.round_scales_to_power_of_2=false"})
          .rules[0];
  EXPECT_EQ(fp8.fast_accum, (Strings{"forward", "wgrad"}));
  EXPECT_EQ(fp8.round_scales_to_power_of_2, false);
}

// Unset options are left to the preset.
TEST(RecipeConfig, UnsetOptionsStayUnset) {
  const RecipeRule r = plan({"--quantize.scheme=nvfp4"}).rules[0];
  EXPECT_EQ(r.preset, "recommended");
  EXPECT_FALSE(r.use_hadamard || r.use_sr_grad || r.two_level_scaling || r.scale_mode || r.fast_accum || r.deosc_step);
  const LayerRecipe recommended = layer_recipe(r.scheme, r, "w");
  EXPECT_EQ(recommended.linear, *find_linear_recipe("nvfp4"));
  RecipeRule alto = r;
  alto.preset = "alto";
  EXPECT_EQ(layer_recipe("nvfp4", alto, "w").linear.x_wgrad.hadamard, 0);
  EXPECT_EQ(layer_recipe("nvfp4", alto, "w").warnings.size(), 1u);  // no outer scale
}

TEST(RecipeConfig, TablesGiveEachSchemeItsOwnOptions) {
  const RecipeRules p = plan({"--quantize.scheme={\"mxfp4\": [\"re:.*w1\"], \"int8\": [\"re:.*w2\"], \"nvfp4\": \"re:.*w3\"}",
                              "--quantize.use_hadamard", "--quantize.stochastic_rounding", "--quantize.two_level_scaling=tensorwise"});
  ASSERT_EQ(p.rules.size(), 3u);
  EXPECT_EQ(p.rules[0].use_hadamard, true);
  EXPECT_FALSE(p.rules[0].stochastic_rounding || p.rules[0].two_level_scaling);
  EXPECT_EQ(p.rules[1].stochastic_rounding, true);
  EXPECT_FALSE(p.rules[1].use_hadamard.has_value());
  EXPECT_EQ(p.rules[2].two_level_scaling, "tensorwise");
  for (const RecipeRule& r : p.rules) EXPECT_NO_THROW(layer_recipe(r.scheme, r, "w"));
}

TEST(RecipeConfig, ConvertersOfTorchtitan) {
  const RecipeRule tensorwise = plan({"--model.converters=quantize.linear.float8"}).rules[0];
  EXPECT_EQ(tensorwise.scheme, "fp8_tensorwise");
  EXPECT_EQ(tensorwise.targets, Strings{""});
  EXPECT_TRUE(tensorwise.targets_are_substrings);
  EXPECT_TRUE(tensorwise.ignore.empty());
  EXPECT_FALSE(tensorwise.auto_filter_small_kn);

  const RecipeRule filtered = plan({"--model.converters=float8", "--quantize.linear.float8.recipe_name=rowwise",
                                    "--quantize.linear.float8.emulate", "--quantize.linear.float8.filter_fqns=output,auto_filter_small_kn"})
                                  .rules[0];
  EXPECT_EQ(filtered.scheme, "fp8_rowwise");
  EXPECT_EQ(filtered.ignore, Strings{"output"});
  EXPECT_TRUE(filtered.auto_filter_small_kn);
  EXPECT_TRUE(filtered.emulate);
  EXPECT_EQ(plan({"--model.converters=float8", "--quantize.linear.float8.recipe_name=rowwise_with_gw_hp"}).rules[0].scheme,
            "fp8_rowwise_with_gw_hp");

  struct Case {
    const char *name, *mode;
    bool emulate;
  };
  for (const auto& [name, mode, emulate] :
       {Case{"mxfp8_cublas", "floor", false}, {"mxfp8_cublas_rceil", "rceil", false}, {"mxfp8_emulated", "floor", true}}) {
    const RecipeRule r = plan({"--model.converters=mx", std::string("--quantize.linear.mx.recipe_name=") + name}).rules[0];
    EXPECT_EQ(r.scheme, "mxfp8_e4m3");
    EXPECT_EQ(r.use_2dblock_w, false) << name;
    EXPECT_EQ(r.scale_mode, mode) << name;
    EXPECT_EQ(r.emulate, emulate) << name;
    EXPECT_EQ(r.ignore, Strings{"output"});  // torchtitan's default
  }
  EXPECT_TRUE(plan({"--model.converters=quantize.grouped_mm.mx"}).rules.empty());
  for (const auto& [name, scheme] : {std::pair{"mx", "mxfp8_e4m3"}, {"float8", "fp8_rowwise"}}) {
    const std::string converter = fmt::format("quantize.grouped_mm.{}", name);
    const RecipeRules p = plan({"--model.converters=" + converter, fmt::format("--{}.fqns=experts", converter)});
    ASSERT_EQ(p.rules.size(), 1u);
    EXPECT_EQ(p.rules[0].scheme, scheme);
    EXPECT_EQ(p.rules[0].kind, "GroupedExperts");
    EXPECT_EQ(p.rules[0].targets, Strings{"experts"});
    EXPECT_TRUE(p.rules[0].targets_are_substrings);
  }
}

TEST(RecipeConfig, RecipeFilesBecomeRulesWithTheirPlace) {
  const std::string path = testing::TempDir() + "halftone_recipe_config_test.yaml";
  std::ofstream(path) << "a_stage:\n  one_modifiers:\n    LowPrecisionTrainingModifier: {scheme: nvfp4, two_level_scaling: tensorwise}\n"
                         "  two_modifiers:\n    LowPrecisionTrainingModifier:\n"
                         "      {scheme: int8, targets: [output], ignore: [], skip_last_layers: 2, emulate: true, group_align: 64}\n";
  testing::internal::CaptureStdout();
  const RecipeRules p = plan({"--quantize.recipe", path});
  EXPECT_NE(testing::internal::GetCapturedStdout().find(path + ":5: quantize.group_align: each expert's rows are padded"),
            std::string::npos);
  ASSERT_EQ(p.rules.size(), 2u);
  EXPECT_EQ(p.rules[0].preset, "alto");
  EXPECT_EQ(p.rules[0].two_level_scaling, "tensorwise");
  EXPECT_EQ(p.rules[0].place, path + ":3: ");
  EXPECT_FALSE(p.rules[0].emulate);
  EXPECT_EQ(p.rules[1].targets, Strings{"output"});
  EXPECT_EQ(p.rules[1].skip_last_layers, 2);
  EXPECT_TRUE(p.rules[1].emulate);
  EXPECT_TRUE(plan({"--quantize.recipe", path, "--quantize.emulate"}).rules[0].emulate);
  std::remove(path.c_str());
  EXPECT_THROW(plan({"--quantize.recipe", path}), Error);
}

// Not only the configuration validates: a plan can be made from any QuantizeConfig.
TEST(RecipeConfig, WhatTheConfigurationWouldRefuseFailsHereToo) {
  QuantizeConfig q;
  q.scheme.name = "int8";
  q.use_hadamard = true;
  const RecipeRule r = recipe_rules(q, {}, 6).rules[0];
  EXPECT_THROW(layer_recipe(r.scheme, r, "layers.0.attention.wq"), Error);
  q = {};
  q.scheme.name = "fp8_blockwise";
  ModelConfig model;
  model.converters = {"quantize.linear.mx"};
  EXPECT_THROW(recipe_rules(q, model, 6), Error);
}

class Net : public Module {
 public:
  Net()
      : wide(add<Linear>("layers.0.wide", 64, 4096, Init{})),
        odd(add<Linear>("layers.1.odd", 40, 64, Init{})),
        output(add<Linear>("output", 64, 32, Init{})),
        norm(add<RMSNorm>("norm", 64, 1e-5)) {
    wide.make_unit("layers.0", 0), odd.make_unit("layers.1", 1);
    assign_names("");
  }
  Linear &wide, &odd, &output;
  RMSNorm& norm;
};

std::string refusal(const RecipeRules& p) {
  Net net;
  try {
    apply_recipes(net, p, 2, at::kCPU);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

void expect_words(const std::string& said, std::initializer_list<const char*> words) {
  EXPECT_EQ(said.find('\n'), std::string::npos);
  for (const char* word : words) EXPECT_NE(said.find(word), std::string::npos) << said << "\n  expected: " << word;
}

TEST(RecipeMatching, MistakesNameTheLayer) {
  RecipeRules p;
  p.rules.resize(1);
  RecipeRule& r = p.rules[0];
  r.scheme = "int8", r.place = "X.yaml:3: ";
  r.targets = {"re:layers.9"};
  expect_words(refusal(p), {"X.yaml:3: ", "'re:layers.9'", "matches no module"});
  r.targets = {"norm"};
  expect_words(refusal(p), {"'norm'", "no Linear"});
  r.targets = {"GroupedExperts"};
  expect_words(refusal(p), {"'GroupedExperts'", "matches no module"});
  r.targets = {"layers.1.odd"};
  expect_words(refusal(p), {"layers.1.odd has 40 inputs and 64 outputs", "multiples of 16"});
  r.targets = {"re:" + std::string(1000, '(')};
  expect_words(refusal(p), {"X.yaml:3: quantize.targets: ", "at most 500 characters"});
  r.targets = {"re:("};
  expect_words(refusal(p), {"X.yaml:3: quantize.targets: 're:(': not a valid pattern (missing closing parenthesis at character 2)"});
  r.targets = {"Linear"}, r.scheme = "int9";
  expect_words(refusal(p), {"int9", "layers.0.wide"});
  r.scheme = "int8", r.use_hadamard = true;
  expect_words(refusal(p), {"use_hadamard", "int8", "layers.0.wide"});
  r.use_hadamard.reset();
  p.rules.push_back(r);
  p.rules[1].scheme = "nvfp4", p.rules[1].targets = {"layers.0.wide"};
  expect_words(refusal(p), {"layers.0.wide is matched by two schemes, int8 and nvfp4"});
  p.rules[1].scheme = "int8", p.rules[1].place = "X.yaml:5: ";
  expect_words(refusal(p), {"layers.0.wide is matched by scheme int8 twice, at X.yaml:3 and X.yaml:5"});
}

TEST(RecipeMatching, ExpertsMayBeNamedWhereThereAreNone) {
  Net net;
  RecipeRules p;
  p.rules.resize(1);
  p.rules[0].scheme = "mxfp4", p.rules[0].targets = {"Linear", "GroupedExperts"};
  const auto lines = apply_recipes(net, p, 2, at::kCPU);
  EXPECT_EQ(net.wide.recipe().name, "mxfp4");
  EXPECT_EQ(net.odd.recipe().name, "none");  // 40 is no multiple of 32
  EXPECT_EQ(net.output.recipe().name, "none");
  ASSERT_EQ(lines.size(), 3u);
  expect_words(lines[0], {"mxfp4 on 1 Linear", "1 ignored (output)", "layers.1.odd: sizes must be multiples of 32"});
  expect_words(lines[1], {"quantize: mxfp4 on cpu-", "forward, dgrad, wgrad by an exact rewrite", "exact in bf16"});
  expect_words(lines[2], {"quantize: mxfp4 with use_hadamard, use_sr_grad, scale_mode = adaptive, deosc_step = 2000"});
  const auto layers = layer_formats(net);
  ASSERT_EQ(layers.size(), 3u);
  expect_words(layers[0], {"layers.0.wide", "64 -> 4096", "mxfp4"});
  expect_words(layers[1], {"layers.1.odd", "40 -> 64", "unquantised (its sizes do not fit for mxfp4)"});
  expect_words(layers[2], {"output", "unquantised (ignored for mxfp4)"});
}

TEST(RecipeMatching, TheStartLineNamesTheTargets) {
  Net net;
  const auto lines = apply_recipes(
      net, plan({"--quantize.scheme={\"int8\": [\"re:layers.0\"], \"fp8_rowwise\": [\"output\"]}", "--quantize.ignore="}), 2, at::kCPU);
  ASSERT_EQ(lines.size(), 5u);
  expect_words(lines[0], {"int8 on 1 Linear (re:layers.0)"});
  expect_words(lines[2], {"fp8_rowwise on 1 Linear (output)"});
  expect_words(lines[4], {"quantize: 1 Linear that no target names stay unquantised (layers.1.odd)"});
  expect_words(layer_formats(net)[1], {"layers.1.odd", "unquantised (no target names it)"});
}

TEST(RecipeMatching, OptionsInEffectAreListed) {
  const auto options = [](const std::vector<std::string>& arguments) {
    Net net;
    const auto lines = apply_recipes(net, plan(arguments), 2, at::kCPU);
    return lines.size() > 2 ? lines[2] : "";
  };
  EXPECT_EQ(options({"--quantize.scheme=int8"}), "");
  EXPECT_EQ(options({"--quantize.scheme=int8", "--quantize.no_grad_input", "--quantize.stochastic_rounding"}),
            "quantize: int8 with stochastic_rounding, grad_input = false");
  // A preset's recommendation that an option excludes is missing.
  EXPECT_EQ(options({"--quantize.scheme=mxfp4", "--quantize.use_2dblock_x"}),
            "quantize: mxfp4 with use_2dblock_x, use_sr_grad, scale_mode = adaptive, deosc_step = 2000");
  EXPECT_EQ(options({"--quantize.scheme=int8", "--quantize.no_round_scales_to_power_of_2"}), "");
  EXPECT_EQ(options({"--quantize.scheme=fp8_rowwise", "--quantize.no_round_scales_to_power_of_2"}),
            "quantize: fp8_rowwise with round_scales_to_power_of_2 = false");
  EXPECT_EQ(options({"--model.converters=quantize.linear.mx"}), "quantize: mxfp8_e4m3 with scale_mode = floor");
}

// A tied head has the sizes of the table that it reads, and none of its own weight's properties.
TEST(RecipeMatching, ATiedHeadIsMeasuredByItsTable) {
  struct Tied : Module {
    Embedding& table;
    Linear& output;
    explicit Tied(int64_t vocabulary)
        : table(add<Embedding>("table", vocabulary, 64, Init{})), output(add<Linear>("output", 64, 0, Init{})) {
      output.tie(table.weight);
      assign_names("");
    }
  };
  const Strings asked = {"--quantize.scheme=mxfp4", "--quantize.ignore="};
  Tied odd(1000);
  expect_words(apply_recipes(odd, plan(asked), 0, at::kCPU)[0],
               {"mxfp4 on 0 Linear", "1 by shape (output: sizes must be multiples of 32)"});
  EXPECT_EQ(odd.output.recipe().name, "none");
  Tied even(1024);
  const auto lines = apply_recipes(even, plan(asked), 0, at::kCPU);
  EXPECT_EQ(even.output.recipe().name, "mxfp4");
  EXPECT_EQ(even.output.deoscillation().step, 0);
  EXPECT_EQ(lines.back(), "quantize: mxfp4 with use_hadamard, use_sr_grad, scale_mode = adaptive");
  expect_words(layer_formats(even)[0], {"output", "64 -> 1024", "mxfp4"});
  const auto refused = [&](const std::string& option, const std::string& message) {
    Tied net(1024);
    try {
      apply_recipes(net, plan({asked[0], asked[1], option}), 0, at::kCPU);
      FAIL() << option;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(message), std::string::npos) << e.what();
    }
  };
  refused("--quantize.lora_rank=32", "quantize.lora_rank: output has a weight tied to the embedding");
  refused("--quantize.lora_rank=96", "output has 64 inputs and 1024 outputs, expected a rank of at most 64");
  refused("--quantize.deosc_step=100", "quantize.deosc_step: output has a weight tied to the embedding");
}

TEST(RecipeMatching, FiltersLeaveSmallAndSkippedLayersAlone) {
  Net net;
  RecipeRules p = plan({"--model.converters=float8", "--quantize.linear.float8.recipe_name=rowwise",
                        "--quantize.linear.float8.filter_fqns=auto_filter_small_kn"});
  expect_words(apply_recipes(net, p, 2, at::kCPU)[0], {"fp8_rowwise on 0 Linear", "2 small (layers.0.wide, output)", "layers.1.odd"});
  p = plan({"--model.converters=float8", "--quantize.linear.float8.filter_fqns=output,auto_filter_small_kn"});
  Net tensorwise;  // N <= 1024 or K > 4096 decides here, so the wide layer is not quantised
  apply_recipes(tensorwise, p, 2, at::kCPU);
  EXPECT_EQ(tensorwise.wide.recipe().name, "fp8_tensorwise");
  p.rules[0].skip_first_layers = 0.5;  // of two blocks
  Net skipped;
  expect_words(apply_recipes(skipped, p, 2, at::kCPU)[0], {"on 0 Linear", "1 in skipped blocks"});
}

}  // namespace
}  // namespace halftone::nn::recipe_config_test
