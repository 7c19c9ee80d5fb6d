// Documents of which only some tokens have a loss: in the index, and in rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "data/data_testing.h"

namespace halftone::token_loss_test {
namespace {

using Ids = std::vector<int32_t>;
using Mask = std::vector<uint8_t>;

// A conversation, text, or ids with a mask.
struct Made {
  std::string text = {};
  std::vector<ByteRange> learned = {};
  bool chat = false;
  Ids ids = {};
  Mask loss = {};
};

// Documents from memory, `per_shard` a shard.
class MadeSource : public DocumentSource {
 public:
  MadeSource(const std::string& path, std::vector<Made> documents, std::string chat = "")
      : DocumentSource(find_files(path, {})), documents_(std::move(documents)) {
    chat_ = std::move(chat);
  }
  std::string kind() const override { return "made"; }
  std::string options() const override { return "of=memory"; }
  int64_t shard_count() const override { return (static_cast<int64_t>(documents_.size()) + 6) / 7; }
  void read_shard(int64_t shard, const DocumentVisitor& visit) const override {
    for (size_t i = static_cast<size_t>(shard) * 7; i < std::min(documents_.size(), static_cast<size_t>(shard + 1) * 7); ++i) {
      const Made& m = documents_[i];
      Document d;
      d.kind = m.chat ? Document::Kind::chat : m.ids.empty() ? Document::Kind::text : Document::Kind::ids;
      d.text = m.text, d.learned = m.learned, d.ids = m.ids, d.loss = m.loss;
      visit(d);
    }
  }
  void read_file(size_t, const DocumentVisitor& visit) const override {
    for (int64_t s = 0; s < shard_count(); ++s) read_shard(s, visit);
  }

