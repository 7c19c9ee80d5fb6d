#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <thread>

#include "data/tokenizer_text.h"
#include "halftone/base/error.h"
#include "halftone/data/bpe_trainer.h"
#include "halftone/data/bpe_word_count.h"
#include "halftone/data/tokenizer_json.h"

namespace halftone {
namespace {

using Ids = std::vector<int32_t>;

std::function<bool(std::string&)> documents(std::vector<std::string> texts) {
  return [texts = std::move(texts), next = size_t{0}](std::string& text) mutable {
    if (next == texts.size()) return false;
    text = texts[next++];
    return true;
  };
}

std::vector<std::string> corpus() {
  std::mt19937 rng(11);
  std::vector<std::string> texts;
  for (int i = 0; i < 300; ++i) texts.push_back(random_text(rng, 60, i % 3 == 0));
  texts.push_back("aaaaaaaaaa aaaa aaa \xff\xfe broken \xc3");
  return texts;
}

// By definition: merges the leftmost occurrence of the pair with the smallest rank until none is left.
Ids merged_by_definition(Ids ids, const std::vector<BpeMerge>& merges) {
  std::map<std::pair<int32_t, int32_t>, size_t> rank;
  for (size_t i = 0; i < merges.size(); ++i) rank[{merges[i].left, merges[i].right}] = i;
  while (true) {
    size_t best = SIZE_MAX, at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = rank.find({ids[i], ids[i + 1]});
      if (found != rank.end() && found->second < best) best = found->second, at = i;
    }
    if (best == SIZE_MAX) return ids;
    ids[at] = merges[best].result;
    ids.erase(ids.begin() + at + 1);
  }
}

TEST(BpeModel, MergesLikeTheDefinition) {
  std::mt19937 rng(5);
  std::vector<std::string> tokens = {"a", "b", "c"};
  std::vector<BpeMerge> merges;
  for (int i = 0; i < 60; ++i) {  // random merges, so that ranks and ids are in different orders
    const auto left = static_cast<int32_t>(rng() % tokens.size()), right = static_cast<int32_t>(rng() % tokens.size());
    if (tokens[left].size() + tokens[right].size() > 12) continue;
    const std::string joined = tokens[left] + tokens[right];
    const auto known = std::find(tokens.begin(), tokens.end(), joined);
    merges.push_back({left, right, static_cast<int32_t>(known - tokens.begin())});
    if (known == tokens.end()) tokens.push_back(joined);
  }
  std::shuffle(merges.begin(), merges.end(), rng);
  const BpeModel model(StringTable(tokens), merges, {});
  BpeModel::Scratch scratch;
  for (int round = 0; round < 4000; ++round) {  // lengths for both caches, the scan and the heap; many pieces repeat
    const size_t length = 1 + rng() % (round % 50 == 0 ? 300 : round % 2 == 0 ? 8 : 70);
    std::string piece;
    Ids bytes;
    for (size_t i = 0; i < length; ++i) {
      bytes.push_back(static_cast<int32_t>(rng() % 3));
      piece += tokens[bytes.back()];
    }
    Ids ids = {-7};
    model.encode_piece(piece, piece.data() + piece.size(), scratch, ids);
    Ids expected = merged_by_definition(bytes, merges);
    expected.insert(expected.begin(), -7);
    ASSERT_EQ(ids, expected) << piece;
  }
}

TEST(BpeModel, UnknownBytesAndIgnoredMerges) {
  const std::vector<std::string> tokens = {"a", "b", "ab", "?", "abb"};
  const std::vector<BpeMerge> merges = {{0, 1, 2}};
  BpeModel::Scratch first, second, third, fourth;
  auto ids = [&](const BpeModel& model, std::string_view piece, BpeModel::Scratch& scratch) {
    Ids out;
    model.encode_piece(piece, piece.data() + piece.size(), scratch, out);
    return out;
  };
  EXPECT_EQ(ids(BpeModel(StringTable(tokens), merges, {}), "axxb", first), (Ids{2}));  // left out before merging
  EXPECT_EQ(ids(BpeModel(StringTable(tokens), merges, {.unknown = 3}), "axxb", second), (Ids{0, 3, 3, 1}));
  EXPECT_EQ(ids(BpeModel(StringTable(tokens), merges, {.unknown = 3, .fuse_unknown = true}), "axxb", third), (Ids{0, 3, 1}));
  EXPECT_EQ(ids(BpeModel(StringTable(tokens), merges, {.ignore_merges = true}), "abb", fourth), (Ids{4}));
}

// The trainer by definition, over words with their counts.
std::vector<BpeMerge> trained_by_definition(const std::vector<WordCount>& words, int merges) {
  std::vector<std::pair<Ids, int64_t>> split;
  for (const auto& [text, count] : words) {
    Ids ids;
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
    split.emplace_back(ids, count);
  }
  std::vector<BpeMerge> out;
  for (int m = 0; m < merges; ++m) {
    std::map<std::pair<int32_t, int32_t>, int64_t> counts;  // sorted: the first of equal counts is the smallest pair
    for (const auto& [ids, count] : split) {
      for (size_t i = 0; i + 1 < ids.size(); ++i) counts[{ids[i], ids[i + 1]}] += count;
    }
    const auto best = std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    if (best == counts.end() || best->second < 2) break;
    const auto [left, right] = best->first;
    out.push_back({left, right, 256 + m});
    for (auto& [ids, count] : split) {
      for (size_t i = 0; i + 1 < ids.size(); ++i) {
        if (ids[i] != left || ids[i + 1] != right) continue;
        ids[i] = 256 + m;
        ids.erase(ids.begin() + i + 1);
      }
    }
  }
  return out;
}

TEST(BpeTrainer, LearnsLikeTheDefinition) {
  const Pretokenizer pretokenizer({{std::string(pattern_text(SplitPattern::llama3))}});
  const std::vector<BpeMerge> expected = trained_by_definition(count_words(documents(corpus()), pretokenizer, 1, {}), 250);
  ASSERT_EQ(expected.size(), 250u);
  BpeTrainerOptions options;
  options.vocab_size = 256 + 250 + 2;
  options.threads = 2;
  const Tokenizer tokenizer = train_bpe(documents(corpus()), options);
  const TokenizerSpec spec = parse_tokenizer_json(tokenizer.tokenizer_json(), tokenizer.tokenizer_config_json());
  ASSERT_EQ(spec.merges.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(spec.merges[i].left, expected[i].left) << i;
    ASSERT_EQ(spec.merges[i].right, expected[i].right) << i;
    ASSERT_EQ(spec.merges[i].result, expected[i].result) << i;
  }
}

TEST(BpeTrainer, ThreadsAndOrderDoNotMatter) {
  std::vector<std::string> texts = corpus();
  BpeTrainerOptions options;
  options.vocab_size = 600;
  options.threads = 1;
  const Tokenizer one = train_bpe(documents(texts), options);
  std::reverse(texts.begin(), texts.end());
  options.threads = 4;
  EXPECT_EQ(one.tokenizer_json(), train_bpe(documents(texts), options).tokenizer_json());
  EXPECT_EQ(one.vocab_size(), 600);
  EXPECT_EQ(one.bos_id(), 598);
  EXPECT_EQ(one.eos_id(), 599);
  for (const std::string& text : texts) EXPECT_EQ(one.decode(one.encode(text)), text);
}

TEST(BpeTrainer, SeveralThreadsEncodeAtOnce) {
  BpeTrainerOptions options;
  options.vocab_size = 700;
  const std::vector<std::string> texts = corpus();
  const Tokenizer tokenizer = train_bpe(documents(texts), options);
  std::vector<Ids> expected;
  for (const std::string& text : texts) expected.push_back(tokenizer.encode(text));
  std::vector<int> wrong(4);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (size_t i = 0; i < texts.size(); ++i)
          wrong[t] += tokenizer.encode(texts[(i * 7 + t) % texts.size()]) != expected[(i * 7 + t) % texts.size()];
      });
    }
  }
  EXPECT_EQ(wrong, std::vector<int>(4));
}

