#include "halftone/config/recipe_file.h"

#include <fstream>

#include "config/helpers.h"
#include "halftone/config/yaml_reader.h"

namespace halftone {
namespace {

std::vector<RecipeModifier> modifiers(const std::string& text) { return read_recipe(text, "X.yaml"); }

std::string recipe_problems(const std::string& text) {
  try {
    modifiers(text);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

std::string with(const std::string& arguments) {
  return "training_stage:\n  lpt_modifiers:\n    LowPrecisionTrainingModifier:\n      " + arguments + "\n";
}

void expect_problem(const std::string& text, std::initializer_list<const char*> words) {
  const std::string said = recipe_problems(text);
  EXPECT_EQ(said.find('\n'), std::string::npos) << said;
  for (const char* word : words) EXPECT_NE(said.find(word), std::string::npos) << text << "\n  said: " << said << "\n  expected: " << word;
}

TEST(RecipeFile, EveryArgumentIsAFieldOfQuantize) {
  const auto found = modifiers(R"(
training_stage:
  lpt_modifiers:
    LowPrecisionTrainingModifier:
      scheme: mxfp4
      targets: [Linear, GroupedExperts]
      ignore: [lm_head, "re:.*\\.router\\.gate"]
      use_2dblock_x: false
      use_2dblock_w: true
      use_hadamard: true
      use_sr_grad: True
      use_dge: false
      two_level_scaling: blockwise
      clip_mode: none
      use_uos: false
      lora_rank: 32
      deosc_step: 2000
      deosc_period: 200
      deosc_ratio: 4.0
      deosc_log_freq: 1
      scale_mode: adaptive
      wgrad_hp: false
      skip_last_layers: 0.15
      index: 0
      group: lpt
      start: 0.0
      end:
      update: ~
)");
  ASSERT_EQ(found.size(), 1u);
  const QuantizeConfig& q = found[0].options;
  EXPECT_EQ(found[0].place, "X.yaml:4");
  EXPECT_EQ(q.scheme.name, "mxfp4");
  EXPECT_EQ(q.targets, (StringList{"Linear", "GroupedExperts"}));
  EXPECT_EQ(q.ignore, (StringList{"lm_head", "re:.*\\.router\\.gate"}));
  EXPECT_EQ(q.preset, "alto");
  EXPECT_EQ(q.use_hadamard, true);
  EXPECT_EQ(q.use_sr_grad, true);
  EXPECT_EQ(q.use_2dblock_x, false);
  EXPECT_EQ(q.two_level_scaling, "blockwise");
  EXPECT_EQ(q.lora_rank, 32);
  EXPECT_EQ(q.deosc_step, 2000);
  EXPECT_EQ(q.deosc_ratio, 4.0);
  EXPECT_EQ(q.scale_mode, "adaptive");
  EXPECT_EQ(q.skip_last_layers, 0.15);
}

TEST(RecipeFile, FlowStyleAndJsonAreTheSame) {
  const auto yaml = modifiers("a_stage: {b_modifiers: {LowPrecisionTrainingModifier: {scheme: int8, targets: Linear}}}");
  const auto json = modifiers(
      "{\n\t\"a_stage\": {\"b_modifiers\": {\"LowPrecisionTrainingModifier\": {\"scheme\": \"int8\", \"targets\": "
      "[\"Linear\"]}}}\n}");
  ASSERT_EQ(yaml.size(), 1u);
  ASSERT_EQ(json.size(), 1u);
  EXPECT_EQ(yaml[0].options.scheme, json[0].options.scheme);
  EXPECT_EQ(yaml[0].options.targets, json[0].options.targets);
}

TEST(RecipeFile, StagesGroupsAndTablesKeepTheirOrder) {
  const auto found = modifiers(R"(
first_stage:
  a_modifiers:
    LowPrecisionTrainingModifier: {scheme: int8, targets: ["re:.*feed_forward"]}
  b_modifiers:
    LowPrecisionTrainingModifier: {scheme: {nvfp4: ["re:.*wq"], fp8_rowwise: "re:.*wk"}, preset: recommended}
second_stage:
  c_modifiers:
    LowPrecisionTrainingModifier: {scheme: fp8_tensorwise, targets: re:.*wo}
)");
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].options.scheme.name, "int8");
  ASSERT_EQ(found[1].options.scheme.table.size(), 2u);
  EXPECT_EQ(found[1].options.scheme.table[0].first, "nvfp4");
  EXPECT_EQ(found[1].options.scheme.table[1].second, StringList{"re:.*wk"});
  EXPECT_EQ(found[1].options.preset, "recommended");
  EXPECT_EQ(found[2].options.targets, StringList{"re:.*wo"});
}

TEST(RecipeFile, UnknownKeysNameTheNearestAndTheLine) {
  expect_problem(with("{scheme: mxfp4, use_hadamrd: true}"), {"X.yaml:4", "use_hadamrd", "did you mean use_hadamard?"});
  expect_problem(with("{scheme: mxfp5}"), {"X.yaml:4", "unknown scheme", "did you mean mxfp4?"});
  EXPECT_EQ(recipe_problems(with("{scheme: zero}")).find("none"), std::string::npos);  // not allowed in a modifier
  expect_problem(with("{scheme: mxfp4, two_level_scaling: blockwize}"), {"two_level_scaling", "did you mean blockwise?"});
  expect_problem("training_stage:\n  lpt_modifiers:\n    LowPrecisionTrainingModifer: {scheme: int8}\n",
                 {"X.yaml:3", "did you mean LowPrecisionTrainingModifier?"});
  expect_problem("training:\n  lpt_modifiers: {}\n", {"X.yaml:1", "unknown key training", "_stage"});
  expect_problem("training_stage:\n  lpt: {}\n", {"X.yaml:2", "unknown key lpt", "_modifiers"});
  expect_problem(with("{scheme: int8, recipe: other.yaml}"), {"recipe"});
  expect_problem("training_stage:\n  m_modifiers:\n    GPTQModifier: {scheme: W4A16}\n", {"GPTQModifier", "trained model"});
}

TEST(RecipeFile, ValuesAndCombinationsAreCheckedAsInQuantize) {
  expect_problem(with("{scheme: mxfp4, use_hadamard: \"true\"}"), {"X.yaml:4", "use_hadamard", "expected true or false"});
  expect_problem(with("{scheme: mxfp4, use_hadamard: yes}"), {"use_hadamard", "expected true or false"});
  expect_problem(with("{scheme: mxfp4, lora_rank: 1.5}"), {"lora_rank", "expected an integer"});
  expect_problem(with("{scheme: int8, use_hadamard: true}"), {"X.yaml:4", "use_hadamard", "int8"});
  expect_problem(with("{scheme: mxfp4, use_hadamard: true, use_2dblock_x: true}"), {"use_hadamard", "use_2dblock_x"});
  expect_problem(with("{scheme: mxfp4, clip_mode: dynamic}"), {"clip_mode", "use_hadamard"});  // preset alto: no Hadamard
  expect_problem(with("{scheme: mxfp4, deosc_period: 100}"), {"deosc_period", "deosc_step"});
  expect_problem(with("{targets: [Linear]}"), {"X.yaml:3", "names no scheme"});
  expect_problem(with("{scheme: mxfp4, deosc_step: 1, deosc_ratio: .inf}"), {"X.yaml:4", "deosc_ratio", "from 4 to 32, found inf"});
  expect_problem(with("{scheme: mxfp4, deosc_step: 1, deosc_ratio: .nan}"), {"X.yaml:4", "deosc_ratio", "expected a number"});
  expect_problem(with("{scheme: mxfp4, attention: mxfp4}"), {"X.yaml:4: quantize.attention", "leave it at \"bf16\""});
  expect_problem(with("{scheme: bf16, emulate: true}"), {"X.yaml:4: quantize.emulate", "quantizes nothing"});
  expect_problem(with("{scheme: mxfp8}"), {"X.yaml:4", "did you mean mxfp8_e4m3 or mxfp8_e5m2?"});
  expect_problem("training_stage: {lpt_modifiers: {}}", {"holds no LowPrecisionTrainingModifier"});
  expect_problem("- a\n- b\n", {"X.yaml:1", "expected a map of stages"});
  expect_problem("", {"X.yaml", "found an empty file"});
}

TEST(RecipeFile, NoneIsNoSchemeOfAModifier) {
  for (const char* none : {"none", "\"none\""})
    expect_problem(with("{scheme: " + std::string(none) + ", targets: [\"re:x\"]}"), {"X.yaml:4: scheme: expected", "bf16", "found none"});
  expect_problem(with("{scheme: {none: [Linear]}}"), {"X.yaml:4: quantize.scheme", "bf16", "found none"});
  EXPECT_EQ(modifiers(with("{scheme: bf16}"))[0].options.scheme.name, "bf16");
  // An unreadable scheme is one problem, not two.
  for (const char* wrong : {"[int8]", "{}", "{int8: }", "~", "3"})
    expect_problem(with("{scheme: " + std::string(wrong) + "}"), {"X.yaml:4: scheme: "});
}

TEST(RecipeFile, SeveralProblemsAreListedTogether) {
  const std::string said = recipe_problems(with("{scheme: mxfp4, use_hadamrd: true, use_dge: 3}"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
}

TEST(Yaml, WhatCouldSurpriseIsRefused) {
  expect_problem("a_stage: &x {b_modifiers: {}}\n", {"X.yaml:1", "anchor"});
  expect_problem("a_stage: *x\n", {"X.yaml:1"});
  expect_problem("a_stage: !!python/object {}\n", {"X.yaml:1", "tag"});
  expect_problem("a_stage: {}\na_stage: {}\n", {"X.yaml:2", "given twice"});
  expect_problem("a_stage: {}\n---\nb_stage: {}\n", {"one document"});
  expect_problem("a_stage: {\n", {"not YAML"});
  expect_problem("[a, b]: c\n", {"expected a name as key"});
  expect_problem("a_stage: ! {b_modifiers: {}}\n", {"X.yaml:1", "tag"});
  expect_problem("a_stage: {}\n\x04 more\n", {"X.yaml", "0x04"});
  expect_problem(std::string("a\0b", 3), {"NUL"});
  expect_problem("a: \xFF\n", {"UTF-8"});
  expect_problem("a: " + std::string(100, '['), {"X.yaml"});
  expect_problem(std::string(100, '[') + std::string(100, ']'), {"levels of nesting"});
  expect_problem(std::string(70000, '#'), {"at most 65536 bytes"});
  std::string many = "[";
  for (int i = 0; i < 5000; ++i) many += "1,";
  expect_problem(many + "1]", {"at most 4096 values"});
}

TEST(Yaml, WhatAnEditorDoesNotShowIsNamed) {
  expect_problem("a_stage:\n\tb_modifiers: {}\n", {"X.yaml:2: not YAML", "; a line begins with a tab: YAML is indented with blanks"});
  expect_problem("a_stage:\r  b_modifiers:\r    C: {}\r", {"X.yaml:1: not YAML", "; its lines end in carriage returns alone"});
  EXPECT_EQ(recipe_problems("a_stage: {\n").find(';'), std::string::npos);
}

TEST(Yaml, AQuoteThatDoesNotCloseIsAnError) {
  const std::string head = "training_stage:\n  lpt_modifiers:\n    LowPrecisionTrainingModifier:\n      scheme: ";
  expect_problem(head + "int8\n      ignore: \"output\n", {"X.yaml:5: not YAML", "expected a closing \"", "end of the file"});
  expect_problem(head + "'mxfp4\n\n\n", {"X.yaml:4: not YAML", "expected a closing '"});
  for (const char* open :
       {"a: \"x\n", "a: 'x\n", "a: \"x", "a: \"x \n", "a: \"x\r\n", "a: \"x\nb: y\n", "a: 'x''\n", "a: \"x\\\"\n", "a: 'x\\\n", "a: [\"x\n",
        "- 'x\n", "\"a\n", "'\n", "\xEF\xBB\xBFz: \"x\n", "a: \xC3\xA9\nb: \"\n", "a: ! \"x\n"}) {
    EXPECT_THROW(read_yaml(open, "X"), Error) << open;
  }
  try {
    read_yaml("a: 1\nb: \"x\nc: 2\n", "X");
    ADD_FAILURE() << "the quote of line 2 is open";
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()), "X:2: not YAML: expected a closing \", found the end of the file; close the quote opened here");
  }
}

TEST(Yaml, QuotesThatCloseAreRead) {
  const std::vector<std::pair<std::string, Json>> kTexts = {
      {"\"x\"", "x"},
      {"\"x\"\n\n", "x"},
      {"'x'  # it's \"open\n", "x"},
      {"\"a\n  b\"\n", "a b"},
      {"'a\n\n  b'\n", "a\nb"},
      {"\"a \\\" b\"\n", "a \" b"},
      {"\"a\\\\\"\n", "a\\"},
      {"'it''s'\n", "it's"},
      {"''''\n", "'"},
      {"''\n", ""},
      {"'a\\'\n", "a\\"},
      {"it's\n", "it's"},
      {"x\"y\n", "x\"y"},
      {"|\n  it's \"open\n", "it's \"open\n"},
      {">\n  'open\n", "'open\n"},
      {"['a', \"b's\", c'd]\n", Json::array({"a", "b's", "c'd"})},
      {"{'k''s': \"v\"}\n", Json::object({{"k's", "v"}})},
  };
  for (const auto& [text, value] : kTexts) {
    const Json expected = Json::object({{"\xC3\xA9", 1}, {"a", value}});
    EXPECT_EQ(read_yaml("\xC3\xA9: 1  # don't\na: " + text, "X").root, expected) << text;
    EXPECT_EQ(read_yaml("\xEF\xBB\xBF\xC3\xA9: 1\r\na: " + text, "X").root, expected) << text;
  }
}

TEST(Yaml, ScalarsFollowTheCoreSchema) {
  const Json root = read_yaml("[1, \"1\", 1.5, 1e-4, true, 'true', ~, null, , x y, -3, .inf, 0x10, 1.2.3, re:.*]", "X").root;
  const Json expected = {1, "1", 1.5, 1e-4, true, "true", nullptr, nullptr, nullptr, "x y", -3, HUGE_VAL, "0x10", "1.2.3", "re:.*"};
  EXPECT_EQ(root, expected);
  EXPECT_TRUE(root[0].is_number_integer());
  const YamlDocument lines = read_yaml("a:\n  b: 1\n  c:\n    - x\n    - y\n", "X");
  EXPECT_EQ(lines.line_of.at("/a/b"), 2);
  EXPECT_EQ(lines.line_of.at("/a/c/1"), 5);
}

TEST(RecipeFile, TheConfigurationChecksTheFile) {
  const std::string path = testing::TempDir() + "halftone_recipe_test.yaml";
  const auto load_with = [&](const std::string& text, Args more = {}) -> std::string {
    std::ofstream(path) << text;
    Args args = {"--quantize.recipe", path};
    args.insert(args.end(), more.begin(), more.end());
    try {
      load_config(args, {1});
      return "";
    } catch (const Error& e) {
      return e.what();
    }
  };
  EXPECT_EQ(load_with(with("{scheme: int8}")), "");
  EXPECT_EQ(load_with(with("{scheme: int8}"), {"--quantize.emulate", "--quantize.skip_last_layers=1"}), "");
  EXPECT_NE(load_with(with("{scheme: int9}")).find(path + ":4"), std::string::npos);
  EXPECT_NE(load_with(with("{scheme: int9}"), {"--quantize.scheme=none"}).find(path + ":4"), std::string::npos);
  EXPECT_NE(load_with(with("{scheme: mxfp4}"), {"--quantize.use_hadamard"}).find("write it in"), std::string::npos);
  EXPECT_EQ(load_with(with("{scheme: int8}"), {"--quantize.emulate=false", "--quantize.skip_last_layers=0"}), "");
  EXPECT_EQ(load_with(with("{scheme: int8, emulate: true}"), {"--quantize.emulate=false"}),
            "command line: quantize.emulate = false has no effect beside quantize.recipe: " + path + ":3 asks for emulation; change that");
  EXPECT_EQ(load_with(with("{scheme: int8, skip_last_layers: 2}"), {"--quantize.skip_last_layers=0"}),
            "command line: quantize.skip_last_layers = 0 has no effect beside quantize.recipe: " + path + ":3 skips layers; change that");
  EXPECT_NE(problems("", {"--model.converters=quantize.linear.mx", "--quantize.ignore=output,re:x"}).find("filter_fqns"),
            std::string::npos);
  std::remove(path.c_str());
  try {
    load_config(Args{"--quantize.recipe", path}, {1});
    ADD_FAILURE() << "a missing file must be an error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("no such recipe file"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace halftone
