#include "config/helpers.h"
#include "halftone/config/quantize_phases.h"
#include "halftone/config/recipe_file.h"

namespace halftone::phases_test {
namespace {

const std::string kNvfp4 = "[training]\nsteps = 1000\n[quantize]\nscheme = \"nvfp4\"\n";

std::string entry(const std::string& fields) { return "[[quantize.phases]]\n" + fields + "\n"; }

// The schemes, options set by phases and orders of a phase's sources.
std::vector<RecipeSource> sources(const std::string& toml, size_t phase) { return phase_sources(load_toml(toml).config.quantize, phase); }

void expect_refused(const std::string& toml, std::initializer_list<const char*> words) {
  const std::string said = problems(toml);
  EXPECT_FALSE(said.empty()) << toml;
  EXPECT_EQ(said.find('\n'), std::string::npos) << said;
  for (const char* word : words) EXPECT_NE(said.find(word), std::string::npos) << toml << "said: " << said << "\nexpected: " << word;
}

TEST(Phases, StartAtAStepOrBehindAShareOfTheRun) {
  for (const char* from : {"from = 901", "from = \"901\"", "from = 0.9", "from = 9e-1", "from = \"90%\"", "from = \"0.9\""}) {
    const QuantizeConfig q = load_toml(kNvfp4 + entry(std::string(from) + "\nscheme = \"bf16\"")).config.quantize;
    const std::vector<PhaseStart> starts = phase_starts(q);
    ASSERT_EQ(starts.size(), 2u);
    EXPECT_EQ(starts[0].first_step(1000), 1);
    EXPECT_EQ(starts[1].first_step(1000), 901) << from;
  }
  EXPECT_EQ((PhaseStart{1, 0.29}).first_step(100), 30);  // 0.29 * 100 is below 29 in fp64
  EXPECT_EQ((PhaseStart{1, 0.9}).first_step(12), 11);
}

TEST(Phases, FractionsAreThoseOfTheLearningRate) {
  JobConfig c;
  c.training.steps = 100;
  EXPECT_EQ(scheduled_steps(c), 100);
  c.lr_scheduler.total_steps = 1000;
  EXPECT_EQ(scheduled_steps(c), 1000);
}

TEST(Phases, ASchemeReplacesAllOrWhatTheEntrySelects) {
  const std::string toml = kNvfp4 + "use_dge = true\nignore = [\"output\", \"layers.0.attention.wq\"]\n" +
                           entry("last_layers = 0.15\nscheme = \"mxfp8_e4m3\"") +
                           entry("from = \"50%\"\nscheme = \"int8\"\nuse_sr_grad = true");
  const auto first = sources(toml, 0), second = sources(toml, 1);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0].options.scheme.name, "nvfp4");
  EXPECT_EQ(first[0].order, 0);
  EXPECT_EQ(first[1].options.scheme.name, "mxfp8_e4m3");
  EXPECT_EQ(first[1].order, 1);
  EXPECT_TRUE(first[0].options.phases.empty());
  ASSERT_EQ(first[1].within.size(), 1u);
  EXPECT_EQ(first[1].within[0], (DepthRange{0, 0.15}));
  EXPECT_EQ(first[1].options.ignore, first[0].options.ignore);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].options.scheme.name, "int8");
  EXPECT_EQ(second[0].options.use_sr_grad, true);
  EXPECT_FALSE(second[0].options.use_dge.has_value());  // an option of [quantize]'s scheme
  EXPECT_EQ(second[0].options.ignore, first[0].options.ignore);
}

TEST(Phases, WithoutASchemeAnEntrySetsOptionsOfThoseThatHaveThem) {
  const std::string toml = "[training]\nsteps = 1000\n[quantize]\nscheme = {mxfp4 = [\"Linear\"], fp8_rowwise = [\"GroupedExperts\"]}\n" +
                           entry("from = 10\nuse_dge = true") + entry("from = 20\nfirst_layers = 2\nwgrad_hp = true\nuse_hadamard = false");
  EXPECT_FALSE(sources(toml, 0)[0].options.use_dge.has_value());
  const auto second = sources(toml, 1), third = sources(toml, 2);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].options.use_dge, true);
  ASSERT_EQ(third.size(), 2u);  // as before, and in the first blocks
  EXPECT_FALSE(third[0].options.wgrad_hp.has_value());
  EXPECT_TRUE(third[0].within.empty());
  EXPECT_EQ(third[1].options.wgrad_hp, true);
  EXPECT_EQ(third[1].options.use_dge, true);
  EXPECT_GT(third[1].order, third[0].order);
}

