#include "halftone/train/engine_scorer.h"

#include <gtest/gtest.h>

#include <random>

#include "halftone/data/tokenizer.h"
#include "small_engine.h"

namespace halftone::engine_scorer_test {
namespace {

using eval::TokenPair;

// The requests of questions: each context with several continuations, some of one token; lengths that fill rows unevenly.
std::vector<TokenPair> questions() {
  std::mt19937 random(5);
  const auto ids = [&](size_t count) {
    std::vector<int32_t> made(count);
    for (int32_t& id : made) id = static_cast<int32_t>(random() % kSmallVocabulary);
    return made;
  };
  std::vector<TokenPair> pairs;
  for (int question = 0; question < 12; ++question) {
    const std::vector<int32_t> context = ids(question == 3 ? 1 : 17 + random() % 30);
    for (int choice = 0; choice < 3; ++choice) pairs.push_back({context, ids(question % 4 == 0 ? 1 : 1 + random() % 12)});
  }
  pairs.push_back({ids(200), ids(5)});  // is cut to the model's positions
  return pairs;
}

class EngineScorerTest : public ::testing::Test {
 protected:
  static Engine::Options options() {
    Engine::Options o = small_options();
    o.trainable = false;
    return o;
  }
  static Tokenizer tokenizer() {
    return Tokenizer::parse(
        R"({"model": {"type": "BPE", "vocab": {"<s>": 0, "a": 1, "b": 2, "c": 3}, "merges": []}, "pre_tokenizer": {"type": "ByteLevel",
            "add_prefix_space": false, "use_regex": false}, "decoder": {"type": "ByteLevel"}, "added_tokens": [{"id": 0, "content": "<s>",
            "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}]})",
        R"({"bos_token": "<s>"})");
  }
  static std::vector<eval::LogLikelihood> scores(Engine& engine, ScorerOptions o, ScorerWork* work = nullptr) {
    const Tokenizer t = tokenizer();
    EngineScorer scorer(engine, t, std::move(o));
    const std::vector<eval::LogLikelihood> all = scorer.score(questions(), true);
    if (work != nullptr) *work = scorer.work();
    return all;
  }
  // Every request as a row of its own, by the loss that validation computes.
  static double alone(Engine& engine, TokenPair pair) {
    pair = eval::cut(std::move(pair), kSmallPositions);
    std::vector<int64_t> ids(pair.context.begin(), pair.context.end());
    ids.insert(ids.end(), pair.continuation.begin(), pair.continuation.end());
    const auto count = static_cast<int64_t>(ids.size());
    const at::Tensor row = at::tensor(ids, at::kLong).view({1, count});
    MicroBatch b;
    b.input.tokens = row.narrow(1, 0, count - 1).contiguous(), b.labels = row.narrow(1, 1, count - 1).clone();
    b.labels.narrow(1, 0, static_cast<int64_t>(pair.context.size()) - 1).fill_(-100);
    return -engine.evaluate(b);
  }
  static void expect_same(const std::string& model, const std::vector<std::string>& more) {
    std::vector<std::string> all = {"--quantize.scheme=none", "--training.mixed_precision_param=float32"};
    all.insert(all.end(), more.begin(), more.end());
    Engine engine(small_config(all), options());
    engine.initialize();
    ScorerWork shared, separate;
    ScorerOptions apart;
    apart.share_prefixes = false, apart.batch_tokens = 1;
    const auto a = scores(engine, {}, &shared), b = scores(engine, apart, &separate);
    const std::vector<TokenPair> pairs = questions();
    ASSERT_EQ(a.size(), pairs.size());
    for (size_t i = 0; i < pairs.size(); ++i) {
      const double one = alone(engine, pairs[i]);
      EXPECT_NEAR(a[i].value, one, 2e-5 * std::abs(one)) << model << " " << i;
      EXPECT_NEAR(b[i].value, one, 2e-5 * std::abs(one)) << model << " " << i;
      EXPECT_EQ(a[i].greedy, b[i].greedy);
    }
    EXPECT_EQ(shared.asked, separate.asked);
    EXPECT_EQ(separate.computed, separate.asked);
    EXPECT_LT(2 * shared.computed, separate.computed);
  }
};

TEST_F(EngineScorerTest, ResultsDoNotDependOnPacking) { expect_same("llama3", {}); }

TEST_F(EngineScorerTest, WindowsAndSinks) {
  expect_same("window",
              {"--model.name=mistral",
               R"(--model.overrides={"dim":64,"n_layers":2,"n_heads":2,"n_kv_heads":1,"ffn_dim":192,"vocab_size":256,"window":20})"});
  expect_same("sinks", {"--model.name=gpt_oss", R"(--model.overrides={"dim":64,"n_layers":2,"n_heads":2,"n_kv_heads":1,"vocab_size":256,)"
                                                R"("head_dim":32,"num_experts":4,"experts_per_token":2,"expert_ffn_dim":64,"window":9})"});
}

TEST_F(EngineScorerTest, LatentAttention) {
  expect_same("latent", {"--model.name=deepseek_v3",
                         R"(--model.overrides={"dim":64,"n_layers":2,"n_heads":2,"n_kv_heads":2,"ffn_dim":96,"vocab_size":256,)"
                         R"("num_experts":4,"experts_per_token":2,"expert_ffn_dim":32,"q_lora_rank":0,"kv_lora_rank":32,)"
                         R"("qk_nope_head_dim":16,"qk_rope_head_dim":16,"v_head_dim":16})"});
}

TEST_F(EngineScorerTest, GreedyIsTheLikeliestToken) {
  Engine engine(small_config({"--quantize.scheme=none", "--training.mixed_precision_param=float32"}), options());
  engine.initialize();
  const Tokenizer t = tokenizer();
  EngineScorer scorer(engine, t, {});
  std::vector<TokenPair> pairs;
  for (int32_t id = 0; id < kSmallVocabulary; ++id) pairs.push_back({{1, 2, 3}, {id}});
  const std::vector<eval::LogLikelihood> all = scorer.score(pairs, true);
  double sum = 0, best = -1e9, greedy = 0;
  int count = 0;
  for (const eval::LogLikelihood& a : all) {
    sum += std::exp(a.value), best = std::max(best, a.value), count += a.greedy;
    if (a.greedy) greedy = a.value;
  }
  EXPECT_NEAR(sum, 1, 1e-5);
  EXPECT_EQ(count, 1);
  EXPECT_EQ(greedy, best);
}

}  // namespace
}  // namespace halftone::engine_scorer_test
