#include "halftone/optim/step.h"
#include "fused/support.h"
#include "halftone/base/error.h"
#include "halftone/optim/optimizer.h"

namespace halftone::step_test {
namespace {

using optim::optimizer_of, optim::Optimizer;

// "bf16 from fp32" of numerics.md section 4, L = 16; i is the element's index in the unsharded parameter.
bf16 round_stochastic_ref(float x, PhiloxKey key, uint64_t i, uint32_t step) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), word = philox(key, i >> 3, step)[(i & 7) >> 1];
  const uint32_t u = i & 1 ? word >> 16 : word & 0xFFFF;
  const bool special = (bits & 0x7F800000u) == 0x7F800000u;
  const bool up = !special && u + 0.5 < (bits & 0xFFFF) / 65536.0 * 65536.0;
  bf16 result;
  result.bits = static_cast<uint16_t>((bits + (up ? 0x10000u : 0)) >> 16);
  return result;
}

struct Buffers {
  Matrix p, m, v, g, copy;
  Buffers(int64_t n, DType param, DType state, DType grad)
      : p(1, n, param), m(1, n, state), v(1, n, state), g(1, n, grad), copy(1, n, DType::bf16) {
    p.randomise(1), m.randomise(2, 0.1f), v.randomise(3, 0.1f), g.randomise(4, 0.3f);
    for (int64_t i = 0; i < n; ++i) v.set(0, i, static_cast<float>(std::abs(v.at(0, i))));
  }
  OptimizerStep step(std::string_view optimizer, std::span<const OptimizerSegment> segments, const optim::Options& options = {}) {
    OptimizerStep s;
    const Optimizer& o = optimizer_of(optimizer);
    s.optimizer = o.place, s.options = options, s.segments = segments, s.step = 3, s.param_dtype = p.type, s.param = p.data();
    void* const states[] = {m.data(), v.data()};
    std::copy_n(states, o.states(options).size(), s.states);
    s.state_dtype = m.type, s.grad_dtype = g.type, s.grad = g.data();
    return s;
  }
};

// Every row of the registry, and the other values of its switches.
std::vector<std::pair<const Optimizer*, optim::Options>> cases() {
  std::vector<std::pair<const Optimizer*, optim::Options>> all;
  for (const Optimizer& o : optim::optimizers()) all.emplace_back(&o, optim::Options{});
  all.emplace_back(&optimizer_of("SGD"), optim::Options{}), all.back().second.nesterov = true;
  all.emplace_back(&optimizer_of("SGD"), optim::Options{}), all.back().second.momentum = 0;
  return all;
}

TEST(Optimizer, MatchesReferenceForEveryRuleAndType) {
  constexpr int64_t kCount = 40007;  // three work ranges, the last with a tail
  for (const auto& [optimizer, options] : cases()) {
    for (const DType param : kFloatTypes) {
      for (const DType state : kFloatTypes) {
        for (const DType grad : kFloatTypes) {
          Buffers b(kCount, param, state, grad), before = b;
          const OptimizerSegment segments[] = {{.offset = 0, .count = 20005, .lr = 0.01, .weight_decay = 0.1},
                                               {.offset = 20010, .count = kCount - 20010, .lr = 0.02, .weight_decay = 0}};
          OptimizerStep s = b.step(optimizer->name, segments, options);
          StepOutcome outcome;
          outcome.grad_factor = 0.5f;
          s.outcome = &outcome, s.compute_copy = b.copy.b.data(), s.zero_grad = true;
          optimizer_step(s);
          std::vector<double> p, m, v;
          for (int64_t i = 0; i < kCount; ++i) {
            const bool first = i < 20005, gap = !first && i < 20010;
            double x = before.p.at(0, i), states[] = {before.m.at(0, i), before.v.at(0, i)};
            if (!gap) {
              double none[] = {0};
              const bool keeps = !optimizer->states(options).empty();
              optimizer->reference(x, before.g.at(0, i) * 0.5, keeps ? states : none, options, first ? 0.01 : 0.02, first ? 0.1 : 0, 3);
              ASSERT_EQ(b.g.at(0, i), 0);
              ASSERT_NEAR(b.copy.at(0, i), x, 0x1p-8 * std::abs(x) + 1e-7);
            } else {
              ASSERT_EQ(b.copy.at(0, i), Matrix::kGap);
            }
            p.push_back(x), m.push_back(states[0]), v.push_back(states[1]);
          }
          b.p.expect_near(p, 1e-6, 1e-7, "p");
          b.m.expect_near(m, 1e-6, 1e-7, "m");
          b.v.expect_near(v, 1e-6, 1e-7, "v");
        }
      }
    }
  }
}

TEST(Optimizer, AStepThatDoesNotUpdateZeroesGradientsAlone) {
  Buffers b(50, DType::f32, DType::f32, DType::f32), before = b;
  const OptimizerSegment segment{.offset = 1, .count = 40, .lr = 0.5};
  StepOutcome outcome;
  outcome.updated = false, outcome.grad_factor = NAN;
  for (const bool zero : {false, true}) {
    OptimizerStep s = b.step("AdamW", {&segment, 1});
    s.outcome = &outcome, s.compute_copy = b.copy.b.data(), s.zero_grad = zero;
    optimizer_step(s);
    EXPECT_EQ(values(b.p), values(before.p));
    EXPECT_EQ(values(b.m), values(before.m));
    EXPECT_EQ(values(b.v), values(before.v));
    EXPECT_EQ(values(b.copy), values(before.copy));
    for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(b.g.at(0, i), zero && i >= 1 && i < 41 ? 0 : before.g.at(0, i)) << i;
  }
}

