#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "halftone/config/load.h"
#include "halftone/config/recipe_file.h"
#include "halftone/models/registry.h"
#include "halftone/nn/recipe_config.h"
#include "source_dir.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
const fs::path kSource = source_dir();
const fs::path kFolder = kSource / "recipes" / "precision";

// The demo model, or GPT-OSS 20b for its recipes, with one shipped recipe: number of layers per scheme, and the operands of its first
// layers.
struct Loaded {
  BuiltModel built;
  std::map<std::string, int> schemes;
  std::vector<nn::RecipeRule> rules;

  const LinearRecipe& of(const std::string& fqn) const {
    const LinearRecipe* found = nullptr;
    built.model->for_each_module([&](nn::Module& m) {
      if (m.fqn() == fqn) found = &dynamic_cast<nn::Linear&>(m).recipe();
    });
    if (found == nullptr) throw std::out_of_range(fqn);
    return *found;
  }
};

Loaded load_precision(const std::string& name) {
  const char* model = name.find("gpt_oss") != std::string::npos ? "gpt_oss_20b.toml" : "demo.toml";
  const std::vector<std::string> args = {"--config", (kSource / "recipes" / model).string(), "--quantize.scheme=none",
                                         "--quantize.recipe=" + (kFolder / (name + ".yaml")).string()};
  const JobConfig config = load_config(args, {1}).config;
  Loaded l{build_model(config.model, 4096), {}, {}};
  const int64_t layers = l.built.model->size().layers;
  const nn::RecipeRules plan = nn::recipe_rules(config.quantize, config.model, layers);
  l.rules = plan.rules;
  nn::apply_recipes(*l.built.model, plan, layers, at::kCPU);
  l.built.model->for_each_module([&](nn::Module& m) {
    if (auto* layer = dynamic_cast<nn::QuantizableLayer*>(&m)) ++l.schemes[std::string(layer->recipe().name)];
  });
  return l;
}

using Counts = std::map<std::string, int>;
// 6 blocks of 7 Linears, and the head.
Counts all(const std::string& scheme) { return {{scheme, 42}, {"none", 1}}; }

const std::map<std::string, Counts>& expected() {
  static const std::map<std::string, Counts> table = {
      {"fp8_tensorwise", all("fp8_tensorwise")},
      {"fp8_rowwise", all("fp8_rowwise")},
      {"fp8_rowwise_with_gw_hp", all("fp8_rowwise_with_gw_hp")},
      {"fp8_blockwise", all("fp8_blockwise")},
      {"mxfp8", all("mxfp8_e4m3")},
      {"mxfp8_1d", all("mxfp8_e4m3")},
      {"mxfp4", all("mxfp4")},
      {"mxfp4_macro_block", all("mxfp4")},
      // 24 blocks of 4 attention Linears, the experts and an unquantised router.
      {"mxfp4_gpt_oss", {{"mxfp4", 120}, {"none", 25}}},
      {"mxfp4_gpt_oss_20b", {{"mxfp4", 105}, {"none", 40}}},
      {"nvfp4_gpt_oss_20b", {{"nvfp4", 105}, {"none", 40}}},
      {"mixed_gpt_oss", {{"mxfp4", 24}, {"mxfp8_e4m3", 96}, {"none", 25}}},
      {"nvfp4", all("nvfp4")},
      {"nvfp4_torchao", {{"nvfp4", 35}, {"none", 8}}},  // 15 % of 6 blocks, rounded up: one stays
      {"amdfp4", all("amdfp4")},
      {"int8", all("int8")},
      {"int8_forward", all("int8")},
      {"int4", all("int4")},
      {"int8_weight", all("int8_weight")},
      {"int4_weight", all("int4_weight")},
      {"bitnet", all("bitnet")},
      {"mixed", {{"mxfp4", 12}, {"fp8_rowwise", 6}, {"mxfp8_e4m3", 24}, {"none", 1}}},
      {"mixed_depth", {{"fp8_rowwise", 14}, {"nvfp4", 28}, {"none", 1}}},
  };
  return table;
}

