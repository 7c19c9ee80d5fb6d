#include "halftone/data/loader.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/data_testing.h"

namespace halftone {
namespace {

class LoaderTest : public testing::Test {
 protected:
  std::unique_ptr<DataLoader> loader(DataLoader::Options o, RowOptions rows = {}) {
    rows.seq_len = 16;
    rows.shuffle = true;
    rows.eos_id = kEos;
    o.token_bytes.assign(256, 1);
    return std::make_unique<DataLoader>(std::make_unique<RowSequence>(store_, rows), o);
  }
  static DataLoader::Options options(int64_t local, int64_t global, int64_t rank = 0, int64_t size = 1) {
    DataLoader::Options o;
    o.local_batch = local;
    o.global_batch = global;
    o.dp_rank = rank;
    o.dp_size = size;
    return o;
  }
  static bool equal(const Batch& a, const Batch& b) {
    return at::equal(a.tokens, b.tokens) && at::equal(a.labels, b.labels) && at::equal(a.positions, b.positions) &&
           at::equal(a.doc_start, b.doc_start) && a.padding.defined() == b.padding.defined() &&
           (!a.padding.defined() || at::equal(a.padding, b.padding)) && a.valid_labels == b.valid_labels && a.label_bytes == b.label_bytes;
  }
  // Rows of `steps` steps of a run on `size` ranks, in global order.
  at::Tensor run(int64_t local, int64_t global, int64_t size, int64_t steps, const nlohmann::json* from = nullptr) {
    std::vector<at::Tensor> rows;
    std::vector<std::unique_ptr<DataLoader>> ranks;
    for (int64_t r = 0; r < size; ++r) {
      ranks.push_back(loader(options(local, global, r, size)));
      if (from != nullptr) ranks.back()->load_state(*from);
    }
    for (int64_t k = 0; k < steps * ranks[0]->microbatches_per_step(); ++k)
      for (auto& rank : ranks) rows.push_back(rank->next().tokens);
    return at::cat(rows);
  }

