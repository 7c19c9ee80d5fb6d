#include "halftone/ops/grouped_linear.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "halftone/base/error.h"
#include "halftone/ops/operand.h"
#include "ops/test_device.h"

namespace halftone::grouped_linear_test {
namespace {

constexpr int64_t kExperts = 6, kTokens = 150, kTopK = 2, kIn = 192, kOut0 = 96, kOut1 = 256;  // 256: all experts' weights at once

// Every token goes to two of the experts 0, 2, 3 and 5: the others are empty, and no count is a multiple of a block size.
ExpertRows some_rows() {
  at::Tensor expert = at::empty({kTokens, kTopK}, at::kInt);
  const int32_t choices[3][2] = {{0, 3}, {5, 0}, {2, 3}};
  for (int64_t t = 0; t < kTokens; ++t) {
    const auto& c = choices[t * t % 7 % 3];
    for (int64_t j = 0; j < kTopK; ++j) expert[t][j] = c[j];
  }
  return place_experts(expert.to(test_device()), kExperts);
}

at::Tensor randn(at::IntArrayRef shape, at::ScalarType type) { return at::randn(shape).to(type).to(test_device()); }

struct Parameter {
  Weight weight;
  Parameter(const std::string& name, at::IntArrayRef shape, at::ScalarType type) {
    weight.name = name;
    weight.value = (randn(shape, at::kFloat) / std::sqrt(static_cast<double>(shape.back()))).to(type).set_requires_grad(true);
    weight.grad = at::full(shape, 1e9, weight.value.options().dtype(at::kFloat).requires_grad(false));  // stale values of an earlier step
    weight.grad_is_stale = true;
  }
};

double sqnr(const at::Tensor& reference, const at::Tensor& y) {
  const double error = (reference.to(at::kDouble) - y.to(at::kDouble)).norm().item<double>();
  return error == 0 ? 1e9 : 20 * std::log10(reference.to(at::kDouble).norm().item<double>() / error);
}

struct Case {
  std::string recipe;
  bool stochastic = false, dge = false, emulate = false, macro = false;
  char hp = 0;         // x, w or d: this operand stays in the compute dtype
  int width = 0;       // of wgrad's Hadamard transform; 0: the scheme's
  bool tiles = false;  // square blocks of W
};
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const LinearRecipe& r : kLinearRecipes) {
    if (r.w_forward.stored || r.name == "bitnet") continue;
    all.push_back({std::string(r.name)});
    if (r.quantized()) all.push_back({.recipe = std::string(r.name), .emulate = true});
  }
  for (const char* name : {"int8", "mxfp8_e4m3", "nvfp4"}) all.push_back({name, true});
  for (const char* name : {"mxfp4", "nvfp4", "amdfp4"}) all.push_back({.recipe = name, .dge = true});
  for (const bool emulate : {false, true}) all.push_back({.recipe = "mxfp4", .dge = true, .emulate = emulate, .macro = true});
  for (const char hp : {'x', 'w', 'd'}) {
    for (const bool macro : {false, true}) all.push_back({.recipe = "mxfp4", .macro = macro, .hp = hp});
    all.push_back({.recipe = "nvfp4", .hp = hp});
  }
  for (const int width : {64, 128}) all.push_back({.recipe = "nvfp4", .width = width});
  for (const char* name : {"mxfp4", "nvfp4", "nvint4"}) all.push_back({.recipe = name, .tiles = true});
  all.push_back({.recipe = "mxfp4", .macro = true, .tiles = true});
  return all;
}
LinearRecipe recipe_of(const Case& c) {
  LinearRecipe r = find_linear_recipe(c.recipe).value();
  r.dge = c.dge, r.emulate = c.emulate;
  if (c.tiles) r.w_forward.granularity = r.w_dgrad.granularity = Granularity::tile, r.w_dgrad.same_as_forward = true;
  if (c.macro)
    for (OperandSpec* o : {&r.x_forward, &r.w_forward, &r.dy_dgrad, &r.w_dgrad, &r.dy_wgrad, &r.x_wgrad}) o->two_level = TwoLevel::macro;
  if (c.stochastic) {
    for (OperandSpec* o : {&r.x_forward, &r.w_forward, &r.dy_dgrad, &r.w_dgrad, &r.dy_wgrad, &r.x_wgrad}) o->stochastic = true;
  }
  if (c.width != 0) r.dy_wgrad.hadamard = r.x_wgrad.hadamard = c.width;
  if (c.hp == 'x' || c.hp == 'd') r.dy_wgrad.hadamard = r.x_wgrad.hadamard = 0;
  if (c.hp == 'x') r.x_forward = r.x_wgrad = {};
  if (c.hp == 'w') r.w_forward = r.w_dgrad = {};
  if (c.hp == 'd') r.dy_dgrad = r.dy_wgrad = {};
  return r;
}

