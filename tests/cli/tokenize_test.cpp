#include "halftone/cli/tokenize_command.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "halftone/base/log.h"
#include "halftone/data/loader.h"
#include "halftone/data/tokenizer.h"
#include "source_dir.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

const fs::path kAsset = fs::path(source_dir()) / "tests/assets/tokenizer";

class Tokenize : public testing::Test {
 protected:
  Tokenize() : folder_(fs::path(testing::TempDir()) / ("tokenize_test_" + std::to_string(::getpid()))) {
    ::unsetenv("HALFTONE_CACHE");
    fs::remove_all(folder_);
    fs::create_directories(folder_ / "tokenizer");
    fs::copy_file(kAsset / "tokenizer.json", folder_ / "tokenizer/tokenizer.json");
    fs::copy_file(kAsset / "tokenizer_config.json", folder_ / "tokenizer/tokenizer_config.json");
    set_log_level(LogLevel::error);
  }
  ~Tokenize() override {
    set_log_level(LogLevel::info);
    fs::remove_all(folder_);
  }
  void write(const std::string& name, const std::string& text) const { std::ofstream(folder_ / name, std::ios::binary) << text; }

  std::unique_ptr<DataLoader> loader(const std::string& dataset, const std::string& file, bool held_out, bool special) const {
    JobConfig config;
    config.job.dump_folder = folder_ / "out";
    config.training.dataset = dataset, config.training.dataset_path = folder_ / file;
    config.training.dataloader.special_tokens_in_text = special;
    config.training.local_batch_size = config.validation.local_batch_size = 2;
    config.training.seq_len = config.validation.seq_len = 32;
    config.validation.holdout = 0.3;
    const Tokenizer tokenizer = Tokenizer::load(folder_ / "tokenizer");
    return held_out ? make_validation_loader(config, tokenizer, 0, 1) : make_training_loader(config, tokenizer, 2, 0, 1);
  }

  // Expects the same documents, on the same sides, in the same rows from the JSONL and from its .bin. Returns the number of documents.
  int64_t expect_same(bool special) const {
    std::vector<std::string> args = {"--dataset",           "jsonl",    "--dataset_path", folder_ / "a.jsonl", "--tokenizer",
                                     folder_ / "tokenizer", "--output", folder_ / "a.bin"};
    if (special) args.emplace_back("--special_tokens_in_text");
    testing::internal::CaptureStdout();
    EXPECT_EQ(tokenize_command(args), 0);
    testing::internal::GetCapturedStdout();
    int64_t documents = 0;
    for (const bool held_out : {false, true}) {
      const auto text = loader("jsonl", "a.jsonl", held_out, special), bin = loader("bin", "a.bin", held_out, special);
      const TokenStore &a = text->rows().store(), &b = bin->rows().store();
      documents = a.documents();
      EXPECT_EQ(documents, b.documents());
      if (documents != b.documents()) return -1;
      for (int64_t i = 0; i < documents; ++i) {
        std::vector<int32_t> x(static_cast<size_t>(a.length(i))), y(static_cast<size_t>(b.length(i)));
        a.read(i, 0, x), b.read(i, 0, y);
        EXPECT_EQ(x, y) << i;
        EXPECT_EQ(a.hash(i), b.hash(i)) << i;
      }
      EXPECT_EQ(text->rows().documents(), bin->rows().documents());
      EXPECT_GT(text->rows().documents(), 0);
      for (int step = 0; step < 10 && text->has_next(); ++step) EXPECT_TRUE(at::equal(text->next().tokens, bin->next().tokens)) << step;
    }
    return documents;
  }
  fs::path folder_;
};

std::string pages(int n) {
  std::string out;
  for (int i = 0; i < n; ++i)
    out += "{\"text\": \"<|begin_of_text|>Page " + std::to_string(i) + " ends with <|end_of_text|> and then another one begins.\"}\n";
  return out;
}

TEST_F(Tokenize, BinAndJsonlAreTheSameDocumentsWhateverLettersTheyHold) {
  write("a.jsonl", pages(40));
  EXPECT_EQ(expect_same(false), 40);
  EXPECT_EQ(expect_same(true), 80) << "an EOS that is meant ends a document";
}

TEST_F(Tokenize, ReadyMadeIdsEndWhereTheirEosIs) {
  write("a.jsonl", pages(30) + "{\"input_ids\": [5, 6, 2047]}\n{\"input_ids\": [5, 6, 2047, 7, 2047]}\n");
  EXPECT_EQ(expect_same(false), 33);
}

TEST_F(Tokenize, OneTokenMayBeginAndEndDocuments) {
  write("tokenizer/tokenizer_config.json", R"({"bos_token": "<|end_of_text|>", "eos_token": "<|end_of_text|>"})");
  write("a.jsonl", pages(40));
  EXPECT_EQ(expect_same(false), 40);
}

}  // namespace
}  // namespace halftone