TEST(Optimizer, SgdWithoutMomentumNeedsNoState) {
  Buffers b(100, DType::f32, DType::f32, DType::f32), before = b;
  const OptimizerSegment segment{.offset = 0, .count = 100, .lr = 0.5};
  optim::Options options;
  options.momentum = 0;
  OptimizerStep s = b.step("SGD", {&segment, 1}, options);
  ASSERT_EQ(s.states[0], nullptr);
  optimizer_step(s);
  for (int64_t i = 0; i < 100; ++i) ASSERT_NEAR(b.p.at(0, i), before.p.at(0, i) - 0.5 * before.g.at(0, i), 1e-6);
}

// Draws follow numerics.md section 4, wherever the segment is split and however its first element is aligned.
TEST(Optimizer, StochasticRoundingFollowsTheKeyAndTheGlobalIndex) {
  for (const auto& [optimizer, options] : cases()) {
    constexpr int64_t kCount = 17000;
    const double lr = optimizer->takes("momentum") ? 1 : 1e-3;  // updates of more than a bfloat16 step
    const PhiloxKey key = philox_key(1234, "layers.0.feed_forward.w1.weight#param");
    Buffers exact(kCount, DType::f32, DType::f32, DType::f32), whole(kCount, DType::bf16, DType::f32, DType::f32);
    for (int64_t i = 0; i < kCount; ++i) exact.p.set(0, i, static_cast<float>(whole.p.at(0, i)));
    Buffers parts = whole;
    const OptimizerSegment all{.offset = 0, .count = kCount, .lr = lr, .weight_decay = 0.1, .key = key};
    const OptimizerSegment pieces[] = {
        {.offset = 0, .count = 6003, .lr = lr, .weight_decay = 0.1, .key = key},
        {.offset = 6003, .count = kCount - 6003, .lr = lr, .weight_decay = 0.1, .key = key, .first_index = 6003}};
    OptimizerStep s = whole.step(optimizer->name, {&all, 1}, options), cut = parts.step(optimizer->name, pieces, options);
    s.stochastic_rounding = cut.stochastic_rounding = true;
    optimizer_step(exact.step(optimizer->name, {&all, 1}, options));
    optimizer_step(s);
    optimizer_step(cut);
    int up = 0;
    for (int64_t i = 0; i < kCount; ++i) {
      const float x = static_cast<float>(exact.p.at(0, i));
      ASSERT_EQ(whole.p.at(0, i), to_float(round_stochastic_ref(x, key, static_cast<uint64_t>(i), 3))) << i;
      up += std::abs(whole.p.at(0, i)) > std::abs(x);
    }
    EXPECT_EQ(values(parts.p), values(whole.p));
    EXPECT_EQ(values(parts.m), values(whole.m));
    EXPECT_EQ(values(parts.v), values(whole.v));
    EXPECT_GT(up, kCount * 2 / 5);
    EXPECT_LT(up, kCount * 3 / 5);
  }
}

TEST(Optimizer, SameBitsForEveryThreadCountAndInstructionSet) {
  for (const auto& [optimizer, options] : cases()) {
    for (const DType param : kFloatTypes) {
      expect_same_everywhere([&] {
        Buffers b(50001, param, DType::bf16, DType::f32);
        const OptimizerSegment segment{
            .offset = 1, .count = 50000, .lr = 1e-2, .weight_decay = 0.1, .key = philox_key(1, "p"), .first_index = 5};
        OptimizerStep s = b.step(optimizer->name, {&segment, 1}, options);
        s.stochastic_rounding = true, s.compute_copy = b.copy.b.data();
        optimizer_step(s);
        std::vector<float> out = values(b.p);
        append(out, values(b.m)), append(out, values(b.v)), append(out, values(b.copy));
        return out;
      });
    }
  }
}

// An update that overflows must not wrap around, and a NaN must stay NaN.
TEST(Optimizer, StochasticRoundingKeepsInfinityAndNan) {
  Buffers b(32, DType::bf16, DType::f32, DType::f32);
  b.g.set(0, 3, -1e3f), b.g.set(0, 4, 1e3f), b.g.set(0, 9, NAN), b.g.set(0, 8, 0);
  const double before = b.p.at(0, 8);
  const OptimizerSegment segment{.offset = 0, .count = 32, .lr = 1e38};
  optim::Options options;
  options.momentum = 0;
  OptimizerStep s = b.step("SGD", {&segment, 1}, options);
  s.stochastic_rounding = true;
  optimizer_step(s);
  EXPECT_EQ(b.p.at(0, 3), INFINITY);
  EXPECT_EQ(b.p.at(0, 4), -INFINITY);
  EXPECT_TRUE(std::isnan(b.p.at(0, 9)));
  EXPECT_EQ(b.p.at(0, 8), before);
}

TEST(Optimizer, RefusesWrongArgumentsAndDoesNothingWithoutSegments) {
  Buffers b(8, DType::f32, DType::f32, DType::f32);
  EXPECT_NO_THROW(optimizer_step(OptimizerStep{}));
  const OptimizerSegment segment{.offset = 0, .count = 8};
  OptimizerStep s = b.step("AdamW", {&segment, 1});
  s.step = 0;
  EXPECT_THROW(optimizer_step(s), Error);
  s.step = 1, s.states[1] = nullptr;
  EXPECT_THROW(optimizer_step(s), Error);
  s = b.step("AdamW", {&segment, 1}), s.options.eps = 0;
  EXPECT_THROW(optimizer_step(s), Error);
  s = b.step("SGD", {&segment, 1}), s.options.momentum = 0, s.options.nesterov = true;
  EXPECT_THROW(optimizer_step(s), Error);
}

}  // namespace
}  // namespace halftone::step_test
