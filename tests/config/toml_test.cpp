#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "config/helpers.h"

namespace halftone {
namespace {

TEST(Toml, ReadsEveryTypeAndNestedSections) {
  const JobConfig c = load_toml(R"(
[training]
seq_len = 1_024
max_norm = 2          # an integer where a float is expected
[training.dataloader]
packing = "first_fit"
prefetch_factor = 3
[optimizer]
lr = 1e-4
[lr_scheduler]
decay_ratio = 0.5
[validation.dataloader]
num_workers = 2
[activation_checkpoint]
selective_ac_option = 4
[quantize]
scheme = "int8"
targets = "re:layers"
[quantize.linear.float8]
filter_fqns = ["output", "w2"]
[parallelism]
module_fqns_per_model_part = [["tok_embeddings"], ["norm", "output"]]
context_parallel_load_balancer = "None"
[model]
overrides = {dim = 256, ffn_dim_multiplier = 1.5, tied = false, init = "v2"}
)")
                          .config;
  EXPECT_EQ(c.training.seq_len, 1024);
  EXPECT_EQ(c.training.max_norm, 2.0);
  EXPECT_EQ(c.training.dataloader.packing, "first_fit");
  EXPECT_EQ(c.training.dataloader.prefetch_factor, 3);
  EXPECT_EQ(c.validation.dataloader.prefetch_factor, std::nullopt);
  EXPECT_EQ(c.validation.dataloader.num_workers, 2);
  EXPECT_EQ(c.optimizer.lr, 1e-4);
  EXPECT_EQ(c.lr_scheduler.decay_ratio, 0.5);
  EXPECT_EQ(c.activation_checkpoint.selective_ac_option, "4");
  EXPECT_EQ(c.quantize.scheme.name, "int8");
  EXPECT_EQ(c.quantize.targets, StringList{"re:layers"});
  EXPECT_EQ(c.quantize.linear.float8.filter_fqns, (StringList{"output", "w2"}));
  EXPECT_EQ(c.parallelism.module_fqns_per_model_part, (std::vector<StringList>{{"tok_embeddings"}, {"norm", "output"}}));
  EXPECT_EQ(c.parallelism.context_parallel_load_balancer, std::nullopt);
  EXPECT_EQ(c.model.overrides,
            (OptionTable{{"dim", int64_t{256}}, {"ffn_dim_multiplier", 1.5}, {"tied", false}, {"init", std::string("v2")}}));
}

TEST(Toml, TableOfSchemesKeepsTheFilesOrder) {
  const JobConfig c = load_toml("[quantize]\nscheme = {nvfp4 = ['re:a'], int8 = 'b', bf16 = ['c', 'd']}\n").config;
  ASSERT_EQ(c.quantize.scheme.table.size(), 3u);
  EXPECT_EQ(c.quantize.scheme.table[0].first, "nvfp4");
  EXPECT_EQ(c.quantize.scheme.table[1].second, StringList{"b"});
  EXPECT_EQ(c.quantize.scheme.table[2].first, "bf16");
}

TEST(Toml, ParamGroups) {
  const JobConfig c =
      load_toml("[[optimizer.param_groups]]\npattern = 'norm'\noptimizer_name = 'AdamW'\noptimizer_kwargs = {lr = 1e-3}\n").config;
  ASSERT_EQ(c.optimizer.param_groups.size(), 1u);
  EXPECT_EQ(c.optimizer.param_groups[0].optimizer_kwargs.at("lr"), OptionValue(1e-3));
  EXPECT_NE(problems("[optimizer]\nparam_groups = [{pattern = 'x'}]").find("optimizer_name"), std::string::npos);
  EXPECT_NE(problems("[optimizer]\nparam_groups = [{patern = 'x'}]").find("patern"), std::string::npos);
}

TEST(Toml, InfinityIsANumberAndNanIsNot) {
  EXPECT_TRUE(std::isinf(load_toml("[training]\nmax_norm = inf").config.training.max_norm));
  EXPECT_EQ(problems("[training]\nmax_norm = nan"), "X.toml:2: training.max_norm: expected a number, found nan");
}

TEST(Toml, WrongTypesNameLineFieldAndValue) {
  EXPECT_EQ(problems("[training]\nseq_len = 'long'"), "X.toml:2: training.seq_len: expected an integer, found \"long\"");
  EXPECT_EQ(problems("[training]\nseq_len = 2.0"), "X.toml:2: training.seq_len: expected an integer, found 2.0");
  EXPECT_EQ(problems("[training]\nseq_len = true"), "X.toml:2: training.seq_len: expected an integer, found true");
  EXPECT_EQ(problems("[optimizer]\nlr = '1e-3'"), "X.toml:2: optimizer.lr: expected a number, found \"1e-3\"");
  EXPECT_EQ(problems("[checkpoint]\nenable = 1"), "X.toml:2: checkpoint.enable: expected true or false, found 1");
  EXPECT_EQ(problems("[model]\nconverters = 'mx'"), "X.toml:2: model.converters: expected a list of strings, found \"mx\"");
  EXPECT_EQ(problems("[job]\ndescription = 3"), "X.toml:2: job.description: expected a string, found 3");
  EXPECT_EQ(problems("training = 3"), "X.toml:1: expected a section [training], found 3");
  EXPECT_EQ(problems("[training]\nsteps = 2026-03-01"),
            "X.toml:2: expected a string, number, boolean, list or table, found a date or time");
  EXPECT_EQ(problems("[training]\nsteps = -1"), "X.toml:2: training.steps: expected at least 0, found -1");
  EXPECT_EQ(problems("[training]\ndtype = 'float23'"),
            "X.toml:2: training.dtype: expected one of float32, bfloat16; found \"float23\"; did you mean float32?");
}

TEST(Toml, SyntaxErrorsNameTheLine) {
  EXPECT_EQ(problems("[training]\nseq_len = \n").substr(0, 9), "X.toml:2:");
  EXPECT_NE(problems("[training]\nsteps = 1\nsteps = 2\n"), "");
  EXPECT_NE(problems(std::string("[training]\0", 11)), "");
  EXPECT_EQ(problems("[job]\n[:training]\n"), "X.toml:2: this is not TOML; expected [section] with a name of letters, digits, _ or -");
  EXPECT_NE(problems("[training]\n\"\xff\" = 1"), "");
}

TEST(Toml, TextOutsideAsciiBelongsInQuotesAndComments) {
  const JobConfig c = load_toml("\xEF\xBB\xBF# é\n[job]\ndescription = 'é' # ü\ndump_folder = \"\"\"\nö\n\"ß\"\"\"\"\"\n").config;
  EXPECT_EQ(c.job.description, "é");
  EXPECT_EQ(c.job.dump_folder, "ö\n\"ß\"\"");
  EXPECT_EQ(problems("[job]\ndescription = é"), "X.toml:2: expected text outside ASCII only in quotes and comments");
  EXPECT_EQ(problems("[job]\ndescription = 'a\n'"), "X.toml:2: the string that begins here is not closed");
  EXPECT_EQ(problems("[job]\ndescription = \"\"\"a\n"), "X.toml:2: the string that begins here is not closed");
}

TEST(Toml, AbsurdNestingIsRefusedBeforeItCostsTheStack) {
  std::string dots = "a", brackets = "[training]\nseq_len = ";
  for (int i = 0; i < 100000; ++i) dots += ".a";
  brackets += std::string(100000, '[');
  EXPECT_NE(problems(dots + " = 1").find("dots"), std::string::npos);
  EXPECT_NE(problems("[" + dots + "]").find("dots"), std::string::npos);
  EXPECT_NE(problems(brackets), "");
}

TEST(Toml, AllProblemsAreReportedTogether) {
  const std::string text =
      problems("[training]\nseq_len = 'x'\nlocal_batchsize = 3\n[optimizr]\nlr = 1\n", {"--nonsense.x", "3", "--optimizer.lr", "y"});
  EXPECT_EQ(text,
            "command line: unknown option --nonsense.x; `halftone config --help` lists the valid ones\n"
            "command line: --optimizer.lr: expected a number, found \"y\"\n"
            "X.toml:2: training.seq_len: expected an integer, found \"x\"\n"
            "X.toml:3: unknown option training.local_batchsize; did you mean training.local_batch_size?\n"
            "X.toml:4: unknown section optimizr; did you mean optimizer?");
}

TEST(Toml, AFileOfAnotherProgramGivesNoFlood) {
  std::string toml;
  for (int i = 0; i < 10000; ++i) toml += "x" + std::to_string(i) + " = 1\n";
  const std::string text = problems(toml);
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 60);
  EXPECT_NE(text.find("too many problems"), std::string::npos);
}

TEST(Toml, FilesAreReadAndMissingOnesNamed) {
  const std::string path = (std::filesystem::temp_directory_path() / "halftone_toml_test.toml").string();
  std::ofstream(path) << "[training]\nseq_len = 64\n";
  for (const Args& args : {Args{"--config", path}, Args{"--job.config_file", path}, Args{"--job.config-file=" + path}}) {
    const LoadedConfig loaded = load_config(args);
    EXPECT_EQ(loaded.config.training.seq_len, 64);
    EXPECT_EQ(loaded.origin.at("training.seq_len"), path + ":2");
    EXPECT_EQ(loaded.config.job.config_file, path);
  }
  std::filesystem::remove(path);
  const auto message = [](const Args& args) -> std::string {
    try {
      load_config(args);
      return "";
    } catch (const Error& e) {
      return e.what();
    }
  };
  EXPECT_EQ(message({"--config", "no/such.toml"}), "\"no/such.toml\": no such configuration file");
  EXPECT_NE(message({"--config", "/"}), "");
  EXPECT_NE(message({"--config"}), "");
  EXPECT_EQ(load_config({}).config.training.seq_len, 2048);
}

}  // namespace
}  // namespace halftone
