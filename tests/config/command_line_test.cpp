#include <cmath>

#include "config/helpers.h"

namespace halftone {
namespace {

TEST(CommandLine, NameAndValue) {
  EXPECT_EQ(load({"--training.seq_len", "64"}).config.training.seq_len, 64);
  EXPECT_EQ(load({"--training.seq_len=64"}).config.training.seq_len, 64);
  EXPECT_EQ(load({"--training.seq-len", "64"}).config.training.seq_len, 64);
  EXPECT_EQ(load({"--training.seq_len", "1", "--training.seq_len", "2"}).config.training.seq_len, 2);
  EXPECT_EQ(load({"--training.dataloader.num-workers", "3"}).config.training.dataloader.num_workers, 3);
  EXPECT_EQ(load({"--job.description", "'a b'"}).config.job.description, "a b");
  EXPECT_EQ(load({"--job.description=\"a=b\""}).config.job.description, "a=b");
  EXPECT_EQ(load({"--job.description="}).config.job.description, "");
  EXPECT_EQ(load({"--device", "cpu"}).config.training.device, "cpu");
  EXPECT_EQ(load({"--training.global_batch_size", "-1"}).config.training.global_batch_size, -1);
}

TEST(CommandLine, Booleans) {
  EXPECT_TRUE(load({"--checkpoint.enable"}).config.checkpoint.enable);
  EXPECT_TRUE(load({"--checkpoint.enable", "--training.steps", "3"}).config.checkpoint.enable);
  EXPECT_FALSE(load({"--checkpoint.checksum", "false"}).config.checkpoint.checksum);
  EXPECT_FALSE(load({"--checkpoint.checksum=0"}).config.checkpoint.checksum);
  EXPECT_TRUE(load({"--checkpoint.enable", "1"}).config.checkpoint.enable);
  EXPECT_FALSE(load({"--checkpoint.no_checksum"}).config.checkpoint.checksum);
  EXPECT_FALSE(load({"--checkpoint.no-checksum"}).config.checkpoint.checksum);
  EXPECT_EQ(load({"--quantize.scheme", "int8", "--quantize.no_use_sr_grad"}).config.quantize.use_sr_grad, false);
  EXPECT_EQ(problems("", {"--checkpoint.enable", "maybe"}), "command line: --checkpoint.enable: expected true or false, found \"maybe\"");
  EXPECT_NE(problems("", {"--training.no_seq_len"}), "");
  EXPECT_NE(problems("", {"--checkpoint.no_checksum=true"}), "");
}

TEST(CommandLine, Numbers) {
  EXPECT_EQ(load({"--training.steps", "1_000"}).config.training.steps, 1000);
  EXPECT_EQ(load({"--optimizer.lr", "1e-4"}).config.optimizer.lr, 1e-4);
  EXPECT_EQ(load({"--optimizer.lr", "3"}).config.optimizer.lr, 3.0);
  EXPECT_TRUE(std::isinf(load({"--training.max_norm", "inf"}).config.training.max_norm));
  for (const char* bad : {"1.5", "1e3", "", "12x", "0x10", "1__0", "_1", "99999999999999999999", "None"})
    EXPECT_NE(problems("", {"--training.steps", bad}), "") << bad;
  for (const char* bad : {"", "x", "1.5.2", "nan", "1e", "None"}) EXPECT_NE(problems("", {"--optimizer.lr", bad}), "") << bad;
}

TEST(CommandLine, OptionalValues) {
  for (const char* none : {"None", "none", "null"}) {
    EXPECT_EQ(load_toml("[debug]\nseed = 4", {"--debug.seed", none}).config.debug.seed, std::nullopt);
    EXPECT_EQ(load({"--parallelism.context_parallel_load_balancer", none}).config.parallelism.context_parallel_load_balancer, std::nullopt);
  }
  EXPECT_EQ(load({"--debug.seed", "7"}).config.debug.seed, 7);
  // "none" is a value here, different from "not set".
  EXPECT_EQ(load({"--quantize.scheme", "mxfp4", "--quantize.clip_mode", "none"}).config.quantize.clip_mode, "none");
}

TEST(CommandLine, ListsReplaceTheFilesList) {
  const std::string toml = "[model]\nconverters = ['quantize.linear.mx']\n";
  EXPECT_EQ(load_toml(toml, {"--model.converters", "quantize.linear.float8,quantize.grouped_mm.float8"}).config.model.converters,
            (StringList{"quantize.linear.float8", "quantize.grouped_mm.float8"}));
  EXPECT_EQ(load_toml(toml, {"--model.converters", ""}).config.model.converters, StringList{});
  EXPECT_EQ(load_toml(toml, {"--model.converters="}).config.model.converters, StringList{});
  EXPECT_EQ(load({"--quantize.scheme=int8", "--quantize.ignore", R"(["a,b", "re:c"])"}).config.quantize.ignore,
            (StringList{"a,b", "re:c"}));
}

TEST(CommandLine, APatternWithACommaNeedsAJsonList) {
  const auto targets = [](const std::string& text) { return problems("", {"--quantize.scheme=int8", "--quantize.targets", text}); };
  const std::string cut = targets(R"(re:layers\.[0-9]{1,2}\.)");
  EXPECT_NE(cut.find("command line: --quantize.targets: "), std::string::npos) << cut;
  EXPECT_NE(cut.find("ends inside a bracket"), std::string::npos) << cut;
  EXPECT_NE(cut.find("write a JSON list"), std::string::npos) << cut;
  EXPECT_EQ(cut.find('\n'), std::string::npos) << cut;
  EXPECT_NE(targets("re:[a,b]"), "");
  EXPECT_NE(targets("Linear,re:(a,b)"), "");
  EXPECT_EQ(targets(R"(["re:layers\\.[0-9]{1,2}\\."])"), "");
  EXPECT_EQ(targets(R"(re:a{1},re:[(]b,re:c\{,a{1)"), "");
}

TEST(CommandLine, ListOfListsTakesWordsUpToTheNextOption) {
  const JobConfig c =
      load({"--parallelism.module_fqns_per_model_part", "tok_embeddings,layers.0", "layers.1", "norm,output", "--training.steps", "3"})
          .config;
  EXPECT_EQ(c.parallelism.module_fqns_per_model_part,
            (std::vector<StringList>{{"tok_embeddings", "layers.0"}, {"layers.1"}, {"norm", "output"}}));
  EXPECT_EQ(c.training.steps, 3);
}

TEST(CommandLine, TablesAreJson) {
  EXPECT_EQ(load({"--model.overrides", R"({"dim": 64, "tied": true})"}).config.model.overrides,
            (OptionTable{{"dim", int64_t{64}}, {"tied", true}}));
  const JobConfig c = load({"--quantize.scheme", R"({"mxfp4": ["re:.*feed_forward.*"], "bf16": ["layers.0.attention.wq"]})"}).config;
  ASSERT_EQ(c.quantize.scheme.table.size(), 2u);
  EXPECT_EQ(c.quantize.scheme.table[0].second, StringList{"re:.*feed_forward.*"});
  EXPECT_NE(problems("", {"--model.overrides", "dim=3"}), "");
  EXPECT_NE(problems("", {"--model.overrides", std::string(1000, '[')}), "");
}

// As in TOML and YAML; JSON itself would silently keep the last one.
TEST(CommandLine, AKeyIsGivenOnceInATable) {
  EXPECT_EQ(problems("", {"--quantize.scheme", R"({"int8": ["re:.*wq"], "int8": ["re:.*wk"]})"}),
            "command line: --quantize.scheme: the key \"int8\" is given twice in one table");
  EXPECT_NE(problems("", {"--model.overrides", R"({"dim": 64, "tied": true, "\u0064im": 128})"}).find("the key \"dim\" is given twice"),
            std::string::npos);
  const auto groups = [](const std::string& second) {
    return problems("", {"--optimizer.param_groups", R"([{"pattern": "a", "optimizer_name": "SGD"}, {"pattern": "b", )" + second + "}]"});
  };
  EXPECT_EQ(groups(R"("optimizer_name": "SGD")").find("twice"), std::string::npos);
  EXPECT_NE(groups(R"("optimizer_name": "SGD", "optimizer_kwargs": {"lr": 1, "lr": 2})").find("the key \"lr\" is given twice"),
            std::string::npos);
}

TEST(CommandLine, OneOverrideJoinsTheFilesTable) {
  const JobConfig c =
      load_toml("[model]\noverrides = {dim = 256, n_layers = 6}", {"--model.overrides.n_layers", "2", "--model.overrides.tied=true"})
          .config;
  EXPECT_EQ(c.model.overrides, (OptionTable{{"dim", int64_t{256}}, {"n_layers", int64_t{2}}, {"tied", true}}));
}

TEST(CommandLine, PrecedenceAndOrigin) {
  const LoadedConfig loaded = load_toml("[training]\nseq_len = 64\nsteps = 5\n", {"--training.steps", "6"});
  EXPECT_EQ(loaded.config.training.seq_len, 64);
  EXPECT_EQ(loaded.config.training.steps, 6);
  EXPECT_EQ(loaded.origin.at("training.seq_len"), "X.toml:2");
  EXPECT_EQ(loaded.origin.at("training.steps"), "command line");
  EXPECT_FALSE(loaded.origin.contains("training.local_batch_size"));
}

TEST(CommandLine, UnknownOptionsNameTheNearest) {
  EXPECT_EQ(problems("", {"--training.local_batchsize", "3"}),
            "command line: unknown option --training.local_batchsize; did you mean training.local_batch_size?");
  EXPECT_EQ(problems("", {"--quantize.scheme.int8", "[\"a\"]"}),
            "command line: unknown option --quantize.scheme.int8; quantize.scheme takes its table as JSON: --quantize.scheme "
            "'{\"int8\": [\"Linear\"]}'");
  EXPECT_EQ(problems("", {"--seq_len", "3"}), "command line: unknown option --seq_len; did you mean training.seq_len?");
  EXPECT_EQ(problems("", {"--training.keep_latest_k=3"}),
            "command line: unknown option --training.keep_latest_k; did you mean checkpoint.keep_latest_k?");
  EXPECT_EQ(problems("", {"--trainig.steps", "3"}), "command line: unknown option --trainig.steps; did you mean training.steps?");
  EXPECT_EQ(problems("", {"--training.xyzzyplugh", "3"}),
            "command line: unknown option --training.xyzzyplugh; `halftone config --help training` lists the valid ones");
  EXPECT_EQ(problems("", {"oops"}), "command line: unexpected \"oops\"; expected --section.field value");
  EXPECT_EQ(problems("", {"--training", "3"}), "command line: --training is a section; expected --training.FIELD value");
  EXPECT_EQ(problems("", {"--training.steps", "--checkpoint.enable"}),
            "command line: --training.steps: expected a value after it, found \"--checkpoint.enable\"");
  EXPECT_EQ(problems("", {"--training.steps"}), "command line: --training.steps: expected a value after it");
  for (const std::vector<std::string>& args : {std::vector<std::string>{"--job.description", "\xff"},
                                               {"--model.overrides.x", "\xb8"},
                                               {"--model.overrides.\xb8=1"},
                                               {"--\xff\x1b[2J", "1"}}) {
    EXPECT_TRUE(problems("", args).starts_with("command line: expected UTF-8 text, found ")) << problems("", args);
  }
  EXPECT_NE(problems("", {"--\x1b[2J", "1"}).find("unknown option"), std::string::npos);
}

TEST(CommandLine, SpellingsOfOtherVersionsAreNamed) {
  const auto advice = [](const std::string& name) { return problems("", {"--" + name, "1"}); };
  EXPECT_EQ(advice("training.batch_size"),
            "command line: unknown option --training.batch_size; torchtitan v0.2.2 and halftone call it training.local_batch_size");
  EXPECT_NE(advice("training.compile").find("compile.enable"), std::string::npos);
  EXPECT_NE(advice("training.seed").find("debug.seed"), std::string::npos);
  EXPECT_NE(advice("training.deterministic").find("debug.deterministic"), std::string::npos);
  EXPECT_NE(advice("checkpoint.enable_checkpoint").find("call it checkpoint.enable"), std::string::npos);
  EXPECT_NE(advice("checkpoint.model_weights_only").find("checkpoint.last_save_model_only"), std::string::npos);
  EXPECT_NE(advice("compile.enable_async_tensor_parallel").find("parallelism.enable_async_tensor_parallel"), std::string::npos);
  EXPECT_NE(advice("debug.print_config").find("job.print_config"), std::string::npos);
  EXPECT_NE(advice("training.max_context_length").find("training.seq_len"), std::string::npos);
  EXPECT_NE(problems("[float8]\nrecipe_name = 'rowwise'").find("[quantize.linear.float8]"), std::string::npos);
  EXPECT_NE(problems("[profiler]\n").find("[profiling]"), std::string::npos);
  EXPECT_NE(problems("[validator]\n").find("[validation]"), std::string::npos);
}

}  // namespace
}  // namespace halftone
