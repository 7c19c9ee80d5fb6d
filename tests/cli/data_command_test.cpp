#include "halftone/cli/data_command.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/cli/data_report.h"
#include "halftone/cli/data_rows.h"
#include "halftone/cli/tokenize_command.h"
#include "halftone/data/file_io.h"
#include "halftone/data/loader.h"
#include "source_dir.h"

namespace halftone::data_command_test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Strings = std::vector<std::string>;

const std::string kTokenizer = (fs::path(source_dir()) / "tests/assets/tokenizer").string();
const std::string kC4 = (fs::path(source_dir()) / "tests/assets/c4_test").string();

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class DataCommand : public testing::Test {
 protected:
  DataCommand() : folder_(fs::path(testing::TempDir()) / ("data_command_test_" + std::to_string(::getpid()))) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    ::setenv("HALFTONE_CACHE", (folder_ / "cache").c_str(), 1);
    ::setenv("COLUMNS", "100", 1);
  }
  ~DataCommand() override {
    ::unsetenv("HALFTONE_CACHE");
    ::unsetenv("COLUMNS");
    fs::remove_all(folder_);
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }
  // Standard output.
  static std::string said(const Strings& args) {
    testing::internal::CaptureStdout();
    std::string failure;
    try {
      EXPECT_EQ(data_command(args), 0);
    } catch (const Error& error) {
      failure = error.what();
    }
    std::string out = testing::internal::GetCapturedStdout();
    EXPECT_EQ(failure, "");
    return out;
  }
  static std::string refused(const Strings& args) {
    testing::internal::CaptureStdout();
    std::string failure;
    try {
      data_command(args);
    } catch (const Error& error) {
      failure = error.what();
    }
    testing::internal::GetCapturedStdout();
    return failure;
  }
  Json figures(Strings args) const {
    args.insert(args.end(), {"--json", path("look.json")});
    said(args);
    return Json::parse(read_file(path("look.json"), 1 << 26));
  }
  fs::path folder_;
};

std::string line(const std::string& text) { return Json{{"text", text}}.dump() + "\n"; }

TEST_F(DataCommand, CountsTokensAndWritesTheBinOfTokenize) {
  const Json all = figures({kC4, "--dataset", "jsonl", "--tokenizer", kTokenizer, "--write", path("look.bin")});
  const Json& look = all.at("sources").at(0);
  testing::internal::CaptureStdout();
  EXPECT_EQ(tokenize_command(Strings{"--dataset", "jsonl", "--dataset_path", kC4, "--tokenizer", kTokenizer, "--output", path("a.bin")}),
            0);
  testing::internal::GetCapturedStdout();
  const std::string expected = read_file(path("a.bin"), 1 << 24);
  EXPECT_EQ(read_file(path("look.bin"), 1 << 24), expected);
  EXPECT_EQ(look.at("tokens").get<size_t>(), expected.size() / 2);
  EXPECT_EQ(look.at("tokens"), look.at("tokens_with_loss"));
  EXPECT_EQ(look.at("documents"), 280);
  EXPECT_EQ(look.at("lengths").at("count"), 280);
  EXPECT_EQ(look.at("read").at("whole"), true);
  int64_t in_bins = 0;
  for (const Json& bin : look.at("lengths").at("histogram")) in_bins += bin.at("count").get<int64_t>();
  EXPECT_EQ(in_bins, 280);
}