class Precision : public testing::TestWithParam<std::string> {};

TEST_P(Precision, LoadsAgainstTheDemoModel) { EXPECT_EQ(load_precision(GetParam()).schemes, expected().at(GetParam())); }

std::vector<std::string> names() {
  std::vector<std::string> out;
  for (const auto& [name, counts] : expected()) out.push_back(name);
  return out;
}
INSTANTIATE_TEST_SUITE_P(Recipes, Precision, testing::ValuesIn(names()), [](const auto& info) { return info.param; });

TEST(PrecisionRecipes, EveryShippedFileIsTestedHere) {
  int files = 0;
  for (const auto& entry : fs::directory_iterator(kFolder)) {
    EXPECT_EQ(entry.path().extension(), ".yaml") << entry.path();
    EXPECT_TRUE(expected().contains(entry.path().stem())) << entry.path();
    ++files;
  }
  EXPECT_EQ(files, static_cast<int>(expected().size()));
}

// A recipe without options equals the row of the recipe table.
TEST(PrecisionRecipes, PlainFilesAreRowsOfTheTable) {
  for (const auto& [file, scheme] : std::map<std::string, std::string>{{"fp8_tensorwise", "fp8_tensorwise"},
                                                                       {"fp8_rowwise", "fp8_rowwise"},
                                                                       {"fp8_rowwise_with_gw_hp", "fp8_rowwise_with_gw_hp"},
                                                                       {"fp8_blockwise", "fp8_blockwise"},
                                                                       {"mxfp8", "mxfp8_e4m3"},
                                                                       {"mxfp4", "mxfp4"},
                                                                       {"nvfp4", "nvfp4"},
                                                                       {"amdfp4", "amdfp4"},
                                                                       {"int8", "int8"},
                                                                       {"int8_weight", "int8_weight"},
                                                                       {"int4_weight", "int4_weight"},
                                                                       {"bitnet", "bitnet"}}) {
    EXPECT_EQ(load_precision(file).of("layers.0.attention.wq"), *find_linear_recipe(scheme)) << file;
  }
}

TEST(PrecisionRecipes, OptionsReachTheOperands) {
  EXPECT_EQ(load_precision("mxfp8_1d").of("layers.0.attention.wq").w_forward.granularity, Granularity::block);
  EXPECT_EQ(load_precision("mxfp4_macro_block").of("layers.0.attention.wq").x_forward.two_level, TwoLevel::macro);
  const LinearRecipe torchao = load_precision("nvfp4_torchao").of("layers.0.attention.wq");
  EXPECT_EQ(torchao.x_wgrad.hadamard, 16);
  EXPECT_EQ(torchao.x_forward.chain, Fp4Chain::torchao);
  EXPECT_EQ(load_precision("nvfp4_torchao").of("layers.5.attention.wq").name, "none");
  EXPECT_FALSE(load_precision("int8_forward").of("layers.0.attention.wq").x_wgrad.quantized());
  EXPECT_TRUE(load_precision("int4").of("layers.0.attention.wq").x_forward.stochastic);

  const Loaded mixed = load_precision("mixed");
  EXPECT_EQ(mixed.of("layers.3.feed_forward.w1").dy_wgrad.hadamard, 32);
  EXPECT_EQ(mixed.of("layers.3.feed_forward.w2").name, "fp8_rowwise");
  EXPECT_FALSE(mixed.of("layers.3.feed_forward.w2").dy_dgrad.stochastic);
  EXPECT_TRUE(mixed.of("layers.3.attention.wk").dy_dgrad.stochastic);
  EXPECT_EQ(mixed.of("output").name, "none");
  for (const nn::RecipeRule& rule : load_precision("mxfp4").rules) EXPECT_EQ(rule.deosc_step, 2000);
}

}  // namespace
}  // namespace halftone