class GroupedLinear : public OnDeviceWith<Case> {};

// Each expert's rows equal a dense layer with its weight: bit for bit on the CPU, up to summation order on a GPU.
TEST_P(GroupedLinear, EqualsItsExpertsOneByOne) {
  at::manual_seed(1);
  const at::NoGradGuard no_grad;
  const LinearRecipe recipe = recipe_of(param());
  const ExpertRows rows = some_rows();
  Parameter w0("layers.0.moe.experts.w1", {kExperts, kOut0, kIn}, at::kBFloat16),
      w1("layers.0.moe.experts.w3", {kExperts, kOut1, kIn}, at::kBFloat16);
  FusedLinears grouped;
  grouped.weights = {&w0.weight, &w1.weight}, grouped.recipe = recipe;
  const at::Tensor x = gather_rows(randn({kTokens, kIn}, at::kBFloat16), rows);
  const at::Tensor dy = gather_rows(randn({kTokens, kOut0 + kOut1}, at::kBFloat16), rows);
  LinearOptions options;
  options.keep = true, options.out = at::kBFloat16, options.step.seed = 3, options.step.step = 7, options.step.first_row = 5;
  const GroupedCall call = grouped_linear_call({x}, grouped, rows, options);
  const std::vector<at::Tensor> parts = call.dgrad({{dy.narrow(1, 0, kOut0)}, {dy.narrow(1, kOut0, kOut1)}}, true);
  call.wgrad();
  const at::Tensor y = at::cat(call.y, 1), dx = parts.size() == 1 ? parts[0] : parts[0] + parts[1];

  const at::Tensor offsets = rows.offsets.cpu(), ends = rows.ends.cpu();
  for (int64_t e = 0; e < kExperts; ++e) {
    SCOPED_TRACE(fmt::format("expert {}", e));
    const int64_t first = offsets[e].item<int64_t>(), count = ends[e].item<int64_t>() - first;
    for (const Parameter* w : {&w0, &w1}) {
      if (count == 0) {
        EXPECT_EQ(w->weight.grad[e].abs().max().item<float>(), 0);
      }
    }
    if (count == 0) continue;
    Weight a, b;
    FusedLinears dense;
    dense.recipe = recipe;
    for (auto [w, of] : {std::pair{&a, &w0}, {&b, &w1}}) {
      w->name = of->weight.name, w->value = of->weight.value.detach()[e];
      w->grad = at::zeros(w->value.sizes(), w->value.options().dtype(at::kFloat));
      w->first_row = e * w->value.size(0);
      dense.weights.push_back(w);
    }
    LinearOptions o = options;
    o.step.first_row = 5 * 256, o.first_row = first;
    LinearCall one = linear_call(x.narrow(0, first, count), dense, o);
    const at::Tensor one_dx = one.backward(dy.narrow(0, first, count), true);
    const bool cpu = test_device().is_cpu(), fp8 = param().recipe.starts_with("fp8") && !cpu && !param().emulate;
    const auto compare = [&](const at::Tensor& found, const at::Tensor& expected, const char* what, double bar) {
      if (cpu) {
        EXPECT_TRUE(found.equal(expected)) << what << " differs by up to " << (found - expected).abs().max().item<float>();
      } else {
        EXPECT_GE(sqnr(expected, found), fp8 ? 40 : bar) << what;
      }
    };
    compare(y.narrow(0, first, count), one.y, "Y", 54);
    compare(dx.narrow(0, first, count), one_dx, "dX", 51);  // the sum of two products in bf16, rounded twice on both sides
    compare(w0.weight.grad[e], a.grad, "dW of the first", 80);
    compare(w1.weight.grad[e], b.grad, "dW of the second", 80);
  }
  const at::Tensor padding = rows.source.lt(0);
  EXPECT_EQ(y.index({padding}).abs().sum().item<float>(), 0);
  EXPECT_EQ(dx.index({padding}).abs().sum().item<float>(), 0);
}
std::string name_of(const ::testing::TestParamInfo<std::tuple<std::string, Case>>& info) {
  const Case& c = std::get<1>(info.param);
  return std::get<0>(info.param) + "_" + c.recipe + (c.stochastic ? "_stochastic" : "") + (c.dge ? "_dge" : "") +
         (c.macro ? "_macro" : "") + (c.emulate ? "_emulated" : "") + (c.hp ? std::string("_hp_") + c.hp : "") +
         (c.width != 0 ? fmt::format("_hadamard{}", c.width) : "") + (c.tiles ? "_tiles" : "");
}
// Rows gathered directly into operands, forward, and backward with their gates: bit for bit equal to rows gathered into a buffer first.
TEST_P(GroupedLinear, TakesRowsFromTheirTokens) {
  const LinearRecipe recipe = recipe_of(param());
  const ExpertRows rows = some_rows();
  StepContext step;
  step.seed = 3, step.step = 7, step.first_row = 5;
  const auto pass = [&](bool lies_there, bool gated) {
    at::manual_seed(4);
    Parameter w1("layers.0.moe.experts.w1", {kExperts, kOut0, kIn}, at::kBFloat16),
        w2("layers.0.moe.experts.w2", {kExperts, kIn, kOut0}, at::kBFloat16);
    FusedLinears up, down;
    up.weights = {&w1.weight}, down.weights = {&w2.weight}, up.recipe = down.recipe = recipe;
    const at::Tensor x = randn({kTokens, kIn}, at::kBFloat16).set_requires_grad(true);
    at::Tensor gates = (gated ? randn({kTokens, kTopK}, at::kFloat) : at::Tensor());
    if (gated) gates.set_requires_grad(true);
    at::Tensor y;
    if (lies_there) {
      y = combined_linear(gathered_linear(x, up, rows, step)[0], down, rows, gates, step);
    } else {
      const at::Tensor made = grouped_linear(grouped_linear(gather_rows(x, rows), up, rows, step)[0], down, rows, step)[0];
      y = gated ? combine_rows(made, gates, rows) : sum_rows(made, rows);
    }
    y.backward(randn({kTokens, kIn}, at::kBFloat16));
    return std::vector<at::Tensor>{y.detach(), x.grad(), gated ? gates.grad() : y.detach(), w1.weight.grad, w2.weight.grad};
  };
  for (const bool gated : {true, false}) {
    const std::vector<at::Tensor> expected = pass(false, gated), found = pass(true, gated);
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_GT(found[i].abs().max().item<float>(), 0);
      EXPECT_TRUE(found[i].equal(expected[i])) << "number " << i << (gated ? " with gates" : "") << " differs by up to "
                                               << (found[i] - expected[i]).abs().max().item<float>();
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, GroupedLinear, ::testing::Combine(test_devices(), ::testing::ValuesIn(cases())), name_of);

// Grouped weights too large for the cache, read a few at a time: the same bytes as all at once.
TEST(GroupedQuantise, TakesAFewGroupsAtATime) {
  enter_device("cuda");
  if (IsSkipped()) return;
  constexpr int64_t kGroups = 14, kRows = 512, kColumns = 2048;  // 4 MiB of fp32 each
  at::manual_seed(5);
  const at::Tensor w = randn({kGroups * kRows, kColumns}, at::kFloat);
  const at::Tensor offsets = (at::arange(kGroups + 1, at::kInt) * kRows).to(at::kInt).to(test_device());
  for (const LinearRecipe& recipe : kLinearRecipes) {
    if (!recipe.w_forward.quantized() || recipe.w_forward.stored || recipe.w_dgrad.hadamard != 0) continue;
    SCOPED_TRACE(recipe.name);
    CopyRequest row, transposed;
    row.spec = recipe.w_forward, transposed.spec = recipe.w_dgrad, row.codes = transposed.codes = true;
    GroupedRows groups{{kGroups, offsets.const_data_ptr<int32_t>(), offsets.const_data_ptr<int32_t>() + 1}};
    const OperandCopies all = quantize(w, &row, &transposed, {}, true, nullptr, &groups);
    groups.each = kRows;
    const OperandCopies few = quantize(w, &row, &transposed, {}, true, nullptr, &groups);
    for (Operand OperandCopies::*copy : {&OperandCopies::row, &OperandCopies::transposed}) {
      for (at::Tensor Operand::*part : {&Operand::codes, &Operand::scales, &Operand::outer}) {
        const at::Tensor &a = (all.*copy).*part, &b = (few.*copy).*part;
        ASSERT_EQ(a.defined(), b.defined());
        EXPECT_TRUE(!a.defined() || a.equal(b));
      }
    }
  }
  leave_device();
}

class ExpertRowsOn : public OnDevice {};

TEST_P(ExpertRowsOn, LieByExpertInTheOrderOfTokens) {
  for (const auto& [tokens, top_k, experts] :
       {std::tuple<int64_t, int64_t, int64_t>{150, 2, 6}, {1, 1, 1}, {1000, 3, 40}, {7, 7, 7}, {0, 2, 3}}) {
    at::manual_seed(2);
    const at::Tensor expert = at::rand({tokens, experts}).argsort(int64_t{1}).narrow(1, 0, top_k).to(at::kInt).contiguous();
    const ExpertRows r = place_experts(expert.to(test_device()), experts);
    const at::Tensor offsets = r.offsets.cpu(), ends = r.ends.cpu(), counts = r.counts.cpu(), slot = r.slot.cpu(), source = r.source.cpu();
    std::vector<int32_t> expected(static_cast<size_t>(r.rows), -1);
    int32_t row = 0;
    for (int64_t e = 0; e < experts; ++e) {
      ASSERT_EQ(offsets[e].item<int32_t>(), row);
      int32_t count = 0;
      for (int64_t i = 0; i < tokens * top_k; ++i) {
        if (expert.view(-1)[i].item<int32_t>() != e) continue;
        ASSERT_EQ(slot.view(-1)[i].item<int32_t>(), row + count);
        expected[static_cast<size_t>(row + count++)] = static_cast<int32_t>(i);
      }
      ASSERT_EQ(counts[e].item<int32_t>(), count);
      ASSERT_EQ(ends[e].item<int32_t>(), row + count);
      row += (count + 127) / 128 * 128;
    }
    ASSERT_EQ(offsets[experts].item<int32_t>(), row);
    ASSERT_LE(row, r.rows);
    for (int64_t i = 0; i < r.rows; ++i) ASSERT_EQ(source[i].item<int32_t>(), expected[static_cast<size_t>(i)]);
    // Every tile once, ordered by its first token, those after all groups at the end.
    const at::Tensor order = r.order.cpu();
    ASSERT_EQ(order.numel(), r.rows / kGroupRows);
    for (int64_t i = 0, before = -1; i < order.numel(); ++i) {
      const int64_t tile = order[i].item<int32_t>(), begins = expected[static_cast<size_t>(tile * kGroupRows)];
      const int64_t key = begins < 0 ? tokens * top_k + tile : begins;
      ASSERT_LT(before, key);
      before = key;
    }
  }
}

// Against LibTorch's indexing and its gradients, for widths with and without a vector remainder.
TEST_P(ExpertRowsOn, GoThereAndBack) {
  for (const int64_t width : {64, 37}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      at::manual_seed(3);
      const ExpertRows rows = some_rows();
      const at::Tensor slot = rows.slot.to(at::kLong).view(-1);
      const at::Tensor x = randn({kTokens, width}, type).set_requires_grad(true), x2 = x.detach().to(at::kFloat).set_requires_grad(true);
      const at::Tensor gates = randn({kTokens, kTopK}, at::kFloat).set_requires_grad(true),
                       gates2 = gates.detach().clone().set_requires_grad(true);
      const at::Tensor there = gather_rows(x, rows);
      const at::Tensor there2 = at::zeros({rows.rows, width}, x2.options()).index_put({slot}, x2.repeat_interleave(kTopK, 0));
      EXPECT_TRUE(there.to(at::kFloat).equal(there2));
      const at::Tensor back = combine_rows(there, gates, rows);
      const at::Tensor back2 = (there2.index({slot}).view({kTokens, kTopK, width}) * gates2.unsqueeze(-1)).sum(1);
      const double tolerance = type == at::kFloat ? 1e-5 : 2e-2;
      EXPECT_TRUE(back.to(at::kFloat).allclose(back2, tolerance, tolerance));
      const at::Tensor d = randn({kTokens, width}, type);
      back.backward(d), back2.backward(d.to(at::kFloat));
      EXPECT_TRUE(x.grad().to(at::kFloat).allclose(x2.grad(), tolerance, 10 * tolerance));
      EXPECT_TRUE(gates.grad().allclose(gates2.grad(), tolerance, 10 * tolerance));
    }
  }
}

