#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

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

TEST_F(MakeLoader, ANamedDataSetIsReadByItsOwnOptions) {
  OptionTable& table = config_.data.names["mine"];
  table = {{"dataset", std::string("c4_test")}, {"path", kSample}, {"add_bos", false}};
  config_.training.dataset = config_.validation.dataset = "mine";
  config_.training.dataset_path.reset();
  const std::vector<int32_t> ids = tokenizer().encode_document(sample_texts()[0], false, true);
  EXPECT_EQ(make_training_loader(config_, tokenizer(), 2, 0, 1)->next().tokens.const_data_ptr<int64_t>()[0], ids[0]);
  EXPECT_EQ(make_validation_loader(config_, tokenizer(), 0, 1)->next().tokens.const_data_ptr<int64_t>()[0], ids[0]);
  table["read"] = std::string("streamed");
  config_.training.dataloader.shuffle = false;
  const auto streamed = make_training_loader(config_, tokenizer(), 2, 0, 1);
  EXPECT_NE(streamed->summary().find("streamed in"), std::string::npos) << streamed->summary();
  EXPECT_EQ(make_validation_loader(config_, tokenizer(), 0, 1)->next().tokens.const_data_ptr<int64_t>()[0], ids[0]);
}

TEST_F(MakeLoader, LabelBytesAreTheBytesOfTheText) {
  // One pass with one document per row: the labels are the full text (BOS is not a label, EOS not text).
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
  EXPECT_ERROR(without->load_state(with->state()), "the rows are not built as in the checkpoint");
}

// Warnings logged while a loader is made.
std::string warnings_of(const std::function<void()>& make) {
  testing::internal::CaptureStdout();
  make();
  std::istringstream said(testing::internal::GetCapturedStdout());
  std::string out;
  for (std::string line; std::getline(said, line);)
    if (line.find("WARNING - ") != std::string::npos) out += line.substr(line.find("WARNING - ") + 10) + "\n";
  return out;
}

TEST(MakeLoaderSource, AKindThatReadsAllSplitsOfAFolderSaysSo) {
  const TempFolder folder;
  for (const char* name : {"train", "test"}) folder.write(std::string("a/") + name + ".jsonl", "{\"text\": \"a\"}\n");
  folder.write("b/one.jsonl", "{}"), folder.write("b/two.jsonl", "{}");
  const auto said = [&](const std::string& path, const char* dataset) {
    SourceOptions options;
    options.dataset = dataset, options.path = path;
    return warnings_of([&] { open_source(options); });
  };
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "dataset = \"jsonl\" reads all of its splits (test, train); dataset = \"auto\" reads one",
                      said(folder / "a", "jsonl"));
  EXPECT_EQ(said(folder / "a", "auto"), "");
  EXPECT_EQ(said(folder / "a/*.jsonl", "jsonl"), "");
  EXPECT_EQ(said(folder / "b", "jsonl"), "");
}

