#include "halftone/data/pretokenize.h"

#include <gtest/gtest.h>

#include "data/tokenizer_text.h"
#include "halftone/base/error.h"

namespace halftone {
namespace {

Pretokenizer known(SplitPattern pattern) { return Pretokenizer({{std::string(pattern_text(pattern))}}); }

std::vector<std::string> pieces(const Pretokenizer& pretokenizer, std::string_view text) {
  Pretokenizer::Scratch scratch;
  std::vector<Range> ranges;
  pretokenizer.split(text, scratch, ranges);
  std::vector<std::string> out;
  for (const Range& r : ranges) out.emplace_back(text.substr(r.begin, r.end - r.begin));
  return out;
}

class KnownPattern : public testing::TestWithParam<SplitPattern> {};
INSTANTIATE_TEST_SUITE_P(All, KnownPattern, testing::Values(SplitPattern::gpt2, SplitPattern::llama3, SplitPattern::qwen2));

TEST_P(KnownPattern, HandWrittenPathCutsLikePcre2) {
  const Pretokenizer pretokenizer = known(GetParam());
  ASSERT_EQ(pretokenizer.pattern(), GetParam());
  Pretokenizer::Scratch scratch;
  std::mt19937 rng(7);
  for (int round = 0; round < 30000; ++round) {
    const std::string text = random_text(rng, rng() % 24, round % 2 == 1);
    std::vector<Range> ours, theirs;
    pretokenizer.split(text, scratch, ours);
    pretokenizer.split_by_pcre2(text, scratch, theirs);
    ASSERT_EQ(ours.size(), theirs.size()) << testing::PrintToString(text);
    for (size_t i = 0; i < ours.size(); ++i) {
      ASSERT_EQ(ours[i].begin, theirs[i].begin) << testing::PrintToString(text);
      ASSERT_EQ(ours[i].end, theirs[i].end) << testing::PrintToString(text);
    }
  }
}

TEST_P(KnownPattern, PartsHaveThePiecesOfTheWhole) {
  const Pretokenizer pretokenizer = known(GetParam());
  std::mt19937 rng(9);
  int cuts = 0;
  for (int round = 0; round < 100000; ++round) {
    const std::string text = random_text(rng, 2 + rng() % 8, round % 2 == 1);
    if (text.size() < 2) continue;
    const size_t cut = pretokenizer.next_cut(text, 1 + rng() % (text.size() - 1));
    if (cut == text.size()) continue;
    ++cuts;
    std::vector<std::string> parts = pieces(pretokenizer, std::string_view(text).substr(0, cut));
    const std::vector<std::string> second = pieces(pretokenizer, std::string_view(text).substr(cut));
    parts.insert(parts.end(), second.begin(), second.end());
    ASSERT_EQ(parts, pieces(pretokenizer, text)) << testing::PrintToString(text) << " at " << cut;
  }
  EXPECT_GT(cuts, 1000);
  EXPECT_EQ(Pretokenizer({{"a|b"}}).next_cut("a b", 1), 3u);
}

TEST_P(KnownPattern, EveryPairAndTripleOfAsciiCutsLikePcre2) {
  const Pretokenizer pretokenizer = known(GetParam());
  Pretokenizer::Scratch scratch;
  std::vector<Range> ours, theirs;
  const std::string kinds = "a'sSlLrev09 \t\n\r.(\x01";
  auto same = [&](std::string_view text) {
    ours.clear(), theirs.clear();
    pretokenizer.split(text, scratch, ours);
    pretokenizer.split_by_pcre2(text, scratch, theirs);
    return std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end(),
                      [](const Range& a, const Range& b) { return a.begin == b.begin && a.end == b.end; });
  };
  for (int a = 0; a < 128; ++a) {
    for (int b = 0; b < 128; ++b) {
      const char text[] = {static_cast<char>(a), static_cast<char>(b)};
      ASSERT_TRUE(same({text, 2})) << a << " " << b;
    }
  }
  for (const char a : kinds) {
    for (const char b : kinds) {
      for (const char c : kinds) {
        for (const char d : kinds) {
          const char text[] = {a, b, c, d};
          ASSERT_TRUE(same({text, 4})) << testing::PrintToString(std::string(text, 4));
        }
      }
    }
  }
}

TEST(Pretokenize, PatternsDifferInDigitsAndLineEnds) {
  using Pieces = std::vector<std::string>;
  const std::string_view text = "It'S 12345\n\n  if x:\n";
  EXPECT_EQ(pieces(known(SplitPattern::gpt2), text), (Pieces{"It", "'", "S", " 12345", "\n\n ", " if", " x", ":", "\n"}));
  EXPECT_EQ(pieces(known(SplitPattern::llama3), text), (Pieces{"It", "'S", " ", "123", "45", "\n\n", " ", " if", " x", ":\n"}));
  EXPECT_EQ(pieces(known(SplitPattern::qwen2), text), (Pieces{"It", "'S", " ", "1", "2", "3", "4", "5", "\n\n", " ", " if", " x", ":\n"}));
}

TEST(Pretokenize, StepsFollowEachOther) {
  using Pieces = std::vector<std::string>;
  using enum SplitBehavior;
  EXPECT_EQ(pieces(Pretokenizer({{"\\s", false, removed}, {"[0-9]", false, contiguous}}), "ab12 3c"), (Pieces{"ab", "12", "3", "c"}));
  EXPECT_EQ(pieces(Pretokenizer({{"a.", true}}), "xa.ab"), (Pieces{"x", "a.", "ab"}));
  EXPECT_EQ(pieces(Pretokenizer({{"[a-z]+", false, removed, true}}), "ab12cd!"), (Pieces{"ab", "cd"}));
  EXPECT_EQ(pieces(Pretokenizer({{"(?=b)"}}), "abéb"), (Pieces{"a", "bé", "b"}));
  EXPECT_EQ(pieces(Pretokenizer({}), "ab"), (Pieces{"ab"}));
}

TEST(Pretokenize, LongRunsNeedNoStack) {
  const Pretokenizer pretokenizer = known(SplitPattern::llama3);
  EXPECT_EQ(pieces(pretokenizer, std::string(3 << 20, ' ') + "é").size(), 2u);
  EXPECT_EQ(pieces(pretokenizer, std::string(1 << 20, 'x') + "é").size(), 1u);
}

TEST(Pretokenize, PatternsAreThoseOfRuby) {
  using Pieces = std::vector<std::string>;
  const auto cut = [](const char* pattern, const char* text) {
    return pieces(Pretokenizer({{pattern, false, SplitBehavior::removed, true}}), text);
  };
  EXPECT_EQ(cut("\\p{N}{1,3}+", "1234567 8"), (Pieces{"1234567", "8"}));
  EXPECT_EQ(cut("(?:a|b{2}){2}+", "abbaabb"), (Pieces{"abbaa"}));
  EXPECT_EQ(cut("^l", "ly\nlx"), (Pieces{"l", "l"}));
  EXPECT_EQ(cut("[a[bc]]+", "xabcx"), (Pieces{"abc"}));
  EXPECT_EQ(cut("\\h+", "ab 1g"), (Pieces{"ab", "1"}));
  EXPECT_EQ(cut("\\w+", "e\u0301a \u00bd"), (Pieces{"e\u0301a", "\u00bd"}));
  EXPECT_EQ(cut("l{,2}", "lll"), (Pieces{"ll", "l"}));
}

TEST(Pretokenize, BadPatternsAreErrors) {
  EXPECT_THROW(Pretokenizer({{"(a"}}), Error);
  EXPECT_THROW(Pretokenizer({{"\\C"}}), Error);
  EXPECT_THROW(split_pattern_by_name("gpt5"), Error);
  // Constructs that the package's engine interprets differently, or that only it supports.
  for (const char* pattern :
       {"[a-z&&[^e]]", "[[:alpha:]]", "[a[^b]]", "\\bx", "\\Qx\\E", "\\pL", "[\\W]", "(?x)a b", "a(?i)b|c", "(?~a)", "(*FAIL)",
        "\\xC3",       "{2}",         "\\0",     "\\p",  "\\",      "[",    "[\\",   "(?",      "a{2",      "\\u00"}) {
    try {
      Pretokenizer({{pattern}});
      EXPECT_STREQ(pattern, "a{2");
    } catch (const Error& e) {
      EXPECT_EQ(std::string_view(e.what()).find('\n'), std::string_view::npos) << pattern;
      EXPECT_NE(std::string_view(e.what()).find("split pattern"), std::string_view::npos) << pattern << ": " << e.what();
    }
  }
  EXPECT_THROW(pieces(Pretokenizer({{"(a|aa)+$"}}), std::string(5000, 'a') + "b"), Error);
}

}  // namespace
}  // namespace halftone