// For every packing the rows shown are those that a run's loader gives.
TEST_F(DataCommand, RowsAreThoseOfTheRun) {
  const std::string toml =
      write("run.toml", "[model]\nhf_assets_path = \"" + kTokenizer + "\"\n[training]\ndataset = \"jsonl\"\ndataset_path = \"" + kC4 +
                            "\"\nseq_len = 96\n[training.dataloader]\nseed = 3\n");
  for (const char* packing : {"concat", "concat_documents", "first_fit", "best_fit", "none"}) {
    for (const bool shuffle : {false, true}) {
      for (const char* read : {"indexed", "streamed"}) {
        JobConfig config;
        config.training.dataset = "jsonl", config.training.dataset_path = kC4;
        config.training.seq_len = 96, config.training.local_batch_size = 1;
        config.training.dataloader.packing = packing, config.training.dataloader.shuffle = shuffle;
        config.training.dataloader.seed = 3, config.training.dataloader.read = read;
        const Json all = figures({"--config", toml, "--packing", packing, "--rows", "5", "--training.dataloader.shuffle",
                                  shuffle ? "true" : "false", "--training.dataloader.read", read, "--training.local_batch_size", "1"});
        const std::string what = fmt::format("{} {} {} {}", packing, shuffle, read, all.value("rows_problem", ""));
        set_log_level(LogLevel::error);
        const auto loader = make_training_loader(config, Tokenizer::load(kTokenizer), 1, 0, 1);
        ASSERT_EQ(all.at("first_rows").size(), 5U) << what;
        for (const Json& row : all.at("first_rows")) {
          const Batch batch = loader->next();
          for (int64_t i = 0; i < 96; ++i) {
            const auto at = static_cast<size_t>(i);
            ASSERT_EQ(row.at("tokens").at(at), batch.tokens.const_data_ptr<int64_t>()[i]) << what << ' ' << i;
            ASSERT_EQ(row.at("labels").at(at), batch.labels.const_data_ptr<int64_t>()[i]) << what << ' ' << i;
            ASSERT_EQ(row.at("positions").at(at), batch.positions.const_data_ptr<int32_t>()[i]) << what << ' ' << i;
            ASSERT_EQ(row.at("doc_start").at(at), batch.doc_start.const_data_ptr<int32_t>()[i]) << what << ' ' << i;
          }
        }
        set_log_level(LogLevel::info);
      }
    }
  }
}

// The figures of packing are those of the index.
TEST_F(DataCommand, PaddingAndLeftOutTokensAreThoseOfTheIndex) {
  for (const char* packing : {"concat", "concat_documents", "first_fit", "best_fit", "none"}) {
    const Json rows = figures({kC4, "--dataset", "jsonl", "--tokenizer", kTokenizer, "--packing", packing, "--seq_len", "150"})
                          .at("sources")
                          .at(0)
                          .at("rows");
    JobConfig config;
    config.training.dataset = "jsonl", config.training.dataset_path = kC4;
    config.training.seq_len = 150, config.training.local_batch_size = 1, config.training.dataloader.packing = packing;
    set_log_level(LogLevel::error);
    const auto loader = make_training_loader(config, Tokenizer::load(kTokenizer), 1, 0, 1);
    set_log_level(LogLevel::info);
    const RowUse& use = loader->rows().use();
    EXPECT_EQ(rows.at("rows"), use.pass_rows) << packing;
    EXPECT_EQ(rows.at("units"), use.units) << packing;
    // best_fit splits them.
    EXPECT_EQ(rows.at("longer_documents"), std::string_view(packing) == "best_fit" ? 171 : use.longer_documents) << packing;
    if (!std::string_view(packing).starts_with("concat")) {
      int64_t padding = 0;
      for (int64_t r = 0; r < use.pass_rows; ++r) {
        const Batch batch = loader->next();
        const bool* padded = batch.padding.const_data_ptr<bool>();
        padding += std::count(padded, padded + 150, true);
      }
      EXPECT_EQ(rows.at("padding"), padding) << packing;
      EXPECT_EQ(rows.at("left_out"), use.units - use.used) << packing;
    } else {
      EXPECT_EQ(rows.at("padding"), 0) << packing;
    }
  }
}

TEST_F(DataCommand, SaysWhatIsWrongWithADataSet) {
  std::string words;
  for (int i = 0; i < 100; ++i) words += "word" + std::to_string(i * 37 % 91) + " ";
  const std::string bad = write("bad.jsonl", line(words) + line("short") + line("") + line(words + "and more") + line("short") +
                                                 line("ends <|end_of_text|> here") + "{\"text\": 1}\n" + line("escape \x1b[31m red") +
                                                 "{\"text\": \"\xE9\"}\n");
  const std::string out = said({bad, "--dataset", "jsonl", "--tokenizer", kTokenizer});
  for (const char* part :
       {"documents                          7", "empty                              1  14.3%",
        "exact duplicates                   1  16.7%", "document 5: \"short...\"", "near duplicates                    1  20.0%",
        "document 4, ", "% like 1: \"word0 word37 ", "not UTF-8                          1  14.3%",
        "bad lines                          2  a run stops at the first",
        "bad.jsonl:7: ", "bad.jsonl:9: ", "control tokens                     1  14.3%", "<|end_of_text|> in 1 document\n"}) {
    EXPECT_TRUE(has(out, part)) << part << "\n" << out;
  }
  EXPECT_EQ(out.find('\x1b'), std::string::npos) << "no text of a file reaches the terminal as a command";
  EXPECT_TRUE(
      has(said({bad, "--tokenizer", kTokenizer, "--packing", "first_fit", "--seq_len", "2"}), "First rows: a run would stop: none of"));
  const std::string rows =
      said({bad, "--dataset", "jsonl", "--tokenizer", kTokenizer, "--packing", "none", "--seq_len", "64", "--rows", "10"});
  EXPECT_TRUE(has(rows, "escape \\x1b[31m red")) << rows;
}