  TempFolder folder_;
  std::shared_ptr<const TokenStore> store_ = open_jsonl(folder_.write("a.jsonl", random_jsonl(60, 40, 1)), folder_ / "cache");
};

TEST_F(LoaderTest, BatchesHaveTheDeclaredShapesAndCounts) {
  auto l = loader(options(3, 6));
  const Batch b = l->next();
  for (const at::Tensor& t : {b.tokens, b.labels, b.positions, b.doc_start}) EXPECT_EQ(t.sizes(), (std::vector<int64_t>{3, 16}));
  EXPECT_EQ(b.tokens.scalar_type(), at::kLong);
  EXPECT_EQ(b.labels.scalar_type(), at::kLong);
  EXPECT_EQ(b.positions.scalar_type(), at::kInt);
  EXPECT_EQ(b.doc_start.scalar_type(), at::kInt);
  int64_t valid = 0, bytes = 0;
  for (int64_t i = 0; i < 48; ++i) {
    const int64_t label = b.labels.const_data_ptr<int64_t>()[i];
    valid += label != -100;
    bytes += label >= 0 && label < 256;
  }
  EXPECT_EQ(b.valid_labels, valid);
  EXPECT_EQ(b.label_bytes, bytes);
  EXPECT_LT(bytes, valid);  // BOS and EOS are not text
}

TEST_F(LoaderTest, RanksTogetherSeeTheSameRowsInTheSameOrder) {
  const at::Tensor one = run(12, 12, 1, 20);
  EXPECT_TRUE(at::equal(run(2, 12, 1, 20), one));
  EXPECT_TRUE(at::equal(run(2, 12, 3, 20), one));
  EXPECT_TRUE(at::equal(run(1, 12, 4, 20), one));
  EXPECT_TRUE(at::equal(run(6, 12, 2, 20), one));
}

TEST_F(LoaderTest, ResumesAtEveryStepBitForBitOnAnyNumberOfRanks) {
  constexpr int64_t steps = 25;  // more than two epochs
  for (const Packing packing : {Packing::concat, Packing::concat_documents, Packing::first_fit, Packing::none}) {
    RowOptions rows;
    rows.packing = packing;
    auto straight = loader(options(2, 4), rows);
    std::vector<Batch> batches;
    std::vector<std::string> states;
    for (int64_t s = 0; s < steps; ++s) {
      states.push_back(straight->state().dump());
      batches.push_back(straight->next());
      EXPECT_EQ(straight->state().dump(), states.back());  // within a step: the start of the step
      batches.push_back(straight->next());
    }
    EXPECT_GE(batches.back().epoch, packing == Packing::none ? 1 : 0);
    for (int64_t s = 0; s < steps; s += 3) {
      auto resumed = loader(options(2, 4), rows);
      resumed->next();  // earlier prefetched batches must not appear
      resumed->load_state(nlohmann::json::parse(states[static_cast<size_t>(s)]));
      for (int64_t k = 2 * s; k < 2 * steps; ++k) ASSERT_TRUE(equal(resumed->next(), batches[static_cast<size_t>(k)])) << s << " " << k;
      EXPECT_EQ(resumed->state(), straight->state());
    }
  }
  auto half = loader(options(4, 12));
  for (int64_t k = 0; k < 3 * 7; ++k) half->next();
  const nlohmann::json state = half->state();
  EXPECT_EQ(state.at("rows_seen"), 84);
  const at::Tensor rest = run(4, 12, 1, 9, &state);
  EXPECT_TRUE(at::equal(run(4, 12, 1, 16).slice(0, 84), rest));
  EXPECT_TRUE(at::equal(run(2, 12, 3, 9, &state), rest));
}

TEST_F(LoaderTest, RefusesStatesOfOtherDataOrRows) {
  auto l = loader(options(2, 4));
  const nlohmann::json good = l->state();
  const auto with = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json s = good;
    s[key] = value;
    return s;
  };
  l->next();
  l->next();
  const nlohmann::json before = l->state();
  EXPECT_ERROR(l->load_state(with("source", "0123")), "checkpoint.exclude_from_loading");
  EXPECT_ERROR(l->load_state(with("options", "seq_len=1")), "the rows are not built as in the checkpoint");
  EXPECT_ERROR(l->load_state(with("documents", "text split=line")), "text split=line then, jsonl text_key=text now");
  EXPECT_ERROR(l->load_state(with("row", -1)), "row is -1");
  EXPECT_ERROR(l->load_state(with("row", 1'000'000)), "row 1000000 of epoch 0");
  EXPECT_ERROR(l->load_state(with("epoch", "x")), "epoch is not an integer");
  EXPECT_ERROR(l->load_state(with("format", 2)), "format 2");
  EXPECT_ERROR(l->load_state(nlohmann::json::array()), "has another format than this program's");
  EXPECT_ERROR(l->load_state({}), "has another format than this program's");
  EXPECT_EQ(l->state(), before);
  nlohmann::json of_older_builds = good;
  of_older_builds.erase("documents");
  EXPECT_NO_THROW(l->load_state(of_older_builds));
}

TEST_F(LoaderTest, OnePassCoversEveryRowOnceAndRewinds) {
  DataLoader::Options o = options(4, 8, 1, 2);
  o.repeat = false;
  o.pad_last = true;
  RowOptions rows;
  rows.packing = Packing::first_fit;
  std::vector<std::unique_ptr<DataLoader>> ranks;
  for (o.dp_rank = 0; o.dp_rank < 2; ++o.dp_rank) ranks.push_back(loader(o, rows));
  RowSequence sequence(store_, ranks[0]->rows().options());
  const int64_t n = sequence.pass_rows();
  ASSERT_NE(n % 8, 0);
  EXPECT_EQ(ranks[0]->steps_per_pass(), (n + 7) / 8);
  std::vector<Batch> first;
  for (int pass = 0; pass < 2; ++pass) {
    int64_t row = 0, at = 0;
    while (ranks[0]->has_next()) {
      for (auto& rank : ranks) {
        Batch b = rank->next();
        for (int64_t k = 0; k < 4; ++k, ++row) {
          Row want(16);
          if (row < n)
            sequence.fill({0, row}, want.view());
          else
            fill_ignored_row(want.view(), 16);
          ASSERT_TRUE(std::equal(want.labels.begin(), want.labels.end(), b.labels.const_data_ptr<int64_t>() + k * 16));
        }
        if (pass == 0)
          first.push_back(std::move(b));
        else
          ASSERT_TRUE(equal(b, first[static_cast<size_t>(at++)]));
      }
    }
    EXPECT_FALSE(ranks[1]->has_next());
    EXPECT_ERROR(ranks[0]->next(), "is over");
    for (auto& rank : ranks) rank->rewind();
  }
  o.dp_rank = 0;
  o.max_steps = 2;
  auto limited = loader(o, rows);
  limited->next();
  limited->next();
  EXPECT_FALSE(limited->has_next());
}

// Padding is what no document fills: token 0 without a label. A row's last token has a label, so it begins behind that.
TEST_F(LoaderTest, MarksPadding) {
  for (const Packing packing : {Packing::concat, Packing::concat_documents, Packing::first_fit, Packing::none}) {
    RowOptions rows;
    rows.packing = packing;
    const bool pads = packing == Packing::first_fit || packing == Packing::none;
    EXPECT_EQ(loader(options(2, 4), rows)->next().padding.defined(), pads);
    auto once = options(4, 8);
    once.repeat = false, once.pad_last = true;
    auto l = loader(once, rows);
    const int64_t beyond = l->steps_per_pass() * 8 - l->rows().use().pass_rows;
    ASSERT_GT(beyond, 0);
    int64_t padded = 0, empty = 0;
    while (l->has_next()) {
      const Batch b = l->next();
      ASSERT_TRUE(b.padding.defined());
      EXPECT_TRUE(at::equal(b.padding, b.labels.lt(0)));
      padded += b.padding.sum().item<int64_t>(), empty += b.padding.all(1).sum().item<int64_t>();
    }
    EXPECT_EQ(empty, beyond);
    EXPECT_EQ(padded > 16 * beyond, pads);
  }
}

TEST_F(LoaderTest, OnePassIsOverAfterAStateOfTheSecondEpoch) {
  auto repeating = loader(options(2, 4));
  nlohmann::json state;
  while ((state = repeating->state()).at("epoch") == 0) repeating->next();
  auto once = options(2, 4);
  once.repeat = false;
  auto finite = loader(once);
  EXPECT_TRUE(finite->has_next());
  finite->load_state(state);
  EXPECT_FALSE(finite->has_next());
}

TEST_F(LoaderTest, ARunGoesOnWithTheNextEpochWhereOnePassEnded) {
  auto o = options(2, 4);
  o.repeat = false, o.pad_last = true;
  auto once = loader(o);
  while (once->has_next()) once->next();
  auto repeating = loader(options(2, 4));
  repeating->load_state(once->state());
  EXPECT_EQ(repeating->next_step(), (RowCursor{1, 0}));
  EXPECT_EQ(repeating->next().epoch, 1);
}

TEST_F(LoaderTest, OnePassWithoutPaddingLeavesTheRestOut) {
  DataLoader::Options o = options(8, 8);
  o.repeat = false;
  auto l = loader(o);
  EXPECT_EQ(l->steps_per_pass(), store_->tokens() / 17 / 8);
  o.global_batch = o.local_batch = 100'000;
  EXPECT_ERROR(loader(o), "expected at least 100000");
  EXPECT_ERROR(loader(options(3, 8)), "global_batch_size 8 is not a multiple of local_batch_size 3");
}

TEST(Loader, FailuresOfTheThreadComeOutOfNext) {
  const TempFolder folder;
  std::string ids;
  for (int i = 0; i < 4000; ++i) ids += std::string("\x05\x00", 2);
  const std::string path = folder.write("a.bin", ids);
  SourceOptions source;
  source.dataset = "bin";
  source.path = path;
  source.vocab_size = kVocab;
  auto store = open_token_store(*open_source(source), byte_codec(), folder / "cache", 1);
  RowOptions rows;
  rows.seq_len = 16;
  DataLoader::Options o;
  o.name = "bin";
  DataLoader loader(std::make_unique<RowSequence>(store, rows), o);
  // The mapped file changes while the program runs: an id outside the vocabulary.
  std::fstream(path, std::ios::binary | std::ios::in | std::ios::out).seekp(2 * 17 * 100).write("\xFF\xFF", 2);
  const std::string message = error_of([&] {
    for (int k = 0; k < 200; ++k) loader.next();
  });
  EXPECT_NE(message.find("id 65535"), std::string::npos) << message;
  EXPECT_ERROR(loader.next(), "id 65535");
}

}  // namespace
}  // namespace halftone