TEST(BpeTrainer, StopsWhenNothingIsLeftToMerge) {
  BpeTrainerOptions options;
  options.special_tokens = {"<x>"};
  const Tokenizer tokenizer = train_bpe(documents({"abab abab", "ab"}), options);
  EXPECT_EQ(tokenizer.vocab_size(), 256 + 2 + 1);  // "ab", "abab", the special token
  EXPECT_EQ(tokenizer.token_id("<x>"), 258);
  EXPECT_EQ(tokenizer.bos_id(), std::nullopt);
}

// Text between special tokens counts, as when documents are encoded.
TEST(BpeTrainer, LearnsNothingFromSpecialTokensInText) {
  const std::vector<std::string> apart = {"abab abab", "ab", "", "abab"};
  BpeTrainerOptions options;
  const Tokenizer expected = train_bpe(documents(apart), options);
  const std::vector<std::string> together = {"abab abab<|end_of_text|>ab<|end_of_text|>", "<|begin_of_text|>abab"};
  EXPECT_NE(train_bpe(documents(together), options).vocab_size(), expected.vocab_size()) << "letters are text";
  options.special_tokens_in_text = true;
  EXPECT_EQ(train_bpe(documents(together), options).tokenizer_json(), expected.tokenizer_json());
}

TEST(BpeTrainer, BadOptionsAreErrors) {
  BpeTrainerOptions options;
  EXPECT_THROW(train_bpe(documents({}), options), Error);
  EXPECT_THROW(train_bpe(documents({"", "a\nb\nc"}), options), Error) << "pieces of one byte teach nothing";
  options.vocab_size = 257;
  EXPECT_THROW(train_bpe(documents({"abab"}), options), Error);
  options.vocab_size = 4096;
  options.special_tokens = {"<x>", "<x>"};
  EXPECT_THROW(train_bpe(documents({"abab"}), options), Error);
  options.special_tokens = {"\xff\xff"};
  EXPECT_THROW(train_bpe(documents({"abab"}), options), Error);
  options.special_tokens = {"<x>"}, options.eos_token = "<y>";
  EXPECT_THROW(train_bpe([](std::string&) -> bool { throw std::logic_error("documents are read before options are checked"); }, options),
               Error);
  options.eos_token = "<|end_of_text|>";
  options.special_tokens = {"abab"};
  EXPECT_THROW(train_bpe(documents({"abab abab abab"}), options), Error);
  options.special_tokens = {};
  options.pattern = "none";
  EXPECT_THROW(train_bpe(documents({"abab"}), options), Error);
  options.pattern = "gpt2";
  EXPECT_THROW(train_bpe([](std::string&) -> bool { throw Error("disk"); }, options), Error);
}

}  // namespace
}  // namespace halftone
