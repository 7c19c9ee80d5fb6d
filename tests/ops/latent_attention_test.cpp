#include "halftone/ops/latent_attention.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <array>

#include "halftone/base/error.h"
#include "halftone/ops/recompute_results.h"
#include "ops/attention_reference.h"

namespace halftone {
namespace {

struct Dims {
  int64_t nope, rope, v, heads = 3;
};
// DeepSeek's, less than a register, values wider than keys, rotated part only.
constexpr Dims kDims[] = {{128, 64, 128}, {24, 8, 16, 5}, {8, 8, 40}, {0, 16, 16}};

AttentionArgs latent_args(const Dims& d, int64_t batch, int64_t seq, bool documents, int64_t window = 0) {
  AttentionArgs a = args_of(batch, seq, d.heads, d.heads, d.nope + d.rope, documents, window, d.rope);
  a.v_dim = d.v;
  return a;
}

// In the order of the op's arguments; the rotated part of the keys is columns of a wider tensor.
struct Inputs {
  at::Tensor q, kv, k_rope;
  Inputs(const Dims& d, int64_t rows, at::ScalarType type)
      : q(random(rows, d.heads * (d.nope + d.rope), type)),
        kv(random(rows, d.heads * (d.nope + d.v), type)),
        k_rope(random(rows, 24 + d.rope, type).narrow(1, 24, d.rope)) {}
  at::Tensor operator()(const AttentionArgs& a, RecomputeResults* results = nullptr) const {
    return latent_attention(q.clone(), kv, k_rope, a, results);
  }
  Inputs rows(int64_t batch, int64_t seq, int64_t first, int64_t count) const {
    Inputs part = *this;
    for (at::Tensor* t : {&part.q, &part.kv, &part.k_rope})
      *t = t->view({batch, seq, -1}).narrow(1, first, count).reshape({batch * count, -1});
    return part;
  }
};

struct Found {
  at::Tensor out, d_q, d_kv, d_k_rope, d_sinks;
};

Found reference(const Inputs& in, const at::Tensor& d_out, const AttentionArgs& a) {
  at::AutoGradMode grad(true);
  const at::Tensor q = leaf_of(in.q), kv = leaf_of(in.kv), k_rope = leaf_of(in.k_rope), sinks = a.sinks ? leaf_of(a.sinks->value) : q;
  const int64_t rope = k_rope.size(1), nope = a.head_dim - rope;
  const auto heads = [&](const at::Tensor& t, int64_t n) { return t.view({a.batch, a.seq, n, -1}); };
  const at::Tensor q_heads = heads(q, a.heads), kv_heads = heads(kv, a.heads);
  const at::Tensor rotated_q = at::cat({q_heads.narrow(3, 0, nope), rotate_reference(q_heads.narrow(3, nope, rope), a)}, 3);
  const at::Tensor shared = rotate_reference(heads(k_rope, 1), a).expand({a.batch, a.seq, a.heads, rope});
  const at::Tensor k = at::cat({kv_heads.narrow(3, 0, nope), shared}, 3);
  const at::Tensor out = attend_reference(rotated_q, k, kv_heads.narrow(3, nope, a.v_dim), a, a.sinks ? sinks : at::Tensor());
  torch::autograd::backward({out}, {d_out.to(at::kDouble)});
  return {out.detach(), q.grad(), kv.grad(), k_rope.grad(), a.sinks ? sinks.grad() : at::Tensor()};
}

// The gradient of the sinks is in their weight.
Found run_op(const Inputs& in, const at::Tensor& d_out, const AttentionArgs& a, RecomputeResults* results = nullptr) {
  at::AutoGradMode grad(true);
  std::array<at::Tensor, 3> leaf = {in.q, in.kv, in.k_rope};
  for (at::Tensor& t : leaf) t = t.detach().clone().set_requires_grad(true);
  const at::Tensor out = latent_attention(leaf[0] * 1.0, leaf[1], leaf[2], a, results);
  torch::autograd::backward({out}, {d_out});
  return {out.detach(), leaf[0].grad(), leaf[1].grad(), leaf[2].grad(), {}};
}

// float32: the CPU kernels, math on a GPU. bfloat16: the other CPU kernels, flash-2.
using LatentAttention = OnDeviceWith<at::ScalarType>;
INSTANTIATE_TEST_SUITE_P(Device, LatentAttention,
                         ::testing::Combine(::testing::Values(std::string("cpu"), std::string("cuda")),
                                            ::testing::Values(at::kFloat, at::kBFloat16)),
                         [](const auto& info) {
                           return fmt::format("{}_{}", std::get<0>(info.param), c10::toString(std::get<1>(info.param)));
                         });

TEST_P(LatentAttention, EqualsTheDefinitionInFp64) {
  const bool exact = param() == at::kFloat;
  for (const Dims& d : kDims) {
    for (const int64_t seq : {1, 17, 150}) {
      for (int i = 0; i < 4; ++i) {
        const bool documents = i & 1, all = i & 2;
        SCOPED_TRACE(
            fmt::format("{} + {}, {}; {} tokens, documents {}, halves, window and sinks {}", d.nope, d.rope, d.v, seq, documents, all));
        at::manual_seed(31);
        AttentionArgs a = latent_args(d, 2, seq, documents, all ? 40 : 0);
        a.rotate_halves = all;
        Weight sinks = make_sinks(d.heads, param());
        // Without sinks, a row of one token has no gradient of its scores.
        if (all || seq == 1) a.sinks = &sinks;
        const Inputs in(d, 2 * seq, param());
        const at::Tensor d_out = random(2 * seq, d.heads * d.v, param());
        const Found expected = reference(in, d_out, a), found = run_op(in, d_out, a);
        EXPECT_LT(relative(expected.out, found.out), exact ? 1e-5 : 6e-3);
        EXPECT_LT(relative(expected.d_q, found.d_q), exact ? 1e-5 : 1.2e-2);
        EXPECT_LT(relative(expected.d_kv, found.d_kv), exact ? 1e-5 : 1.2e-2);
        EXPECT_LT(relative(expected.d_k_rope, found.d_k_rope), exact ? 1e-5 : 1.2e-2);
        if (a.sinks == nullptr) continue;
        EXPECT_LT(relative(expected.d_sinks, sinks.grad), exact ? 1e-5 : 2e-2);
      }
    }
  }
}

TEST_P(LatentAttention, ACacheGivesTheRowsOfTheWholeSequence) {
  const int64_t seq = 90;
  for (const Dims& d : kDims) {
    for (const int64_t window : {0, 13}) {
      at::manual_seed(32);
      AttentionArgs a = latent_args(d, 2, seq, false, window);
      Weight sinks = make_sinks(d.heads, param());
      if (window > 0) a.sinks = &sinks;
      const Inputs in(d, 2 * seq, param());
      at::NoGradGuard no_grad;
      const at::Tensor whole = in(a).view({2, seq, -1});
      KvCache cache{at::empty({2, seq + 6, d.heads * a.head_dim}, in.q.options()), at::empty({2, seq + 6, d.heads * d.v}, in.q.options()),
                    0};
      for (const int64_t n : {31, 1, 3, 40, 1, 14}) {
        const Inputs rows = in.rows(2, seq, cache.length, n);
        const at::Tensor expected = whole.narrow(1, cache.length, n).reshape({2 * n, -1});
        a.seq = n;
        const at::Tensor found = latent_attention_cached(rows.q, rows.kv, rows.k_rope, a, cache);
        EXPECT_LT(relative(expected, found), param() == at::kFloat ? 1e-5 : 8e-3)
            << d.nope << " + " << d.rope << ", window " << window << ", " << n << " up to " << cache.length;
      }
      EXPECT_EQ(cache.length, seq);
    }
  }
}

// A recomputed block reuses the first pass's attention results, and GEMM outputs are unmodified.
TEST_P(LatentAttention, RecomputationChangesNoBit) {
  const Deterministic on;
  at::manual_seed(33);
  AttentionArgs a = latent_args(kDims[1], 2, 70, true, 20);
  Weight sinks = make_sinks(a.heads, param());
  a.sinks = &sinks;
  const Inputs in(kDims[1], 140, param());
  const at::Tensor d_out = random(140, a.heads * a.v_dim, param()), q = in.q.clone();
  const Found once = run_op(in, d_out, a);
  const at::Tensor d_sinks = sinks.grad.clone();
  sinks.grad.zero_();
  RecomputeResults results;
  {
    at::NoGradGuard no_grad;
    latent_attention(in.q, in.kv, in.k_rope, a, &results);
  }
  EXPECT_TRUE(at::equal(q, in.q));
  results.begin_again();
  const Found again = run_op(in, d_out, a, &results);
  EXPECT_TRUE(at::equal(once.out, again.out));
  EXPECT_TRUE(at::equal(once.d_q, again.d_q));
  EXPECT_TRUE(at::equal(once.d_kv, again.d_kv));
  EXPECT_TRUE(at::equal(once.d_k_rope, again.d_k_rope));
  EXPECT_TRUE(at::equal(d_sinks, sinks.grad));
}

// Token 100 of a row and its gradients have the same bits when everything outside its document changes.
TEST_P(LatentAttention, WhatIsOutsideADocumentChangesNoBit) {
  const Deterministic on;
  const int64_t seq = 300, place = 100, first = 66, last = seq - 2;
  for (const Dims& d : kDims) {
    at::manual_seed(34);
    const AttentionArgs a = latent_args(d, 2, seq, true);
    const Inputs in(d, 2 * seq, param()), other(d, 2 * seq, param());
    const at::Tensor d_out = random(2 * seq, d.heads * d.v, param()), other_d_out = random(2 * seq, d.heads * d.v, param());
    for (const auto& [to, from] :
         {std::pair{other.q, in.q}, std::pair{other.kv, in.kv}, std::pair{other.k_rope, in.k_rope}, std::pair{other_d_out, d_out}}) {
      to.narrow(0, first, last + 1 - first).copy_(from.narrow(0, first, last + 1 - first));
    }
    const Found one = run_op(in, d_out, a), two = run_op(other, other_d_out, a);
    EXPECT_TRUE(at::equal(one.out[place], two.out[place])) << d.nope;
    EXPECT_TRUE(at::equal(one.d_q[place], two.d_q[place])) << d.nope;
    EXPECT_TRUE(at::equal(one.d_kv[place], two.d_kv[place])) << d.nope;
    EXPECT_TRUE(at::equal(one.d_k_rope[place], two.d_k_rope[place])) << d.nope;
    EXPECT_FALSE(at::equal(one.out[first - 1], two.out[first - 1])) << d.nope;
  }
}

// Columns of a joint projection are read and rotated in place.
TEST_P(LatentAttention, QueriesMayBeColumns) {
  at::manual_seed(35);
  const Dims d = kDims[1];
  const AttentionArgs a = latent_args(d, 2, 33, false);
  const Inputs in(d, 66, param());
  const at::Tensor wide = at::cat({in.q, in.k_rope}, 1), d_out = random(66, d.heads * d.v, param());
  at::AutoGradMode grad(true);
  const at::Tensor leaf = wide.clone().set_requires_grad(true), copy = leaf * 1.0;
  const at::Tensor out = latent_attention(copy.narrow(1, 0, in.q.size(1)), in.kv, copy.narrow(1, in.q.size(1), d.rope), a);
  torch::autograd::backward({out}, {d_out});
  const Found expected = reference(in, d_out, a);
  EXPECT_LT(relative(expected.out, out), param() == at::kFloat ? 1e-5 : 6e-3);
  EXPECT_LT(relative(at::cat({expected.d_q, expected.d_k_rope}, 1), leaf.grad()), param() == at::kFloat ? 1e-5 : 1.2e-2);
  EXPECT_TRUE(at::equal(copy.narrow(1, in.q.size(1), d.rope), in.k_rope));
}

TEST(LatentAttentionArgs, OfOtherShapesAreErrors) {
  const Dims d = kDims[1];
  const AttentionArgs a = latent_args(d, 1, 6, false);
  const Inputs in(d, 6, at::kFloat);
  const auto message = [&](AttentionArgs args, const at::Tensor& kv, const at::Tensor& k_rope) {
    try {
      latent_attention(in.q.clone(), kv, k_rope, args);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(message(a, in.kv, in.k_rope), "");
  EXPECT_NE(message(a, in.kv.narrow(1, 0, 8), in.k_rope).find("expected kv of [1 * 6, 200] in Float"), std::string::npos)
      << message(a, in.kv.narrow(1, 0, 8), in.k_rope);
  EXPECT_NE(message(a, in.kv, in.k_rope.to(at::kBFloat16)).find("found [6 x 8] in BFloat16"), std::string::npos);
  AttentionArgs other = a;
  other.kv_heads = 1;
  EXPECT_NE(message(other, in.kv, in.k_rope).find("found 5 and 1 heads of 32 and 16 elements"), std::string::npos);
}

}  // namespace
}  // namespace halftone
