#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "data/data_testing.h"
#include "halftone/data/bpe_trainer.h"
#include "halftone/data/loader.h"
#include "halftone/data/tokenizer.h"

namespace halftone {
namespace {

const std::string kSample = std::string(HALFTONE_SOURCE_DIR) + "/tests/assets/c4_test";

std::vector<std::string> sample_texts() {
  SourceOptions options;
  options.dataset = "c4_test";
  options.path = kSample;
  std::vector<std::string> out;
  const auto source = open_source(options);
  for (int64_t s = 0; s < source->shard_count(); ++s) source->read_shard(s, [&](const Document& d) { out.emplace_back(d.text); });
  return out;
}

const Tokenizer& tokenizer() {
  static const Tokenizer trained = [] {
    const auto texts = sample_texts();
    size_t next = 0;
    BpeTrainerOptions options;
    options.vocab_size = 400;
    return train_bpe([&](std::string& text) { return next < texts.size() ? (text = texts[next++], true) : false; }, options);
  }();
  return trained;
}

class MakeLoader : public testing::Test {
 protected:
  MakeLoader() {
    ::unsetenv("HALFTONE_CACHE");
    config_.job.dump_folder = folder_ / "out";
    config_.training.dataset = "c4_test";
    config_.training.dataset_path = kSample;
    config_.training.local_batch_size = 2;
    config_.training.seq_len = 64;
    config_.validation.local_batch_size = 3;
    config_.validation.seq_len = 64;
  }
  TempFolder folder_;
  JobConfig config_;
};

TEST_F(MakeLoader, TrainingRowsAreTheEncodedDocumentsInOrder) {
  const auto loader = make_training_loader(config_, tokenizer(), 4, 0, 1);
  std::vector<int32_t> stream;
  for (const std::string& text : sample_texts()) {
    const auto ids = tokenizer().encode_document(text, true, true);
    stream.insert(stream.end(), ids.begin(), ids.end());
  }
  EXPECT_EQ(stream[0], *tokenizer().bos_id());
  for (int64_t row = 0; row < 40; row += 2) {
    const Batch batch = loader->next();
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t j = 0; j < 64; ++j) {
        const auto at = static_cast<size_t>((row + b) * 65 + j);
        ASSERT_EQ(batch.tokens.const_data_ptr<int64_t>()[b * 64 + j], stream[at]);
        ASSERT_EQ(batch.labels.const_data_ptr<int64_t>()[b * 64 + j], stream[at + 1]);
      }
  }
  EXPECT_NE(loader->summary().find("jsonl: 1 files, 0.1 MB, digest "), std::string::npos) << loader->summary();
  EXPECT_TRUE(std::filesystem::exists(folder_ / "out/cache"));
}

TEST_F(MakeLoader, LabelBytesAreTheBytesOfTheText) {
  // One pass with one document per row: the labels are the whole text (BOS is no label, EOS no text).
  config_.validation.dataset = "c4_test";
  config_.validation.dataset_path = kSample;
  config_.validation.dataloader.packing = "none";
  config_.validation.seq_len = 5000;
  const auto loader = make_validation_loader(config_, tokenizer(), 0, 1);
  int64_t bytes = 0, text_bytes = 0;
  while (loader->has_next()) bytes += loader->next().label_bytes;
  for (const std::string& text : sample_texts()) text_bytes += static_cast<int64_t>(text.size());
  EXPECT_EQ(bytes, text_bytes);
}

TEST_F(MakeLoader, HoldoutTakesValidationFromTheTrainingDocuments) {
  config_.validation.holdout = 0.2;
  config_.validation.dataset = "bin";  // not looked at
  const auto train = make_training_loader(config_, tokenizer(), 2, 0, 1), valid = make_validation_loader(config_, tokenizer(), 0, 1);
  EXPECT_EQ(train->rows().documents() + valid->rows().documents(), train->rows().store().documents());
  EXPECT_GT(valid->rows().documents(), 20);
  EXPECT_LT(valid->rows().documents(), 100);
  EXPECT_EQ(train->rows().store().digest(), valid->rows().store().digest());
  config_.validation.steps = 2;
  EXPECT_EQ(make_validation_loader(config_, tokenizer(), 0, 1)->steps_per_pass(), 2);
  config_.validation.steps = 0;
  EXPECT_ERROR(make_validation_loader(config_, tokenizer(), 0, 1), "validation.steps = 0");
}

TEST_F(MakeLoader, OptionsThatChangeTheIdsMakeAnotherIndex) {
  const auto with = make_training_loader(config_, tokenizer(), 2, 0, 1);
  config_.training.dataloader.add_bos = false;
  const auto without = make_training_loader(config_, tokenizer(), 2, 0, 1);
  EXPECT_EQ(with->rows().units() - without->rows().units(), with->rows().documents());
  EXPECT_EQ(with->rows().store().digest(), without->rows().store().digest());
  EXPECT_ERROR(without->load_state(with->state()), "the rows are not made as in the checkpoint");
}

TEST_F(MakeLoader, ChangedCorpusIsRefusedWithTheOldState) {
  std::string path = folder_.write("text/a.txt", std::string(3000, 'a'));
  config_.training.dataset = "text";
  config_.training.dataset_path = folder_ / "text";
  const nlohmann::json state = make_training_loader(config_, tokenizer(), 2, 0, 1)->state();
  EXPECT_NO_THROW(make_training_loader(config_, tokenizer(), 2, 0, 1)->load_state(state));
  config_.training.dataloader.text_split = "line";
  EXPECT_ERROR(make_training_loader(config_, tokenizer(), 2, 0, 1)->load_state(state), "text split=file then, text split=line now");
  config_.training.dataloader.text_split = "file";
  folder_.write("text/b.txt", "more");
  EXPECT_ERROR(make_training_loader(config_, tokenizer(), 2, 0, 1)->load_state(state), "are not those that the checkpoint was trained on");
}

}  // namespace
}  // namespace halftone
