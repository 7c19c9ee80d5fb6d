#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "halftone/base/error.h"
#include "halftone/ops/recompute_results.h"
#include "ops/attention_reference.h"

namespace halftone {
namespace {

struct Norms {
  Weight q, k;
  Norms(AttentionArgs& a, at::ScalarType type) : q(make(a.head_dim, type)), k(make(a.head_dim, type)) {
    a.q_norm = &q, a.k_norm = &k, a.norm_eps = 1e-3;
  }
  static Weight make(int64_t d, at::ScalarType type) { return make_weight((at::rand({d}) + 0.5).to(test_device(), type)); }
};

struct Whole {
  int64_t head_dim, rotated, window;
  bool documents, halves, norm, sinks;
};

std::vector<Whole> wholes() {
  std::vector<Whole> all;
  for (int i = 0; i < 8; ++i) {
    const bool halves = i & 1, norm = i & 2, sinks = i & 4;
    for (const bool documents : {false, true}) {
      all.push_back({64, 64, 0, documents, halves, norm, sinks}), all.push_back({80, 32, 40, documents, halves, norm, sinks});
    }
    all.push_back({128, 128, 33, false, halves, norm, sinks}), all.push_back({16, 12, 500, true, halves, norm, sinks});
  }
  return all;
}

// float32: the CPU kernels, math on a GPU. bfloat16: the other CPU kernels, flash-2 and cuDNN.
using AttentionOfModels = OnDeviceWith<at::ScalarType>;
INSTANTIATE_TEST_SUITE_P(Device, AttentionOfModels,
                         testing::Combine(testing::Values(std::string("cpu"), std::string("cuda")),
                                          testing::Values(at::kFloat, at::kBFloat16)),
                         [](const auto& info) {
                           return fmt::format("{}_{}", std::get<0>(info.param), c10::toString(std::get<1>(info.param)));
                         });

TEST_P(AttentionOfModels, EqualsTheDefinitionInFp64) {
  const bool exact = param() == at::kFloat;
  for (const Whole& c : wholes()) {
    SCOPED_TRACE(fmt::format("head {}, rotated {}, window {}, documents {}, halves {}, norm {}, sinks {}", c.head_dim, c.rotated, c.window,
                             c.documents, c.halves, c.norm, c.sinks));
    at::manual_seed(21);
    AttentionArgs a = args_of(2, 150, 7, 1, c.head_dim, c.documents, c.window, c.rotated);
    a.rotate_halves = c.halves;
    AttentionArgs plain = a;
    Norms norms(a, param());
    if (!c.norm) a = plain;
    Weight sinks = make_sinks(7, param());
    if (c.sinks) a.sinks = &sinks;
    const at::Tensor qkv = random(300, 9 * c.head_dim, param()), d_out = random(300, 7 * c.head_dim, param());
    const Result expected = reference(qkv, d_out, a, true), found = run_op(qkv, d_out, a);
    EXPECT_LT(relative(expected.out, found.out), exact ? 1e-5 : 6e-3);
    EXPECT_LT(relative(expected.d_qkv, found.d_qkv), exact ? 1e-5 : 1.2e-2);
    if (c.sinks) {
      EXPECT_LT(relative(expected.d_sinks, sinks.grad), exact ? 1e-5 : 2e-2);
    }
    if (!c.norm) continue;
    EXPECT_LT(relative(expected.d_q_norm, norms.q.grad), exact ? 1e-5 : 2e-2);
    EXPECT_LT(relative(expected.d_k_norm, norms.k.grad), exact ? 1e-5 : 2e-2);
  }
}

// Fewer tokens than a tile; and rows of one token, whose softmax covers its own key and the sink.
TEST_P(AttentionOfModels, SinksOfShortRows) {
  const bool exact = param() == at::kFloat;
  for (const int64_t seq : {1, 17, 150}) {
    for (const bool documents : {false, true}) {
      for (const int64_t window : {0, 9}) {
        SCOPED_TRACE(fmt::format("{} tokens, documents {}, window {}", seq, documents, window));
        at::manual_seed(25);
        AttentionArgs a = args_of(2, seq, 14, 2, 80, documents, window);
        Weight sinks = make_sinks(14, param());
        a.sinks = &sinks;
        const at::Tensor qkv = random(2 * seq, 18 * 80, param()), d_out = random(2 * seq, 14 * 80, param());
        const Result expected = reference(qkv, d_out, a, true), found = run_op(qkv, d_out, a);
        EXPECT_LT(relative(expected.out, found.out), exact ? 1e-5 : 6e-3);
        EXPECT_LT(relative(expected.d_qkv, found.d_qkv), exact ? 1e-5 : 1.2e-2);
        EXPECT_LT(relative(expected.d_sinks, sinks.grad), exact ? 1e-5 : 2e-2);
      }
    }
  }
}

// Token 100 of a row and its gradients have the same bits when everything outside its document and window changes.
TEST_P(AttentionOfModels, WithSinksWhatIsOutsideChangesNoBit) {
  const Deterministic on;
  const int64_t seq = 300, place = 100;
  for (const int64_t window : {0, 20}) {
    at::manual_seed(26);
    AttentionArgs a = args_of(2, seq, 4, 2, 64, true, window);
    Weight sinks = make_sinks(4, param());
    a.sinks = &sinks;
    const int64_t first = window > 0 ? place - window + 1 : 66, last = window > 0 ? place + window - 1 : seq - 2;
    const at::Tensor qkv = random(2 * seq, 8 * 64, param()), d_out = random(2 * seq, 4 * 64, param());
    const at::Tensor other_qkv = random(2 * seq, 8 * 64, param()), other_d_out = random(2 * seq, 4 * 64, param());
    for (const auto& [other, one] : {std::pair{other_qkv, qkv}, std::pair{other_d_out, d_out}}) {
      other.narrow(0, first, last + 1 - first).copy_(one.narrow(0, first, last + 1 - first));
    }
    const Result one = run_op(qkv, d_out, a), other = run_op(other_qkv, other_d_out, a);
    EXPECT_TRUE(at::equal(one.out[place], other.out[place])) << window;
    EXPECT_TRUE(at::equal(one.d_qkv[place], other.d_qkv[place])) << window;
    EXPECT_FALSE(at::equal(one.out[first - 1], other.out[first - 1])) << window;
  }
}

TEST_P(AttentionOfModels, ACacheGivesTheRowsOfTheWholeSequence) {
  for (const Whole& c : wholes()) {
    if (c.documents) continue;
    at::manual_seed(22);
    const int64_t seq = 90;
    AttentionArgs a = args_of(2, seq, 4, 2, c.head_dim, false, c.window > 0 ? c.window / 3 : 0, c.rotated);
    a.rotate_halves = c.halves;
    AttentionArgs plain = a;
    Norms norms(a, param());
    if (!c.norm) a = plain;
    Weight sinks = make_sinks(4, param());
    if (c.sinks) a.sinks = &sinks;
    const at::Tensor qkv = random(2 * seq, 8 * c.head_dim, param());
    at::NoGradGuard no_grad;
    const at::Tensor whole = causal_attention(qkv.clone(), a).value.view({2, seq, -1});
    const auto room = [&] { return at::empty({2, seq + 6, 2 * c.head_dim}, qkv.options()); };
    KvCache cache{room(), room(), 0};
    for (const int64_t n : {31, 1, 3, 40, 1, 14}) {
      const at::Tensor rows = qkv.view({2, seq, -1}).narrow(1, cache.length, n), expected = whole.narrow(1, cache.length, n);
      a.seq = n;
      const at::Tensor found = causal_attention_cached(rows.reshape({2 * n, -1}), a, cache);
      EXPECT_LT(relative(expected.reshape({2 * n, -1}), found), param() == at::kFloat ? 1e-5 : 8e-3)
          << "head " << c.head_dim << ", window " << a.window << ", norm " << c.norm << ", sinks " << c.sinks << ", " << n << " up to "
          << cache.length;
    }
    EXPECT_EQ(cache.length, seq);
  }
}

// A recomputed block reuses the first pass's attention results.
TEST_P(AttentionOfModels, RecomputationChangesNoBit) {
  const Deterministic on;
  at::manual_seed(23);
  AttentionArgs a = args_of(2, 70, 4, 2, 64, false, 20, 32);
  Norms norms(a, param());
  Weight sinks = make_sinks(4, param());
  a.sinks = &sinks;
  const at::Tensor qkv = random(140, 8 * 64, param()), d_out = random(140, 4 * 64, param());
  const Result once = run_op(qkv, d_out, a);
  const at::Tensor d_q_norm = norms.q.grad.clone(), d_k_norm = norms.k.grad.clone(), d_sinks = sinks.grad.clone();
  norms.q.grad.zero_(), norms.k.grad.zero_(), sinks.grad.zero_();
  RecomputeResults results;
  {
    at::NoGradGuard no_grad;
    causal_attention(qkv.clone(), a, &results);
  }
  results.begin_again();
  const Result again = run_op(qkv, d_out, a, &results);
  EXPECT_TRUE(at::equal(once.out, again.out));
  EXPECT_TRUE(at::equal(once.d_qkv, again.d_qkv));
  EXPECT_TRUE(at::equal(d_q_norm, norms.q.grad));
  EXPECT_TRUE(at::equal(d_k_norm, norms.k.grad));
  EXPECT_TRUE(at::equal(d_sinks, sinks.grad));
  EXPECT_GT(d_sinks.abs().min().item<double>(), 0);
}

TEST_P(AttentionOfModels, NormsKeepWhatTheyReadAndAddToTheirGradients) {
  const Deterministic on;
  at::manual_seed(24);
  AttentionArgs a = args_of(1, 40, 2, 1, 16, false);
  Norms norms(a, param());
  int ready = 0;
  norms.q.on_grad_ready = norms.k.on_grad_ready = [&](Weight&) { ++ready; };
  const at::Tensor qkv = random(40, 4 * 16, param()), before = qkv.clone(), d_out = random(40, 2 * 16, param());
  at::AutoGradMode grad(true);
  // Only the weights require gradients; the same gradient twice.
  for (int i = 0; i < 2; ++i) torch::autograd::backward({causal_attention(qkv, a).value}, {d_out});
  EXPECT_EQ(ready, 4);
  EXPECT_TRUE(at::equal(qkv, before));
  const Result expected = reference(qkv, d_out, a, true);
  const double tolerance = param() == at::kFloat ? 1e-5 : 2e-2;
  EXPECT_LT(relative(2 * expected.d_q_norm, norms.q.grad), tolerance);
  EXPECT_LT(relative(2 * expected.d_k_norm, norms.k.grad), tolerance);
  const at::Tensor d_k_norm = norms.k.grad.clone();
  norms.q.grad = at::Tensor();  // frozen
  torch::autograd::backward({causal_attention(qkv, a).value}, {d_out});
  EXPECT_FALSE(norms.q.grad.defined());
  EXPECT_LT(relative(1.5 * d_k_norm, norms.k.grad), 1e-5);
}

TEST_P(AttentionOfModels, SinksAddToTheirGradients) {
  const Deterministic on;
  at::manual_seed(27);
  AttentionArgs a = args_of(1, 40, 2, 1, 16, false);
  Weight sinks = make_sinks(2, param());
  a.sinks = &sinks;
  int ready = 0;
  sinks.on_grad_ready = [&](Weight&) { ++ready; };
  const at::Tensor qkv = random(40, 4 * 16, param()), d_out = random(40, 2 * 16, param());
  at::AutoGradMode grad(true);
  // Only the sinks require gradients.
  const auto pass = [&] { torch::autograd::backward({causal_attention(qkv.clone(), a).value}, {d_out}); };
  pass();
  const at::Tensor once = sinks.grad.clone();
  pass();
  EXPECT_EQ(ready, 2);
  EXPECT_TRUE(at::equal(2 * once, sinks.grad));
  EXPECT_LT(relative(reference(qkv, d_out, a, true).d_sinks, once), param() == at::kFloat ? 1e-5 : 2e-2);
  sinks.grad_is_stale = true;
  pass();
  EXPECT_TRUE(at::equal(once, sinks.grad));
  sinks.grad = at::Tensor();  // frozen
  pass();
  EXPECT_FALSE(sinks.grad.defined());
}

TEST(AttentionSinks, OfAnotherNumberAreAnError) {
  AttentionArgs a = args_of(1, 6, 2, 1, 16, false);
  const at::Tensor qkv = random(6, 4 * 16, at::kFloat);
  Weight two = make_sinks(2, at::kBFloat16), three = make_sinks(3, at::kFloat);
  a.sinks = &two;
  EXPECT_NO_THROW(causal_attention(qkv, a));
  a.sinks = &three;
  EXPECT_THROW(causal_attention(qkv, a), Error);
}

TEST(AttentionNorms, OfAnotherSizeOrTypeAreErrors) {
  AttentionArgs a = args_of(1, 6, 2, 1, 16, false);
  const at::Tensor qkv = random(6, 4 * 16, at::kFloat);
  Norms norms(a, at::kFloat);
  EXPECT_NO_THROW(causal_attention(qkv, a));
  a.k_norm = nullptr;
  EXPECT_THROW(causal_attention(qkv, a), Error);
  Weight narrow = Norms::make(8, at::kFloat), other = Norms::make(16, at::kBFloat16);
  a.k_norm = &narrow;
  EXPECT_THROW(causal_attention(qkv, a), Error);
  a.k_norm = &other;
  EXPECT_THROW(causal_attention(qkv, a), Error);
}

}  // namespace
}  // namespace halftone