TEST(Phases, SharesCountTheScheduledSteps) {  // in the order of the entries too: 90% of 100 steps
  const std::string toml = kNvfp4 + entry("from = 95\nuse_dge = true") + entry("from = \"90%\"\nscheme = \"bf16\"");
  EXPECT_EQ(problems(toml), "");
  expect_refused("[lr_scheduler]\ntotal_steps = 100\n" + toml, {"quantize.phases[1]", "step 91", "behind step 95"});
}

TEST(Phases, BeginWithoutAScheme) {
  const std::string toml = "[training]\nsteps = 3000\n[quantize]\n" + entry("from = 2000\nscheme = \"nvfp4\"");
  EXPECT_TRUE(sources(toml, 0).empty());
  EXPECT_EQ(sources(toml, 1).at(0).options.scheme.name, "nvfp4");
}

TEST(Phases, AreWrittenAndReadBack) {
  const std::string toml =
      kNvfp4 + entry("last_layers = 2\nscheme = {mxfp8_e4m3 = [\"re:.*w2\"]}") + entry("from = \"90%\"\nuse_dge = true");
  const JobConfig config = load_toml(toml).config;
  EXPECT_EQ(to_json(load_toml(to_toml(config)).config), to_json(config));
  EXPECT_EQ(to_json(config_from_json(to_json(config))), to_json(config));
  const JobConfig argued = load_toml(kNvfp4, {R"(--quantize.phases=[{"from": "90%", "use_dge": true}])"}).config;
  ASSERT_EQ(argued.quantize.phases.size(), 1u);
  EXPECT_EQ(argued.quantize.phases[0].use_dge, true);
}

TEST(Phases, RefusalsNameTheEntry) {
  const auto refuse = [](const std::string& entries, std::initializer_list<const char*> words) { expect_refused(kNvfp4 + entries, words); };
  refuse(entry("from = 1\nscheme = \"bf16\""), {"X.toml:", "quantize.phases[0]", "found \"1\"", "from 2 on"});
  refuse(entry("from = 1.5\nscheme = \"bf16\""), {"found \"1.5\"", "share"});
  refuse(entry("from = \"100%\"\nscheme = \"bf16\""), {"found \"100%\""});
  refuse(entry("from = \"soon\"\nscheme = \"bf16\""), {"found \"soon\""});
  for (const char* from :
       {"nan", "inf", "-0.5", "0.0", "-7", "\"9223372036854775808\"", "\"\"", "\"%\"", "\"nan%\"", "\"0x2\"", "\"2\\n\""})
    refuse(entry(std::string("from = ") + from + "\nscheme = \"bf16\""), {"from"});
  for (const char* depth : {"nan", "-1", "0", "0.0", "1.5"})
    refuse(entry(std::string("from = 500\nlast_layers = ") + depth + "\nscheme = \"int8\""), {"last_layers"});
  refuse(entry("from = 1001\nscheme = \"bf16\""), {"begins at step 1001", "1000 steps"});
  refuse(entry("from = 500\nscheme = \"bf16\"") + entry("from = 400\nscheme = \"int8\""), {"quantize.phases[1]", "step 400", "step 500"});
  refuse(entry("from = 501\nscheme = \"bf16\"") + entry("from = 0.5\nscheme = \"int8\""), {"quantize.phases[1]", "step 501"});
  refuse(entry("from = 500\nscheme = \"bf16\"") + entry("last_layers = 1\nscheme = \"int8\""), {"quantize.phases[1]", "step 1"});
  refuse(entry("scheme = \"bf16\""), {"from the start", "[quantize]"});
  refuse(entry("from = 500"), {"changes nothing"});
  refuse(entry("from = 500\nlast_layers = 1"), {"changes nothing"});
  refuse(entry("from = 500\ntargets = [\"output\"]\nuse_dge = true"), {"targets", "need a scheme"});
  refuse(entry("from = 500\nscheme = \"int9\""), {"unknown scheme", "int9", "int8"});
  refuse(entry("from = 500\nscheme = \"none\""), {"unknown scheme", "bf16"});
  refuse(entry("from = 500\nscheme = \"int8\"\nuse_dge = true"), {"quantize.phases[0]", "quantize.use_dge", "int8"});
  refuse(entry("from = 500\nclip_mode = \"static\""), {"clip_mode", "no scheme in effect"});
  refuse(entry("from = 500\nuse_2dblock_x = true\nuse_hadamard = true"), {"quantize.phases[0]", "use_hadamard does not go with"});
  refuse(entry("from = 500\nlast_layers = 1.5\nscheme = \"int8\""), {"last_layers = 1.5"});
  refuse(entry("from = 500\nshceme = \"int8\""), {"entry 0", "shceme", "did you mean scheme?"});
  refuse(entry("from = 500\nscheme = \"mxfp4\"\nscale_mode = \"evn\""), {"scale_mode", "did you mean even?"});
  expect_refused(kNvfp4 + "use_uos = true\n" + entry("from = 500\nscheme = \"bf16\""), {"quantize.use_uos: legal with"});  // once
  refuse(entry("from = 500\nlora_rank = 16"), {"lora_rank adds parameters", "whole run"});
  for (const char* whole : {"int8_weight", "int4_weight", "bitnet"}) {
    refuse(entry(std::string("from = 500\nscheme = \"") + whole + "\""), {"quantize.phases[0]", whole, "whole run"});
    expect_refused(
        std::string("[training]\nsteps = 1000\n[quantize]\nscheme = \"") + whole + "\"\n" + entry("from = 500\nscheme = \"bf16\""),
        {"quantize.scheme", whole, "whole run"});
  }
  EXPECT_EQ(problems(kNvfp4 + entry("last_layers = 2\nscheme = \"int8_weight\"")), "");  // from the start
}

