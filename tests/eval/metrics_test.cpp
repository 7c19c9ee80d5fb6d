#include "halftone/eval/metrics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "halftone/base/error.h"
#include "halftone/eval/run.h"

namespace halftone::eval_metrics_test {
namespace {

using namespace eval;

TEST(EvalMetrics, ChoicesByLength) {
  Task t;
  t.metrics = {"acc", "acc_norm", "acc_bytes"};
  Question q;
  q.choices = {"a", "bbbb", "\u00e9\u00e9\u00e9\u00e9\u00e9"}, q.gold = 0;
  const auto values = [&](const std::vector<LogLikelihood>& answers) {
    std::vector<double> all;
    for (const Sample& s : choice_metrics(t, q, answers)) all.push_back(s.value);
    return all;
  };
  // Divided by 1, 4, 5 characters and 1, 4, 10 bytes.
  EXPECT_EQ(values({{-1, false}, {-2, false}, {-6, false}}), (std::vector<double>{1, 0, 0}));
  q.gold = 1;
  EXPECT_EQ(values({{-1, false}, {-2, false}, {-4, false}}), (std::vector<double>{0, 1, 0}));  // bytes: 0.5 and 0.4
  q.gold = 0;
  EXPECT_EQ(values({{-2, false}, {-2, false}, {-20, false}}), (std::vector<double>{1, 0, 0}));  // the first of equal ones
}

TEST(EvalMetrics, Aggregates) {
  const std::vector<Sample> accuracy = {{1}, {0}, {0}, {1}, {1}};
  const Aggregate mean = aggregate("acc", accuracy, 0);
  EXPECT_DOUBLE_EQ(mean.value, 0.6);
  EXPECT_DOUBLE_EQ(*mean.error, std::sqrt(0.3) / std::sqrt(5));
  EXPECT_FALSE(aggregate("acc", {{1}}, 0).error);
  const std::vector<Sample> texts = {{-10, 4}, {-30, 12}};
  EXPECT_DOUBLE_EQ(aggregate("word_perplexity", texts, 100).value, std::exp(40.0 / 16));
  EXPECT_DOUBLE_EQ(aggregate("bits_per_byte", texts, 100).value, 2.5 / std::log(2.0));
  EXPECT_FALSE(aggregate("bits_per_byte", texts, 100).error);
  EXPECT_THROW(aggregate("acc", {}, 0), Error);
}

// bootstrap_stderr(perplexity, xs, 2000) and pooled_sample_stderr of lm-evaluation-harness 0.4.13.
TEST(EvalMetrics, ErrorsOfTheHarness) {
  const Aggregate a = aggregate("perplexity", {{-1.5}, {-2.25}, {-0.5}, {-3.0}, {-0.75}}, 2000);
  EXPECT_DOUBLE_EQ(a.value, std::exp(1.6));
  EXPECT_NEAR(*a.error, 2.3851180781680377, 1e-12);
  EXPECT_FALSE(aggregate("perplexity", {{-1.5}, {-2.25}}, 0).error);
  const Aggregate p = pooled({{{0.2, 0.1}, 10}, {{0.6, 0.05}, 30}});
  EXPECT_DOUBLE_EQ(p.value, 0.5);
  EXPECT_NEAR(*p.error, 0.04497806482930845, 1e-15);
}

TEST(EvalMetrics, ExtractsAnswers) {
  const Task gsm8k = find_tasks({"gsm8k"})[0];
  const std::string text = "She sells 9 * 2 = $18.\n#### 1,018\n\nQ";
  EXPECT_EQ(filtered(gsm8k.filters[0], text), "1,018");
  EXPECT_EQ(filtered(gsm8k.filters[1], "It is 7, then $18."), "$18.");
  EXPECT_EQ(filtered(gsm8k.filters[0], "no answer"), "[invalid]");
  EXPECT_EQ(exact_match(gsm8k, "Words. 5*4=20\n#### 1018", "1,018"), 1);
  EXPECT_EQ(exact_match(gsm8k, "#### 18", "$18."), 1);
  EXPECT_EQ(exact_match(gsm8k, "#### 18", "[invalid]"), 0);
}

TEST(EvalTokens, RollingWindows) {
  using Ids = std::vector<int32_t>;
  const Ids ids = {1, 2, 3, 4, 5, 6, 7};
  const auto windows = rolling_windows(ids, 0, 3);
  ASSERT_EQ(windows.size(), 3);
  EXPECT_EQ(windows[0].context, (Ids{0}));
  EXPECT_EQ(windows[0].continuation, (Ids{1, 2, 3}));
  EXPECT_EQ(windows[1].context, (Ids{3}));
  EXPECT_EQ(windows[1].continuation, (Ids{4, 5, 6}));
  EXPECT_EQ(windows[2].context, (Ids{4, 5, 6}));  // the last one sees as much as fits
  EXPECT_EQ(windows[2].continuation, (Ids{7}));
  EXPECT_EQ(rolling_windows(ids, 0, 10).size(), 1);
  EXPECT_TRUE(rolling_windows({}, 0, 3).empty());
}

TEST(EvalTokens, CutsFromTheLeft) {
  const TokenPair pair = cut({{1, 2, 3, 4}, {5, 6}}, 3);
  EXPECT_EQ(pair.context, (std::vector<int32_t>{3, 4}));  // 3 tokens are read, the last one is only judged
  EXPECT_EQ(cut({{1, 2}, {5, 6}}, 3).context.size(), 2);
  EXPECT_THROW(cut({{1}, {2, 3, 4, 5}}, 3), Error);
}

// Words of one character and merges: "a b" is [a, " b"], and "a " alone would end in a token that "a b" lacks.
TEST(EvalTokens, SplitsLikeTheHarness) {
  const Tokenizer t = Tokenizer::parse(
      R"({"model": {"type": "BPE", "vocab": {"<s>": 0, "a": 1, "b": 2, "Ġ": 3, "Ġb": 4, "ab": 5}, "merges": ["Ġ b", "a b"]},
          "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}, "decoder": {"type": "ByteLevel"},
          "added_tokens": [{"id": 0, "content": "<s>", "special": true, "single_word": false, "lstrip": false, "rstrip": false,
                            "normalized": false}]})",
      R"({"bos_token": "<s>"})");
  using Ids = std::vector<int32_t>;
  const auto split = [&](const char* context, const char* continuation) {
    const TokenPair p = split_tokens(t, {context, continuation});
    return std::pair(p.context, p.continuation);
  };
  EXPECT_EQ(split("a", " b"), std::pair(Ids{1}, Ids{4}));
  EXPECT_EQ(split("a ", "b"), std::pair(Ids{1}, Ids{4}));   // the blank belongs to the continuation
  EXPECT_EQ(split("", "ab"), std::pair(Ids{0}, Ids{5}));    // behind the prefix token
  EXPECT_EQ(split("", "<s>a"), std::pair(Ids{0}, Ids{1}));  // its own prefix token
  EXPECT_THROW(split_tokens(t, {"a", ""}), Error);
}

}  // namespace
}  // namespace halftone::eval_metrics_test
