// A tokenizer in GGUF's terms: the name of its split pattern, tokens, types and merges.
#include "halftone/data/tokenizer_gguf.h"

#include <gtest/gtest.h>

#include "halftone/base/error.h"

namespace halftone::tokenizer_gguf_test {
namespace {

// Tokens " ", "a", " a", then BOS, one that is no special token, a gap, EOS.
TokenizerSpec small(SplitPattern pattern = SplitPattern::gpt2) {
  TokenizerSpec s;
  s.text_tokens = {" ", "a", " a", "", "", "", ""};
  s.tokens = {" ", "a", " a", "<s>", "two words", "", "</s>"};
  s.merges = {{0, 1, 2}};
  s.splits = {{std::string(pattern_text(pattern))}};
  s.added = {
      {.content = "<s>", .id = 3, .special = true}, {.content = "two words", .id = 4}, {.content = "</s>", .id = 6, .special = true}};
  s.bos_token = "<s>", s.eos_token = "</s>";
  return s;
}

void expect_refused(const TokenizerSpec& spec, const std::string& part, int64_t vocab = 8) {
  try {
    gguf_tokenizer(spec, vocab);
    ADD_FAILURE() << part;
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
  }
}

TEST(TokenizerGguf, ListsTokensTypesAndMerges) {
  const GgufTokenizer t = gguf_tokenizer(small(), 8);
  EXPECT_EQ(t.model, "gpt2");
  EXPECT_EQ(t.pre, "gpt-2");
  EXPECT_EQ(t.tokens, (std::vector<std::string>{"\u0120", "a", "\u0120a", "<s>", "two words", "[PAD5]", "</s>", "[PAD7]"}));
  EXPECT_EQ(t.types, (std::vector<int32_t>{1, 1, 1, 3, 4, 5, 3, 5}));
  EXPECT_EQ(t.merges, (std::vector<std::string>{"\u0120 a"}));
  EXPECT_FALSE(t.add_bos || t.add_eos);
  TokenizerSpec both = small();
  both.prefix = {3}, both.suffix = {6};
  EXPECT_TRUE(gguf_tokenizer(both, 7).add_bos && gguf_tokenizer(both, 7).add_eos);
}

TEST(TokenizerGguf, FindsTheNameOfTheSplitPattern) {
  EXPECT_EQ(gguf_tokenizer(small(SplitPattern::qwen2), 8).pre, "qwen2");
  TokenizerSpec llama = small(SplitPattern::llama3);
  EXPECT_EQ(gguf_tokenizer(llama, 8).pre, "smaug-bpe");  // the same pattern; merges decide about pieces that are tokens
  llama.options.ignore_merges = true;
  EXPECT_EQ(gguf_tokenizer(llama, 8).pre, "llama-bpe");
  TokenizerSpec digits = small();
  digits.splits.insert(digits.splits.begin(), SplitStep{R"(\p{N})"});
  EXPECT_EQ(gguf_tokenizer(digits, 8).pre, "smollm");
  digits.splits[0].behavior = SplitBehavior::contiguous;
  expect_refused(digits, "that of this tokenizer is none of gpt-2, llama-bpe");
  TokenizerSpec inverted = small();
  inverted.splits[0].behavior = SplitBehavior::removed, inverted.splits[0].invert = true;  // keeps the matches
  EXPECT_EQ(gguf_tokenizer(inverted, 8).pre, "gpt-2");
}

TEST(TokenizerGguf, RefusesWhatWouldTokeniseDifferently) {
  TokenizerSpec s = small();
  s.splits.clear();
  expect_refused(s, "it has none");
  s = small(), s.add_prefix_space = true;
  expect_refused(s, "prefixes no blank");
  s = small(), s.model = TokenizerModel::word_level;
  expect_refused(s, "this one is word level");
  s = small(), s.prefix = {3, 4};
  expect_refused(s, "adds the ids 3, 4");
  s = small(), s.suffix = {3};
  expect_refused(s, "GGUF can add EOS behind alone");
  s = small(), s.options.ignore_merges = true;
  expect_refused(s, "none of gpt-2");
  s = small(), s.added[1].lstrip = true;
  expect_refused(s, "take no white space with them");
  expect_refused(small(), "7 entries, the model a vocabulary of 6", 6);
}

}  // namespace
}  // namespace halftone::tokenizer_gguf_test