 private:
  std::vector<Made> documents_;
};

struct Expected {
  Ids ids;
  Mask loss;
};
Expected expected(const Made& m) {
  Expected e{m.ids, m.loss};
  if (m.chat) byte_codec().encode_chat(m.text, m.learned, e.ids, e.loss);
  if (!m.chat && m.ids.empty()) byte_codec().encode_document(m.text, e.ids);
  if (e.loss.empty()) e.loss.assign(e.ids.size(), 1);
  return e;
}

std::vector<Made> mixed(int count, unsigned seed, size_t longest = 60) {
  std::mt19937 random(seed);
  std::vector<Made> out;
  for (int i = 0; i < count; ++i) {
    Made m;
    const auto n = 1 + random() % longest;
    for (size_t k = 0; k < n; ++k) m.text += static_cast<char>('a' + random() % 26);
    const auto kind = random() % 4;
    if (kind < 2) {
      m.chat = true;
      for (size_t at = random() % 9; at < n; at += 1 + random() % 9) {
        const size_t end = std::min<size_t>(n, at + 1 + random() % 9);
        m.learned.push_back({at, end});
        at = end;
      }
    } else if (kind == 2) {
      for (size_t k = 0; k < n; ++k) m.ids.push_back(static_cast<int32_t>(random() % kVocab)), m.loss.push_back(random() % 2);
      m.loss.back() = 0;  // so that it is one document
      m.text.clear();
    }
    out.push_back(m);
  }
  return out;
}

std::shared_ptr<const TokenStore> open(const TempFolder& folder, std::vector<Made> documents, const std::string& chat = "chat") {
  const std::string path = folder.write("data/x", "contents");
  return open_token_store(MadeSource(path, std::move(documents), chat), byte_codec(), folder / "cache", 2);
}

std::string index_file(const TempFolder& folder, const std::string& suffix) {
  for (const auto& e : std::filesystem::directory_iterator(folder / "cache"))
    if (e.path().string().ends_with(suffix)) return e.path().string();
  return "";
}

TEST(TokenLoss, TheIndexKeepsABitForEachToken) {
  const TempFolder folder;
  std::vector<Made> documents = mixed(500, 1);
  documents.insert(documents.begin(), 20, Made{.text = "before the first mask"});
  const auto store = open(folder, documents);
  ASSERT_TRUE(store->masked());
  ASSERT_EQ(store->documents(), static_cast<int64_t>(documents.size()));
  for (size_t i = 0; i < documents.size(); ++i) {
    const Expected e = expected(documents[i]);
    const auto at = static_cast<int64_t>(i);
    ASSERT_EQ(document_ids(*store, at), e.ids) << i;
    Mask loss(e.ids.size());
    store->read_loss(at, 0, loss);
    // Of a document with a loss everywhere but on its first token, which nothing predicts, no mask is kept.
    ASSERT_EQ(Mask(loss.begin() + 1, loss.end()), Mask(e.loss.begin() + 1, e.loss.end())) << i;
    for (size_t first = 0; first < loss.size(); first += 7) {
      const auto n = static_cast<int64_t>((loss.size() - first) * 2 / 3);
      ASSERT_EQ(store->count_loss(at, static_cast<int64_t>(first), n), std::count(loss.begin() + first, loss.begin() + first + n, 1));
      Mask part(static_cast<size_t>(n));
      store->read_loss(at, static_cast<int64_t>(first), part);
      ASSERT_EQ(part, Mask(loss.begin() + first, loss.begin() + first + n));
    }
  }
  EXPECT_EQ(store->stats().chats, std::ranges::count_if(documents, &Made::chat));
  Mask beyond(1000);
  EXPECT_ERROR(store->read_loss(0, 0, beyond), "asked for 1000 from 0");
}

TEST(TokenLoss, LongRunsAreCounted) {
  const TempFolder folder;
  Made chat{.text = std::string(1000, 'x'), .learned = {{100, 900}}, .chat = true};
  const auto store = open(folder, {chat});
  EXPECT_EQ(store->count_loss(0, 0, 1002), 800);
  for (int64_t first : {0, 1, 63, 64, 100, 101, 102, 500})
    EXPECT_EQ(store->count_loss(0, first, 400), std::min(first + 400, int64_t{901}) - std::max(first, int64_t{101}));
}

TEST(TokenLoss, AConversationIsOneDocumentAndTextIsCutAtEos) {
  const TempFolder folder;
  const Ids turns = {1, kEos, 2, kEos, 3};
  const auto store = open(folder, {{.ids = turns}, {.ids = turns, .loss = {0, 1, 0, 1, 1}}, {.ids = turns, .loss = {0, 1, 1, 1, 1}}});
  EXPECT_EQ(store->documents(), 3 + 1 + 3) << "a mask that only leaves out the first token is none";
  EXPECT_EQ(store->stats().masked_documents, 1);
  EXPECT_EQ(document_ids(*store, 3), turns);
}

TEST(TokenLoss, WithoutMasksTheIndexIsAsItWas) {
  const TempFolder folder;
  const auto store = open(folder, {{.text = "plain"}, {.text = "chat", .learned = {{0, 4}}, .chat = true}});
  EXPECT_FALSE(store->masked());
  EXPECT_EQ(store->count_loss(1, 0, 6), 6);
  EXPECT_EQ(std::filesystem::file_size(index_file(folder, ".tokens")), 32u + 2 * sizeof(DocumentEntry));
}

TEST(TokenLoss, TheKeyHoldsTheTemplateAndTheRunsStateToo) {
  const TempFolder folder;
  const Made chat{.text = "chat", .learned = {{2, 4}}, .chat = true};
  EXPECT_EQ(open(folder, {chat}, "template=a")->made_by(), "made of=memory template=a");
  EXPECT_EQ(open(folder, {{.text = "text"}}, "template=b")->made_by(), "made of=memory") << "no conversation";
  EXPECT_EQ(std::ranges::count_if(std::filesystem::directory_iterator(folder / "cache"),
                                  [](const auto& e) { return e.path().extension() == ".json"; }),
            2);
}

TEST(TokenLoss, DamagedMasksAreBuiltAgain) {
  const TempFolder folder;
  const auto documents = mixed(50, 2);
  open(folder, documents);
  const std::string file = index_file(folder, ".tokens");
  std::ifstream in(file, std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(in), {}};
  for (const size_t back : {size_t{1}, size_t{20}}) {
    std::string bad = good;
    bad[bad.size() - back] = static_cast<char>(bad[bad.size() - back] ^ 16);
    std::ofstream(file, std::ios::binary) << bad;
    open(folder, documents);
    std::ifstream again(file, std::ios::binary);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(again), {}), good);
  }
}