TEST_F(DataCommand, ConversationsShowWhatIsLearned) {
  const std::string chat = write("chat.jinja",
                                 "{{ bos_token }}{% for m in messages %}({{ m.role }}){{ m.content }}{% if m.role == 'assistant' %}"
                                 "{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}(assistant){% endif %}");
  std::string text;
  for (int i = 0; i < 10; ++i) {
    const std::string n = std::to_string(i);
    const Json messages = {{{"role", "user"}, {"content", "How much is " + n}}, {{"role", "assistant"}, {"content", "It is " + n}}};
    text += Json{{"messages", messages}}.dump() + "\n";
  }
  const Strings args = {write("chat.jsonl", text),
                        "--tokenizer",
                        kTokenizer,
                        "--packing",
                        "best_fit",
                        "--seq_len",
                        "64",
                        "--training.dataloader.chat_template",
                        chat};
  const std::string out = said(args);
  EXPECT_TRUE(has(out, "conversations                     10  100.0%")) << out;
  EXPECT_TRUE(has(out, "[-<|begin_of_text|>(user)How much is 0(assistant)-]It is 0<|end_of_text|>\n")) << out;
  const Json all = figures(args), look = all.at("sources").at(0);
  EXPECT_EQ(look.at("conversations").at("learned_turns"), 10);
  EXPECT_EQ(look.at("conversations").at("bytes_with_loss"), 10 * (7 + 15)) << "the answer and the EOS that ends it";
  int64_t learned = 0;
  Strings all_rows = args;
  all_rows.insert(all_rows.end(), {"--rows", "10"});
  const Json shown = figures(all_rows);
  for (const Json& row : shown.at("first_rows"))
    for (const Json& label : row.at("labels")) learned += label != -100;
  EXPECT_EQ(look.at("tokens_with_loss"), learned);
  EXPECT_LT(learned, look.at("tokens").get<int64_t>() / 2);
  EXPECT_TRUE(has(said({args[0]}), "no chat template")) << "a bad line each";
  // A run refuses concat, whatever else it mixes in.
  const std::string mixture =
      write("mixture.toml", "[model]\nhf_assets_path = \"" + std::string(kTokenizer) + "\"\n" + "[training.sources.chats]\npath = \"" +
                                args[0] + "\"\nchat_template = \"" + chat + "\"\n[training.sources.text]\npath = \"" +
                                write("text.jsonl", line("some words")) + "\"\n");
  EXPECT_TRUE(
      has(said({"--config", mixture}), "First rows: a run would stop: dataloader.packing = \"concat\" cuts documents at every EOS"));
  EXPECT_FALSE(has(said({"--config", mixture, "--packing", "best_fit"}), "would stop"));
}

TEST_F(DataCommand, SaysTheSameOnAnyNumberOfThreads) {
  std::string text;
  for (int i = 0; i < 40000; ++i)
    text += line("document " + std::to_string(i % 30000) + " of many, each with words of its own: " + std::to_string(i * 7919 % 10007));
  write("many.jsonl", text);
  for (const Strings& more : {Strings{}, Strings{"--tokenizer", kTokenizer}, Strings{"--sample", "500"}}) {
    std::vector<std::string> out;
    for (const char* threads : {"1", "2", "5"}) {
      Strings args = {path("many.jsonl"), "--dataset", "jsonl", "--threads", threads};
      args.insert(args.end(), more.begin(), more.end());
      out.push_back(said(args));
    }
    EXPECT_EQ(out[0], out[1]);
    EXPECT_EQ(out[0], out[2]);
    EXPECT_EQ(has(out[0], "read whole"), more.empty() || more[0] != "--sample") << out[0];
    EXPECT_EQ(has(out[0], "documents                        500"), !more.empty() && more[0] == "--sample") << out[0];
  }
}

