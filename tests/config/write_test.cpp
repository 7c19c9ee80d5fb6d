#include <limits>

#include "config/helpers.h"
#include "halftone/config/names.h"
#include "halftone/config/value.h"

namespace halftone {
namespace {

// A configuration in which every field differs from its default.
JobConfig all_changed() {
  JobConfig c;
  const ConfigIndex index = index_config(c);
  for (const FieldEntry& f : index.fields) {
    std::visit(
        [&](auto* p) {
          using T = std::remove_reference_t<decltype(*p)>;
          const std::string word = f.info.choices.empty() ? "a \"b\" \\ \n\t\x01 \u00e9" : std::string(f.info.choices.back());
          if constexpr (std::is_same_v<T, bool>) *p = !*p;
          if constexpr (std::is_same_v<T, int64_t>) *p += 7;
          if constexpr (std::is_same_v<T, double>) *p = *p / 3 + 1e-9;
          if constexpr (std::is_same_v<T, std::string>) *p = word;
          if constexpr (std::is_same_v<T, std::optional<bool>>) *p = true;
          if constexpr (std::is_same_v<T, std::optional<int64_t>>) *p = 12;
          if constexpr (std::is_same_v<T, std::optional<double>>) *p = 0.1;
          if constexpr (std::is_same_v<T, std::optional<std::string>>) *p = word;
          if constexpr (std::is_same_v<T, StringList>) *p = {word};
          if constexpr (std::is_same_v<T, std::optional<StringList>>) *p = StringList{word};
          if constexpr (std::is_same_v<T, std::vector<StringList>>) *p = {{word}, {}};
          if constexpr (std::is_same_v<T, std::optional<std::vector<StringList>>>) *p = {{word, word}, {}};
          if constexpr (std::is_same_v<T, OptionTable>) *p = {{"a b", true}, {"n", int64_t{-3}}, {"x", 0.5}, {"s", std::string("t")}};
          if constexpr (std::is_same_v<T, NamedTables>) *p = {{"web", {{"weight", 0.5}, {"path", std::string("a")}}}};
          if constexpr (std::is_same_v<T, std::vector<ParamGroup>>) *p = {{"re", "SGD", {{"lr", 1.0}}}};
          if constexpr (std::is_same_v<T, QuantizeScheme>) *p = {"none", {{"nvfp4", {"a"}}, {"int8", {"b", "c"}}}};
          if constexpr (std::is_same_v<T, std::vector<QuantizePhase>>) {
            EXPECT_EQ(set_phase(p->emplace_back(), {{"from", 0.9}, {"scheme", "int8"}, {"use_sr_grad", true}}), "");
          }
        },
        f.value);
  }
  c.training.max_norm = std::numeric_limits<double>::infinity();
  c.quantize.use_2dblock_x.reset();
  return c;
}

TEST(Write, JsonRoundTripsEveryField) {
  const JobConfig c = all_changed();
  const std::string json = to_json(c);
  EXPECT_EQ(to_json(config_from_json(json)), json);
  EXPECT_EQ(to_toml(config_from_json(json)), to_toml(c));
  JobConfig a = c, b;
  const ConfigIndex x = index_config(a), y = index_config(b);
  for (size_t i = 0; i < x.fields.size(); ++i) {
    if (x.fields[i].name == "quantize.use_2dblock_x" || x.fields[i].info.choices.size() == 1) continue;
    EXPECT_NE(get_value(x.fields[i]), get_value(y.fields[i])) << x.fields[i].name;
  }
}

TEST(Write, TomlRoundTrips) {
  const LoadedConfig loaded = load({"--training.max_norm=inf", "--optimizer.lr=1e-08", "--job.description=a \"b\" \\ \n \x01",
                                    "--parallelism.context_parallel_load_balancer=None", "--model.overrides={\"dim\": 64, \"a b\": 0.1}",
                                    "--quantize.scheme={\"nvfp4\": [\"x\"], \"int8\": [\"re:y\"]}", "--debug.seed=3",
                                    "--training.steps=1_000", "--parallelism.module_fqns_per_model_part", "a,b", "c"});
  const std::string toml = to_toml(loaded.config);
  const LoadedConfig again = load_toml(toml);
  EXPECT_EQ(to_toml(again.config), toml);
  EXPECT_EQ(to_json(again.config), to_json(loaded.config));
  EXPECT_EQ(to_json(load_toml(to_toml(JobConfig{})).config), to_json(JobConfig{}));
}

TEST(Write, PrintedConfigurationShowsOriginsAndIsAConfiguration) {
  const LoadedConfig loaded = load_toml("[training]\nseq_len = 64\n", {"--training.steps", "6"});
  const std::string text = print_config(loaded);
  EXPECT_NE(text.find("seq_len = 64"), std::string::npos);
  EXPECT_NE(text.find("# X.toml:2\n"), std::string::npos);
  EXPECT_NE(text.find("# command line\n"), std::string::npos);
  EXPECT_EQ(to_json(load_toml(text).config), to_json(loaded.config));
  EXPECT_EQ(print_config(loaded, "debug").find("[training]"), std::string::npos);
}

// Most [quantize] fields are rejected beside a recipe file or converters, so they are not written.
TEST(Write, AConfigurationWithARecipeCanBeReadAgain) {
  for (const Args& args : {Args{"--quantize.recipe=x.yaml"}, Args{"--quantize.recipe=x.yaml", "--quantize.emulate"},
                           Args{"--model.converters=quantize.linear.mx", "--quantize.skip_last_layers=2"}}) {
    const LoadedConfig loaded = load(args);
    for (const std::string& text : {to_toml(loaded.config), print_config(loaded)}) {
      EXPECT_EQ(problems(text), "") << text;
      EXPECT_EQ(to_json(load_toml(text).config), to_json(loaded.config));
      EXPECT_EQ(text.find("\npreset = "), std::string::npos) << text;
    }
  }
  const LoadedConfig table = load({R"(--quantize.scheme={"int8": ["re:.*w1"]})"});  // it contains its targets
  for (const std::string& text : {to_toml(table.config), print_config(table)}) EXPECT_EQ(problems(text), "") << text;
  EXPECT_NE(print_config(load({"--quantize.recipe=x.yaml"})).find("# see quantize.recipe\n"), std::string::npos);
  EXPECT_NE(to_toml(JobConfig{}).find("\npreset = "), std::string::npos);
}

TEST(Write, EveryFieldIsDocumented) {
  JobConfig c;
  const std::string text = describe_fields();
  for (const FieldEntry& f : index_config(c).fields) {
    EXPECT_EQ(text.find("--" + f.name + " ") == std::string::npos, f.info.mark == Mark::N) << f.name;
    EXPECT_GT(f.help.size(), 3u) << f.name;
    const bool needs_note = f.info.mark == Mark::A || f.info.mark == Mark::N;
    EXPECT_TRUE(!needs_note || !f.info.note.empty()) << f.name;
  }
  EXPECT_NE(describe_fields("training").find("[training.dataloader]"), std::string::npos);
  EXPECT_EQ(describe_fields("training").find("[validation]"), std::string::npos);
  EXPECT_THROW(describe_fields("trainning"), Error);
}

TEST(Write, DefaultsSatisfyTheirOwnLimits) {
  JobConfig c;
  for (const FieldEntry& f : index_config(c).fields) EXPECT_EQ(set_value(f, get_value(f)), "") << f.name;
}

TEST(Write, BadJsonIsRefused) {
  for (const char* bad : {"", "[]", "{", "3", R"({"training": 3})", R"({"training": {"seq_len": "x"}})", R"({"training": {"seqlen": 3}})",
                          R"({"x": {}})", R"({"training": {"seq_len": 18446744073709551615}})"})
    EXPECT_THROW(config_from_json(bad), Error) << bad;
  EXPECT_EQ(config_from_json(R"({"training": {"seq_len": 3}})").training.seq_len, 3);
}

TEST(Names, EditDistance) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("same", "same"), 0);
  EXPECT_GT(edit_distance(std::string(100000, 'a'), "a"), 1000);
}

}  // namespace
}  // namespace halftone