TEST_F(MakeLoader, SaysWhatOfTheDataIsNotUsed) {
  std::string corpus;  // 99 documents of 1,025 ids each, and one of 11: 99 * 1024 + 10 predictions
  for (int d = 0; d < 100; ++d) {
    corpus += "{\"input_ids\": [1";
    for (int i = 0; i < (d == 99 ? 10 : 1024); ++i) corpus += ", 2";
    corpus += "]}\n";
  }
  config_.training.dataset = "jsonl";
  config_.training.dataset_path = folder_.write("long.jsonl", corpus);
  config_.training.steps = 10;
  const auto said = [&](const std::string& packing, int64_t seq_len) {
    config_.training.dataloader.packing = packing, config_.training.seq_len = seq_len;
    return warnings_of([&] { make_training_loader(config_, tokenizer(), 4, 0, 1); });
  };
  const std::string first_fit = said("first_fit", 64);
  EXPECT_NE(first_fit.find("packing first_fit drops 99 of 100 documents, which are longer than a row, and with them 100.0% (101,376 of "
                           "101,386) of the predictions; raise seq_len (now 64)"),
            std::string::npos)
      << first_fit;
  EXPECT_NE(first_fit.find("an epoch has 1 rows, fewer than the 4 of a step"), std::string::npos) << first_fit;
  EXPECT_NE(make_training_loader(config_, tokenizer(), 4, 0, 1)->summary().find("10 of 101,386 predictions per epoch"), std::string::npos);
  EXPECT_EQ(said("first_fit", 1024), "");
  EXPECT_NE(
      said("none", 64).find("packing none truncates 99 of 100 documents at the end of their row, and drops 93.7% (95,040 of 101,386)"),
      std::string::npos);
  EXPECT_EQ(said("none", 1024), "");
  EXPECT_EQ(said("concat_documents", 64), "");
  EXPECT_NE(said("concat_documents", 60'000).find("40.8% (41,386 of 101,386) of the predictions are dropped from every epoch"),
            std::string::npos);
  config_.training.steps = 100'000;
  EXPECT_NE(said("concat", 64).find("100,000 steps of 4 rows go 256 times through the 1,562 rows of an epoch"), std::string::npos);
  config_.training.steps = 6000;  // 15.4 times
  EXPECT_EQ(said("concat", 64), "");
}

TEST_F(MakeLoader, SaysWhatTheEndOfAPassLeavesOut) {
  std::string corpus = "{\"input_ids\": [1";
  for (int i = 1; i < 65 * 23 + 60; ++i) corpus += ", 2";
  config_.training.dataset = "jsonl";
  config_.training.dataset_path = folder_.write("one.jsonl", corpus + "]}\n");
  config_.training.dataloader.repeat = false;
  config_.training.steps = 5;
  const auto said = [&](int64_t batch) { return warnings_of([&] { make_training_loader(config_, tokenizer(), batch, 0, 1); }); };
  EXPECT_NE(said(4).find("its last 13.0% (3 of 23) of the rows, which do not fill a step of 4"), std::string::npos) << said(4);
  EXPECT_NE(said(4).find("its last 3.9% (60 of 1,555) of the tokens, which do not fill a row"), std::string::npos) << said(4);
  EXPECT_EQ(said(4).find("the run ends there"), std::string::npos);
  config_.training.steps = 6;
  EXPECT_NE(said(4).find("training.steps = 6, but one pass (dataloader.repeat = false) has 5 steps"), std::string::npos);

  config_.validation.dataset = "jsonl";
  config_.validation.dataset_path = config_.training.dataset_path;
  const auto validation = [&] { return warnings_of([&] { make_validation_loader(config_, tokenizer(), 0, 1); }); };
  config_.validation.dataloader.packing = "concat_documents";
  EXPECT_EQ(validation().find("rough figure"), std::string::npos) << validation();
  config_.validation.dataset_path = folder_.write("few.jsonl", "{\"input_ids\": [1, 2, 3]}\n");
  config_.validation.dataloader.packing = "none";
  EXPECT_NE(validation().find("has 2 predictions in 1 rows of 1 documents: its loss is a rough figure"), std::string::npos) << validation();
}

OptionTable part(const std::string& path, OptionTable more = {}) {
  more["path"] = path;
  return more;
}

TEST_F(MakeLoader, SourcesMayBeAddedAndLeftOutOnResume) {
  const auto loader = [&](const std::map<std::string, OptionTable>& sources) {
    config_.training.sources = {sources.begin(), sources.end()};
    return make_training_loader(config_, tokenizer(), 2, 0, 1);
  };
  config_.training.dataloader.read = "streamed";
  const OptionTable a = part(kSample), b = part(folder_.write("b.txt", std::string(9000, 'b')), {{"weight", 0.5}});
  const nlohmann::json state = [&] {
    const auto before = loader({{"a", a}, {"b", b}});
    for (int i = 0; i < 5; ++i) before->next();
    return before->state();
  }();
  EXPECT_NO_THROW(loader({{"a", a}, {"b", b}})->load_state(state));
  EXPECT_NO_THROW(loader({{"a", a}, {"b", b}, {"c", a}})->load_state(state));
  EXPECT_NO_THROW(loader({{"a", a}})->load_state(state));
  EXPECT_ERROR(loader({{"a", part(kSample, {{"add_bos", false}})}, {"b", b}})->load_state(state),
               "a: texts are not encoded as in the checkpoint");
  EXPECT_ERROR(loader({{"a", part(folder_ / "b.txt")}})->load_state(state), "the files of source a differ");
}

TEST_F(MakeLoader, AStreamKeepsItsPlaceUnderAnotherNameOfItsKind) {
  config_.training.dataloader.read = "streamed";
  const auto before = make_training_loader(config_, tokenizer(), 2, 0, 1);
  before->next();
  config_.training.dataset = "jsonl";
  const auto after = make_training_loader(config_, tokenizer(), 2, 0, 1);
  after->load_state(before->state());
  EXPECT_TRUE(at::equal(after->next().tokens, before->next().tokens));
  config_.training.dataset_path = folder_.write("other.jsonl", "{\"text\": \"other\"}\n");
  EXPECT_ERROR(make_training_loader(config_, tokenizer(), 2, 0, 1)->load_state(before->state()), "the files of the data differ");
}

TEST_F(MakeLoader, SourcesWithoutAPathOrAWeightAreNamed) {
  const auto open = [&](OptionTable table) {
    config_.training.sources = {{"a", std::move(table)}};
    make_training_loader(config_, tokenizer(), 2, 0, 1);
  };
  EXPECT_ERROR(open({{"weight", 1.0}}), "needs training.sources.a.path: a file, a folder or a glob");
  EXPECT_ERROR(open(part(kSample, {{"weight", 0.0}})), "training.sources: at step 0 every weight is 0");
  EXPECT_ERROR(open(part(kSample, {{"weight", std::string("1, 50: 0")}})), "training.sources: at step 50 every weight is 0");
  config_.training.sources = {};
  config_.validation.dataset_path.reset();
  config_.validation.dataset = "c4_validation";
  EXPECT_ERROR(make_validation_loader(config_, tokenizer(), 0, 1), "needs validation.dataset_path");
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
  EXPECT_ERROR(make_training_loader(config_, tokenizer(), 2, 0, 1)->load_state(state),
               "differ from those that the checkpoint was trained on");
}

}  // namespace
}  // namespace halftone