TEST_F(DataCommand, RefusesInOneLine) {
  EXPECT_TRUE(has(refused({}), "expected a PATH or --config"));
  EXPECT_TRUE(has(refused({path("none.jsonl"), "--dataset", "jsonl"}), "none.jsonl"));
  EXPECT_TRUE(has(refused({kC4, "--write", "a.bin", "--sample", "3"}), "--write"));
  EXPECT_TRUE(has(refused({kC4, "--dataset", "jsonl", "--write", path("a.bin")}), "--write needs --tokenizer"));
  EXPECT_TRUE(has(refused({kC4, "--packing", "tight"}), "packing"));
  EXPECT_TRUE(has(refused({kC4, "--all", "--sample", "3"}), "--sample"));
  EXPECT_TRUE(has(refused({kC4, "--no-such-option"}), "--no-such-option"));
  EXPECT_TRUE(has(refused({write("a.bin", "abcd"), "--dataset", "bin"}), "set --tokenizer"));
  const std::string text = write("a.txt", "text");
  EXPECT_TRUE(has(refused({text, "--dataset", "text", "--tokenizer", kTokenizer, "--write", text}), "is one of the input files"));
  for (const Strings& args : {Strings{}, Strings{kC4, "--packing", "tight"}}) EXPECT_EQ(refused(args).find('\n'), std::string::npos);
}

TEST_F(DataCommand, HelpNamesEveryOptionAndDashesAreUnderscores) {
  const std::string help = said({"--help"});
  for (const char* option : {"PATH", "--config", "--tokenizer", "--text_key", "--split", "--seq_len", "--packing", "--rows", "--sample",
                             "--all", "--write", "--json", "--threads", "[-"})
    EXPECT_TRUE(has(help, option)) << option;
  EXPECT_EQ(said({kC4, "--dataset", "jsonl", "--text_key", "text"}), said({kC4, "--dataset", "jsonl", "--text-key", "text"}));
}

TEST(DataReport, HistogramFitsTheTerminal) {
  const std::vector<LengthCounts::Bin> bins = {{0, 1, 1}, {1, 2, 0}, {2, 4, 50000}, {4, 8, 25000}};
  EXPECT_EQ(histogram(bins, {60, false, false}),
            "       0       1  #\n"
            "       1       0\n"
            "  2 to 3  50,000  ########################################\n"
            "  4 to 7  25,000  ####################\n");
  const std::string bars = histogram(bins, {60, true, false});
  EXPECT_TRUE(has(bars, "1  ▏\n")) << bars;
  EXPECT_TRUE(has(bars, "25,000  ████████████████████\n")) << bars;
}

TEST(DataReport, TextIsPrintedWithoutControlCharacters) {
  EXPECT_EQ(printable("a\n\t\x1b[1m\xC2\x9B é \xFF \xE2\x80\xAE"), "a\\n\\t\\x1b[1m\\x9b é \xEF\xBF\xBD \\u202e");
}

TEST(DataReport, RowsShowDocumentsPositionsAndTheMask) {
  const Tokenizer tokenizer = Tokenizer::load(kTokenizer);
  const auto id = [&](const char* text) { return static_cast<int64_t>(*tokenizer.token_id(text)); };
  // Two documents "abc" and "d", of which "b" has no loss, and one position of padding.
  ModelRow row(5);
  row.tokens = {id("a"), id("b"), id("d"), id("e"), 0};
  row.labels = {-100, id("c"), id("e"), id("f"), -100};
  row.positions = {0, 1, 0, 1, 0};
  row.doc_start = {0, 0, 2, 2, 4};
  row.filled = 4;
  EXPECT_EQ(row_text(row, 0, false, tokenizer, {80, false, false}),
            "  row 0: 4 tokens, 3 with a loss (60.0%), 1 padding, 2 documents\n"
            "    tokens 0 to 1, positions 0 to 1\n"
            "      [-ab-]c\n"
            "    tokens 2 to 3, positions 0 to 1\n"
            "      [-d-]ef\n");
  // With concat the next document's first token is the last prediction of the one before.
  row.labels = {id("b"), id("d"), id("e"), -100, -100};
  EXPECT_TRUE(has(row_text(row, 0, true, tokenizer, {80, false, false}), "      [-a-]b\n    tokens 2 to 3, positions 0 to 1\n      de\n"));
  EXPECT_TRUE(has(row_text(row, 0, true, tokenizer, {80, false, true}), "\x1b[90ma\x1b[32mb\x1b[0m\n"));
}

}  // namespace
}  // namespace halftone::data_command_test