TEST_P(ExpertRowsOn, TakeTheBiasOfTheirExpert) {
  const ExpertRows rows = some_rows();
  Parameter bias("layers.0.moe.experts.mlp1_bias", {kExperts, 40}, at::kFloat);
  const at::Tensor x = randn({rows.rows, 40}, at::kFloat);
  const at::Tensor real = rows.source.ge(0), expected = x.clone();
  at::Tensor group = at::zeros({rows.rows}, rows.source.options().dtype(at::kLong));
  for (int64_t e = 0; e < kExperts; ++e) {
    const int64_t first = rows.offsets[e].item<int64_t>(), end = rows.ends[e].item<int64_t>();
    if (end > first) group.narrow(0, first, end - first).fill_(e);
  }
  expected.add_(bias.weight.value.detach().index({group}) * real.unsqueeze(1));
  const at::Tensor in = x.clone().set_requires_grad(true);
  const at::Tensor y = add_group_bias(in * 1, bias.weight, rows);
  EXPECT_TRUE(y.allclose(expected));
  const at::Tensor d = randn({rows.rows, 40}, at::kFloat) * real.unsqueeze(1);
  y.backward(d);
  EXPECT_TRUE(in.grad().equal(d));
  EXPECT_TRUE(bias.weight.grad.allclose(at::zeros({kExperts, 40}, d.options()).index_add_(0, group, d), 1e-4, 1e-5));
}

TEST_P(ExpertRowsOn, ClampAsGptOssDoes) {
  const at::Tensor gu = (randn({33, 50}, at::kFloat) * 6).set_requires_grad(true), gu2 = gu.detach().clone().set_requires_grad(true);
  const at::Tensor h = clamped_swiglu(gu, 7);
  const at::Tensor g = gu2.slice(1, 0, 50, 2).clamp_max(7), u = gu2.slice(1, 1, 50, 2).clamp(-7, 7);
  const at::Tensor h2 = g * at::sigmoid(g * 1.702) * (u + 1);
  EXPECT_TRUE(h.allclose(h2, 1e-5, 1e-6));
  const at::Tensor d = randn({33, 25}, at::kFloat);
  h.backward(d), h2.backward(d);
  EXPECT_TRUE(gu.grad().allclose(gu2.grad(), 1e-5, 1e-5));
}
INSTANTIATE_TEST_SUITE_P(On, ExpertRowsOn, test_devices());

}  // namespace
}  // namespace halftone::grouped_linear_test