TEST(Phases, AreLimited) {
  std::string many, doubling;
  for (int i = 0; i < 33; ++i) many += entry("from = " + std::to_string(i + 2) + "\nuse_dge = " + (i % 2 == 0 ? "true" : "false"));
  expect_refused(kNvfp4 + many, {"at most 32 entries", "33"});
  for (int i = 0; i < 10; ++i) doubling += entry("last_layers = 1\nuse_dge = true");
  expect_refused(kNvfp4 + doubling, {"quantize.phases[5]", "too many entries"});
}

TEST(Phases, GoWithNoOtherSource) {
  expect_refused("[training]\nsteps = 1000\n[quantize]\nrecipe = \"r.yaml\"\n" + entry("from = 500\nscheme = \"bf16\""),
                 {"quantize.phases", "no effect beside quantize.recipe"});
}

TEST(Phases, SchemeNoneOnTheCommandLineDropsThem) {
  const LoadedConfig loaded = load_toml(kNvfp4 + entry("from = 500\nscheme = \"bf16\""), {"--quantize.scheme=none"});
  EXPECT_TRUE(loaded.config.quantize.phases.empty());
  EXPECT_NE(loaded.compat_lines.back().find("quantize.phases"), std::string::npos);
}

constexpr const char* kFile = R"(
training_stage:
  first_modifiers:
    LowPrecisionTrainingModifier:
      scheme: nvfp4
      start: 0.5
  second_modifiers:
    LowPrecisionTrainingModifier:
      last_layers: 0.15
      scheme: mxfp8_e4m3
  third_modifiers:
    LowPrecisionTrainingModifier:
      from: 90%
      use_dge: true
)";

TEST(Phases, OfARecipeFile) {
  QuantizeConfig q;
  q.recipe = "r.yaml", q.recipe_text = kFile;
  EXPECT_EQ(phase_starts(q), (std::vector<PhaseStart>{{}, {1, 0.9}}));
  const auto first = phase_sources(q, 0), second = phase_sources(q, 1);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0].options.scheme.name, "nvfp4");
  EXPECT_EQ(first[1].options.scheme.name, "mxfp8_e4m3");
  EXPECT_EQ(first[1].options.preset, "alto");
  EXPECT_EQ(first[1].place, "r.yaml:8: ");
  ASSERT_EQ(second.size(), 2u);
  EXPECT_EQ(second[0].options.use_dge, true);
  EXPECT_FALSE(second[1].options.use_dge.has_value());
  EXPECT_THROW(
      read_recipe("a_stage:\n  b_modifiers:\n    LowPrecisionTrainingModifier:\n      from: 2\n      skip_last_layers: 1\n", "r.yaml"),
      Error);
}

}  // namespace
}  // namespace halftone::phases_test