using Pair = std::pair<int64_t, int64_t>;  // token and label
using Pairs = std::vector<Pair>;

// All pairs of a document, with the labels that a row gives them.
Pairs pairs_of(const Made& m) {
  const Expected e = expected(m);
  Pairs out;
  for (size_t k = 0; k + 1 < e.ids.size(); ++k) out.emplace_back(e.ids[k], e.loss[k + 1] != 0 ? e.ids[k + 1] : kIgnoredLabel);
  return out;
}
bool learned(const Pair& pair) { return pair.second >= 0; }

// The documents' parts in the rows of an epoch.
std::vector<Pairs> parts_of(RowSequence& rows, int64_t epoch) {
  std::vector<Pairs> parts;
  for (int64_t r = 0; r < rows.rows(epoch); ++r) {
    Row row(rows.options().seq_len);
    const auto filled = static_cast<size_t>(rows.fill({epoch, r}, row.view()));
    for (size_t j = 0; j < row.tokens.size(); ++j) {
      if (j >= filled) {
        EXPECT_EQ(row.labels[j], kIgnoredLabel);
        continue;
      }
      EXPECT_EQ(row.positions[j], static_cast<int32_t>(j) - row.doc_start[j]);
      if (static_cast<size_t>(row.doc_start[j]) == j) parts.emplace_back();
      parts.back().emplace_back(row.tokens[j], row.labels[j]);
    }
  }
  return parts;
}

class MaskedPackings : public testing::TestWithParam<Packing> {};

