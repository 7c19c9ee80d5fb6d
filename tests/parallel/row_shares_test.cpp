// Layers with row-sharded tensors equal those with full rows, whether transfers precede the GEMMs or overlap with their parts.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "halftone/ops/linear.h"
#include "parallel/layouts.h"

namespace halftone {
namespace {

constexpr int64_t kIn = 64, kTokens = 96;

struct LayerPass {
  at::Tensor y, dx;
  std::vector<at::Tensor> gradients;  // of weights and biases
};

// Forward and backward of rank `of`'s part of a layer.
LayerPass layer_pass(const LinearRecipe& recipe, int64_t of, bool siblings, const at::Tensor& x, const at::Tensor& dy,
                     const RowShares& shares = {}, bool later = false) {
  const at::NoGradGuard no_grad;
  at::manual_seed(static_cast<uint64_t>(10 + of));
  std::vector<Weight> parameters;
  const auto add = [&](const char* name, const at::Tensor& value) {
    Weight& w = parameters.emplace_back();
    w.name = name, w.value = value.to(x.scalar_type()).set_requires_grad(true), w.grad = at::zeros(value.sizes());
  };
  parameters.reserve(3);
  add("a", at::randn({96, kIn}) / 8);
  if (siblings) add("b", at::randn({32, kIn}) / 8);
  FusedLinears fused;
  for (Weight& w : parameters) fused.weights.push_back(&w);
  if (siblings || of == 0) {
    add("bias", at::randn({96}));
    fused.biases = {&parameters.back()};
    if (siblings) fused.biases.push_back(nullptr);
  }
  fused.recipe = recipe;
  LinearOptions options;
  options.step = {5, 3, 32}, options.keep = true, options.out = x.scalar_type(), options.shares = shares;
  options.step.gradients = std::make_shared<WeightGradients>(), options.step.gradients->later = later;
  LinearCall call = linear_call(x, fused, options);
  LayerPass result{call.y, call.dgrad(dy, true), {}};
  call.wgrad();
  for (const Weight& w : parameters) result.gradients.push_back(w.grad);
  return result;
}

// The input of two siblings is row-sharded, or the output of one layer.
void expect_numbers_of_whole_rows(comm::Communicator& ranks, const LinearRecipe& recipe, at::ScalarType type, bool siblings, bool in_parts,
                                  bool later) {
  const int64_t n = ranks.size(), rows = kTokens / n, out = siblings ? 128 : 96;
  const auto drawn = [&](int64_t seed, int64_t columns) {
    at::manual_seed(static_cast<uint64_t>(seed));
    at::Tensor t = at::randn({kTokens, columns});
    t.select(1, 3).mul_(20), t.select(0, kTokens - 1).mul_(30);  // the amax is on another rank
    return t.to(type);
  };
  const auto own = [&](const at::Tensor& t) { return t.narrow(0, ranks.index() * rows, rows); };
  std::vector<LayerPass> whole;  // per rank
  at::Tensor sum;
  for (int64_t r = 0; r < n; ++r) {
    whole.push_back(layer_pass(recipe, r, siblings, drawn(siblings ? 1 : 20 + r, kIn), drawn(siblings ? 30 + r : 2, out)));
    const at::Tensor part = (siblings ? whole.back().dx : whole.back().y).to(at::kFloat);
    sum = r == 0 ? part : sum + part;
  }
  sum = own(sum.to(type));
  const LayerPass& expected = whole[static_cast<size_t>(ranks.index())];
  RowShares shares;
  (siblings ? shares.input : shares.output) = &ranks, shares.in_parts = in_parts;
  const at::Tensor x = siblings ? own(drawn(1, kIn)) : drawn(20 + ranks.index(), kIn);
  const at::Tensor dy = siblings ? drawn(30 + ranks.index(), out) : own(drawn(2, out));
  const LayerPass got = layer_pass(recipe, ranks.index(), siblings, x, dy, shares, later);
  const auto equal = [&](const at::Tensor& a, const at::Tensor& b, const char* what) {
    check(at::equal(a, b), "{} in {}, {} shared, {}: {} is {} off", recipe.name, c10::toString(type), siblings ? "input" : "output",
          in_parts ? "in parts" : "at once", what, a.sizes() == b.sizes() ? (a - b).abs().max().item<double>() : -1);
  };
  equal(got.y, siblings ? expected.y : sum, "Y");
  equal(got.dx, siblings ? sum : expected.dx, "dX");
  for (size_t i = 0; i < got.gradients.size(); ++i) equal(got.gradients[i], expected.gradients[i], i == 0 ? "dW" : "another gradient");
}

const comm::Ranks kLayers("shared rows", [](const Rank& rank) {
  be_quiet();
  comm::Watch watch = rank.watch();
  comm::Communicator group(watch, "tp", rank.all(), at::kCPU);
  std::vector<LinearRecipe> recipes(kLinearRecipes.begin(), kLinearRecipes.end());
  std::erase_if(recipes, [](const LinearRecipe& r) { return r.w_forward.stored; });
  recipes.push_back(*find_linear_recipe("mxfp4")), recipes.back().dge = true;
  recipes.push_back(*find_linear_recipe("nvfp4")), recipes.back().emulate = true;
  recipes.push_back(*find_linear_recipe("int8")), recipes.back().x_forward.stochastic = recipes.back().dy_dgrad.stochastic = true;
  for (const LinearRecipe& recipe : recipes) {
    check(can_share_rows(recipe), "{} cannot share rows", recipe.name);
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
      for (const bool siblings : {false, true}) {
        for (const bool in_parts : {false, true}) expect_numbers_of_whole_rows(group, recipe, type, siblings, in_parts, in_parts);
      }
    }
  }
});

TEST(RowShares, LayersHaveTheNumbersOfWholeRows) {
  for (const int64_t world : {2, 3}) expect_success("shared rows", world);
}

TEST(RowShares, ScalesOfSeveralRowsAreNotShared) {
  LinearRecipe tiles = *find_linear_recipe("fp8_blockwise");
  tiles.x_forward = tiles.w_forward;
  EXPECT_FALSE(can_share_rows(tiles));
  LinearRecipe ternary = *find_linear_recipe("bitnet");
  ternary.x_forward = ternary.w_forward;
  EXPECT_FALSE(can_share_rows(ternary));
}

// Training steps are the same bits with and without parallelism.enable_async_tensor_parallel.
const std::vector<std::string> kFull = {"--activation_checkpoint.mode=full"},
                               kOp = {"--activation_checkpoint.mode=selective", "--activation_checkpoint.selective_ac_option=op"};

void expect_equal_steps(const Rank& rank, const std::string& family, std::vector<std::string> options,
                        const std::vector<std::string>& more = {}) {
  options.insert(options.end(), more.begin(), more.end());
  const auto model = model_options(family, {{"dim", int64_t{256}},
                                            {"n_heads", int64_t{4}},
                                            {"n_kv_heads", int64_t{4}},
                                            {"n_layers", int64_t{2}},
                                            {"head_dim", int64_t{64}},
                                            {"ffn_dim", int64_t{512}},
                                            {"vocab_size", int64_t{257}}});
  options.insert(options.end(), model.begin(), model.end());
  const auto run = [&](const char* async) {
    const Layout layout{"async", {fmt::format("--parallelism.tensor_parallel_degree={}", rank.world), async}};
    return together(rank, layout, layout.together(options, rank.world), 2, at::kCPU);
  };
  const Results before = run("--parallelism.enable_async_tensor_parallel=false"),
                beside = run("--parallelism.enable_async_tensor_parallel");
  for (size_t i = 0; i < before.size(); ++i) {
    const StepResult &a = before[i], &b = beside[i];
    check(b.updated && a.loss_sum == b.loss_sum && a.grad_norm == b.grad_norm,
          "{} with {}: step {} has a loss of {} and a gradient norm of {}, beside products {} and {}", family, options.front(), i + 1,
          a.loss_sum, a.grad_norm, b.loss_sum, b.grad_norm);
  }
}

const comm::Ranks kSteps("steps in parts", [](const Rank& rank) {
  be_quiet();
  expect_equal_steps(rank, "llama3", kFloat32);
  expect_equal_steps(rank, "llama3", recipe_options("fp8_tensorwise"), kOp);
});
TEST(RowShares, StepsInPartsAreEqual) { expect_success("steps in parts", 2); }

const comm::Ranks kMoreSteps("more steps in parts", [](const Rank& rank) {
  be_quiet();
  for (const char* scheme : {"none", "fp8_tensorwise", "fp8_rowwise", "mxfp8_e4m3", "nvfp4", "int8"}) {
    for (const auto& more : {std::vector<std::string>(), kFull, kOp}) expect_equal_steps(rank, "llama3", recipe_options(scheme), more);
  }
  if (rank.world > 2) return;
  for (const char* family : {"deepseek_v3", "gpt_oss", "qwen2"}) {
    expect_equal_steps(rank, family, kFloat32);
    expect_equal_steps(rank, family, recipe_options("fp8_rowwise"), kFull);
  }
});
TEST(RowSharesDistributed, StepsInPartsAreEqual) {
  for (const int64_t world : {2, 4}) expect_success("more steps in parts", world);
}

}  // namespace
}  // namespace halftone