TEST_P(MaskedPackings, HoldEveryDocumentOnceWithItsMask) {
  for (const int64_t S : {20, 64, 5}) {
    const TempFolder folder;
    const auto documents = mixed(300, static_cast<unsigned>(S));
    RowOptions options;
    options.packing = GetParam(), options.seq_len = S, options.shuffle = true, options.eos_id = kEos;
    RowSequence rows(open(folder, documents), options);
    std::vector<Pairs> want;
    int64_t units = 0, used = 0, longer = 0, unlearned = 0;
    for (const Made& m : documents) {
      Pairs pairs = pairs_of(m);
      const auto total = std::ranges::count_if(pairs, learned);
      const bool whole = total == static_cast<int64_t>(pairs.size()), beyond = static_cast<int64_t>(pairs.size()) > S;
      const auto in_row = std::ranges::count_if(pairs.begin(), pairs.begin() + std::min<int64_t>(S, std::ssize(pairs)), learned);
      units += total;
      unlearned += !pairs.empty() && in_row == 0 ? 1 : 0;
      longer += beyond && (options.packing != Packing::best_fit || !whole) ? 1 : 0;
      if (pairs.empty() || in_row == 0 || (beyond && options.packing == Packing::first_fit)) continue;
      const bool cut = beyond && whole && options.packing == Packing::best_fit;
      used += cut ? total : in_row;
      for (size_t at = 0; at < (cut ? pairs.size() : 1); at += static_cast<size_t>(S))
        want.emplace_back(pairs.begin() + static_cast<int64_t>(at), pairs.begin() + std::min<int64_t>(std::ssize(pairs), at + S));
    }
    EXPECT_EQ(rows.use().units, units);
    EXPECT_EQ(rows.use().used, used);
    EXPECT_EQ(rows.use().longer_documents, longer);
    EXPECT_EQ(rows.use().unlearned_documents, unlearned);
    std::ranges::sort(want);
    for (const int64_t epoch : {0, 1}) {
      std::vector<Pairs> got = parts_of(rows, epoch);
      std::ranges::sort(got);
      ASSERT_EQ(got, want) << S;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, MaskedPackings, testing::Values(Packing::first_fit, Packing::best_fit, Packing::none));

TEST(MaskedRows, ConcatDocumentsKeepsTheOrder) {
  const TempFolder folder;
  const auto documents = mixed(100, 9);
  RowOptions options;
  options.packing = Packing::concat_documents, options.seq_len = 16;
  RowSequence rows(open(folder, documents), options);
  Pairs want, got;
  for (const Made& m : documents) std::ranges::copy(pairs_of(m), std::back_inserter(want));
  for (const Pairs& part : parts_of(rows, 0)) std::ranges::copy(part, std::back_inserter(got));
  EXPECT_EQ(rows.use().units, std::ranges::count_if(want, learned));
  want.resize(want.size() / 16 * 16);
  EXPECT_EQ(got, want);
  EXPECT_EQ(rows.use().used, std::ranges::count_if(want, learned));
}

TEST(MaskedRows, SayWhatIsLearned) {
  const TempFolder folder;
  const auto chat = [](size_t bytes, ByteRange range) { return Made{.text = std::string(bytes, 'x'), .learned = {range}, .chat = true}; };
  RowOptions options;
  options.packing = Packing::best_fit, options.seq_len = 20;
  // 11 pairs with 5 labels; 9 with 5; 31 of which 20 with 1 are kept; 31 without a label in the first 20.
  const std::vector<Made> documents = {chat(10, {0, 5}), chat(8, {1, 6}), chat(30, {19, 30}), chat(30, {25, 30})};
  RowSequence rows(open(folder, documents), options);
  const std::string said = rows.summary();
  EXPECT_TRUE(
      said.ends_with("; 4 of 4 documents, 11 of 28 predictions per epoch, 27.5% of the tokens have a loss, 0.0% padding, truncated "
                     "2 documents longer than a row, 1 documents without a loss within seq_len"))
      << said;
  options.packing = Packing::concat;
  EXPECT_ERROR(RowSequence(open(folder, documents), options), "each turn of a conversation ends with one; set packing = \"best_fit\"");
  options.packing = Packing::first_fit, options.seq_len = 5;
  EXPECT_ERROR(RowSequence(open(folder, documents), options), "none of the 4 training documents fits into a row with a loss");
  const TempFolder other;
  options.packing = Packing::none;
  EXPECT_ERROR(RowSequence(open(other, {chat(30, {20, 30})}), options), "has a loss within seq_len");
}

// concat without a mask: attention is cut at the ends of conversations, not of their turns.
TEST(MaskedRows, TurnsOfUnmaskedConversationsStayTogether) {
  const TempFolder folder;
  TextCodec codec = byte_codec();
  codec.encode_chat = [](std::string_view, std::span<const ByteRange>, std::vector<int32_t>& ids, std::vector<uint8_t>& loss) {
    ids = {1, kEos, 2, kEos}, loss.assign(4, 1);
  };
  const std::string path = folder.write("data/x", "contents");
  const MadeSource source(path, {{.text = "a", .chat = true}, {.text = "b", .chat = true}});
  RowOptions options;
  options.seq_len = 7, options.eos_id = kEos;
  RowSequence rows(open_token_store(source, codec, folder / "cache", 1), options);
  EXPECT_EQ(row_of(rows, {}).doc_start, (std::vector<int32_t>{0, 0, 0, 0, 4, 4, 4}));
}

}  // namespace
}  // namespace halftone::token_loss_test
