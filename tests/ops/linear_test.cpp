#include "halftone/ops/linear.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <array>
#include <map>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/ops/product.h"
#include "halftone/ops/weight_source.h"
#include "ops/recipe_reference.h"
#include "ops/test_device.h"

namespace halftone {
namespace {

double sqnr(const at::Tensor& reference, const at::Tensor& y) {
  const double error = (reference.to(at::kDouble) - y.to(at::kDouble)).norm().item<double>();
  return error == 0 ? 1e9 : 20 * std::log10(reference.to(at::kDouble).norm().item<double>() / error);
}

// Two adjacent weights [N_i, K], as w1 | w3 are in a flat buffer.
struct Fixture {
  Weight a, b;
  at::Tensor values, grads;
  FusedLinears fused;
  Fixture(int64_t k, int64_t n0, int64_t n1, at::ScalarType type, const LinearRecipe& recipe) {
    values = at::randn({n0 + n1, k}).div_(std::sqrt(static_cast<double>(k))).to(type).to(test_device());
    grads = at::zeros({n0 + n1, k}, values.options().dtype(at::kFloat));
    int64_t row = 0;
    for (auto [w, n] : {std::pair<Weight*, int64_t>{&a, n0}, {&b, n1}}) {
      w->name = fmt::format("layers.0.w{}.weight", row);
      w->value = values.narrow(0, row, n).detach().set_requires_grad(true);
      w->grad = grads.narrow(0, row, n);
      row += n;
    }
    fused.weights = {&a, &b}, fused.recipe = recipe;
  }
};

LinearRecipe recipe_named(const char* name, bool stochastic = false) {
  LinearRecipe r = find_linear_recipe(name).value();
  if (stochastic) {
    for (OperandSpec* o : {&r.x_forward, &r.w_forward, &r.dy_dgrad, &r.w_dgrad, &r.dy_wgrad, &r.x_wgrad}) o->stochastic = true;
  }
  return r;
}

at::Tensor normal(at::IntArrayRef shape, at::ScalarType type = at::kFloat) { return at::randn(shape).to(type).to(test_device()); }

// Both weights against their definition: the same operands bit for bit, GEMMs in another summation order. `fp8`: the bar of fp8 tensor
// cores with fast accumulation (numerics.md 13.1) on a CUDA device.
void compare(const LinearRecipe& recipe, at::ScalarType type, int64_t tokens, int64_t k, int64_t n0, int64_t n1, double bar,
             bool fp8 = false) {
  if (fp8 && test_device().is_cuda()) bar = 40;
  at::manual_seed(1);
  test_step() = {17, 3, 64};
  Fixture f(k, n0, n1, type, recipe);
  const at::Tensor x = normal({tokens, k}, type).set_requires_grad(true), dy = normal({tokens, n0 + n1}, type);
  at::AutoGradMode grad(true);
  at::Tensor y = linear(x, f.fused, test_step());
  torch::autograd::backward({y}, {dy});
  at::NoGradGuard no_grad;
  at::Tensor dx;
  int64_t row = 0;
  for (const Weight* w : f.fused.weights) {
    const int64_t n = w->value.size(0);
    const ReferenceLinear e = reference_linear(recipe, x.detach(), w->value.detach(), dy.narrow(1, row, n), w->name, nullptr, f.a.name);
    EXPECT_GE(sqnr(e.y, y.narrow(1, row, n).cpu()), bar) << w->name;
    EXPECT_GE(sqnr(e.dw, w->grad.cpu()), bar) << w->name;
    dx = dx.defined() ? dx + e.dx : e.dx;
    row += n;
  }
  EXPECT_GE(sqnr(dx, x.grad().cpu()), bar);
}

class Linear : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(On, Linear, test_devices(), [](const auto& info) { return info.param; });

TEST_P(Linear, UnquantisedEqualsItsDefinition) {
  compare(recipe_named("none"), at::kFloat, 48, 64, 32, 80, 110);
  compare(recipe_named("none"), at::kFloat, 33, 40, 24, 8, 110);  // nothing a multiple of a panel
  compare(recipe_named("none"), at::kBFloat16, 48, 64, 32, 80, 45);
}

TEST_P(Linear, Int8EqualsItsDefinition) {
  compare(recipe_named("int8"), at::kFloat, 48, 64, 32, 80, 110);
  compare(recipe_named("int8"), at::kBFloat16, 48, 64, 32, 80, 48);
}

TEST_P(Linear, StochasticInt8DrawsTheNumbersOfItsDefinition) { compare(recipe_named("int8", true), at::kFloat, 48, 64, 32, 80, 50); }

TEST_P(Linear, Fp8RowwiseEqualsItsDefinition) {
  compare(recipe_named("fp8_rowwise"), at::kFloat, 48, 64, 32, 80, 100, true);
  compare(recipe_named("fp8_rowwise"), at::kBFloat16, 48, 64, 32, 80, 48, true);
}

// Two-sided gates of numerics.md 13.3 on data R at M = K = N = 512: too good means that an operand was not quantised.
void gate(const char* name, double y_db, double dx_db, double dw_db) {
  at::manual_seed(1234);
  test_step() = {};
  const int64_t n = 512;
  Fixture f(n, n / 2, n / 2, at::kBFloat16, recipe_named(name));
  f.values.copy_(normal({n, n}));
  const at::Tensor x = normal({n, n}, at::kBFloat16).set_requires_grad(true), dy = normal({n, n}, at::kBFloat16);
  at::AutoGradMode grad(true);
  at::Tensor y = linear(x, f.fused, test_step());
  torch::autograd::backward({y}, {dy});
  at::NoGradGuard no_grad;
  const at::Tensor xd = x.detach().to(at::kDouble), wd = f.values.to(at::kDouble), dyd = dy.to(at::kDouble);
  for (const auto& [reference, result, bar] :
       {std::tuple{at::mm(xd, wd.t()), y.detach(), y_db}, {at::mm(dyd, wd), x.grad(), dx_db}, {at::mm(dyd.t(), xd), f.grads, dw_db}}) {
    const double db = sqnr(reference, result);
    EXPECT_GT(db, bar - 0.8) << name;
    EXPECT_LT(db, bar + 1.2) << name;
  }
}

TEST_P(Linear, AccuracyIsThatOfTheFormat) {
  gate("int8", 38.9, 38.9, 38.9);
  gate("fp8_rowwise", 28.45, 28.45, 28.45);
}

TEST_P(Linear, GradientsAccumulateAndWeightsAreRequantisedWhenTheyChange) {
  at::manual_seed(2);
  Fixture f(32, 16, 16, at::kFloat, recipe_named("int8"));
  const at::Tensor x = normal({16, 32}).set_requires_grad(true), dy = normal({16, 32});
  at::AutoGradMode grad(true);
  const auto run = [&] { torch::autograd::backward({linear(x, f.fused, test_step())}, {dy}); };
  run();
  const at::Tensor once = f.grads.clone();
  run();
  EXPECT_TRUE(at::allclose(f.grads, once * 2));
  at::NoGradGuard no_grad;
  const at::Tensor before = linear(x.detach(), f.fused, test_step());
  f.values.mul_(2);
  EXPECT_TRUE(at::equal(linear(x.detach(), f.fused, test_step()), before)) << "same version: cached codes";
  ++f.a.version, ++f.b.version;
  EXPECT_TRUE(at::allclose(linear(x.detach(), f.fused, test_step()), before * 2));
}

// Recipes that cover the code paths of backward: siblings joined or not, draws, copies from one read, rotations, stored codes.
std::vector<LinearRecipe> backward_recipes() {
  return {recipe_named("none"),           recipe_named("int8"),  recipe_named("int8", true), recipe_named("fp8_rowwise"),
          recipe_named("fp8_tensorwise"), recipe_named("mxfp4"), recipe_named("bitnet")};
}

struct Deterministic {
  Deterministic() { at::globalContext().setDeterministicAlgorithms(true, true); }
  ~Deterministic() { at::globalContext().setDeterministicAlgorithms(false, false); }
};

LinearCall keeping_call(const at::Tensor& x, FusedLinears& fused) {
  LinearOptions options;
  options.step = test_step(), options.keep = true, options.out = x.scalar_type();
  return linear_call(x, fused, options);
}

TEST_P(Linear, WgradMayComeAnyTimeAfterDgrad) {
  const Deterministic same_bits;
  for (const LinearRecipe& recipe : backward_recipes()) {
    at::manual_seed(5);
    test_step() = {17, 3, 64};
    Fixture f(64, 32, 96, at::kBFloat16, recipe);
    const at::Tensor x = normal({64, 64}, at::kBFloat16), dy = normal({64, 128}, at::kBFloat16);
    const at::Tensor dx = keeping_call(x, f.fused).backward(dy, true), dw = f.grads.clone();
    f.grads.zero_();
    const LinearCall first = keeping_call(x, f.fused), second = keeping_call(x * 2, f.fused);
    EXPECT_TRUE(at::equal(first.dgrad(dy, true), dx)) << recipe.name;
    second.dgrad(dy, true);  // of another micro-batch
    EXPECT_FALSE(f.grads.any().item<bool>()) << recipe.name;
    first.wgrad();
    EXPECT_TRUE(at::equal(f.grads, dw)) << recipe.name;
    first.wgrad();  // nothing left to add
    EXPECT_TRUE(at::equal(f.grads, dw)) << recipe.name;
    f.grads.zero_();
    EXPECT_FALSE(first.backward(dy, false).defined());
    EXPECT_TRUE(at::equal(f.grads, dw)) << recipe.name << ", without dX";
  }
}

TEST_P(Linear, SiblingsComputeWhatEachWouldAlone) {
  const Deterministic same_bits;
  for (const char* name : {"none", "int8", "fp8_rowwise", "int4"}) {
    for (const int64_t n0 : {32, 24}) {                   // full panels or not
      if (n0 == 24 && test_device().is_cuda()) continue;  // not a supported size for 8-bit GEMMs there
      at::manual_seed(6);
      Fixture f(64, n0, 96, at::kBFloat16, recipe_named(name));
      const at::Tensor x = normal({48, 64}, at::kBFloat16), dy = normal({48, n0 + 96}, at::kBFloat16);
      const LinearCall both = keeping_call(x, f.fused);
      both.backward(dy, true);
      const at::Tensor dw = f.grads.clone();
      f.grads.zero_();
      std::vector<at::Tensor> y;
      int64_t row = 0;
      for (Weight* w : f.fused.weights) {
        FusedLinears alone;
        alone.weights = {w}, alone.recipe = f.fused.recipe;
        const LinearCall call = keeping_call(x, alone);
        call.backward(dy.narrow(1, row, w->value.size(0)), true);
        y.push_back(call.y);
        row += w->value.size(0);
      }
      EXPECT_TRUE(at::equal(both.y, at::cat(y, 1))) << name << ", " << n0;
      EXPECT_TRUE(at::equal(dw, f.grads)) << name << ", " << n0;
    }
  }
}

// A weight source that gathers a weight from two halves.
struct Gathered final : WeightSource {
  std::map<const Weight*, std::array<at::Tensor, 2>> shards;
  mutable int reads = 0;
  at::Tensor gather(const Weight* w) const {
    ++reads;
    return at::cat({shards.at(w)[0], shards.at(w)[1]});
  }
  OperandCopies copies(const Weight& w, const CopyRequest* row, const CopyRequest* transposed, at::ScalarType,
                       at::Tensor* found) const override {
    return quantize(gather(&w), row, transposed, {}, false, found);
  }
  at::Tensor whole(std::span<Weight* const>) const override { return {}; }
};

TEST_P(Linear, WeightsMayComeFromAnotherStore) {
  const Deterministic same_bits;
  for (const LinearRecipe& recipe : backward_recipes()) {
    at::manual_seed(7);
    Fixture f(64, 32, 96, at::kBFloat16, recipe), g(64, 32, 96, at::kBFloat16, recipe);
    Gathered source;
    for (size_t i = 0; i < 2; ++i) {
      const at::Tensor value = f.fused.weights[i]->value.detach();
      const int64_t half = value.size(0) / 2;
      source.shards[g.fused.weights[i]] = {value.narrow(0, 0, half), value.narrow(0, half, half)};
    }
    g.values.fill_(NAN), g.fused.source = &source;
    const at::Tensor x = normal({64, 64}, at::kBFloat16), dy = normal({64, 128}, at::kBFloat16);
    const LinearCall expected = keeping_call(x, f.fused), found = keeping_call(x, g.fused);
    const at::Tensor dx = expected.backward(dy, true);
    EXPECT_TRUE(at::equal(found.y, expected.y)) << recipe.name;
    EXPECT_GE(sqnr(dx, found.backward(dy, true)), 45) << recipe.name;  // unquantised: two roundings instead of one
    EXPECT_TRUE(at::equal(f.grads, g.grads)) << recipe.name;
    const int reads = source.reads;
    keeping_call(x, g.fused).backward(dy, true);
    EXPECT_EQ(source.reads, reads) << recipe.name << ": once a version";
  }
}

// Recipes whose GEMMs only read quantised copies of the weight.
std::vector<LinearRecipe> recipes_of_codes_alone() {
  std::vector<LinearRecipe> recipes;
  for (const LinearRecipe& r : kLinearRecipes) {
    if (r.reads_weight_codes_alone()) recipes.push_back(r);
  }
  recipes.push_back(recipe_named("int8", true));
  return recipes;
}

// A float32 master without a compute copy: quantisers round it themselves.
TEST_P(Linear, AMasterCountsAsItsRoundedCopy) {
  const Deterministic same_bits;
  EXPECT_FALSE(recipe_named("none").reads_weight_codes_alone());
  EXPECT_FALSE(recipe_named("int8_weight").reads_weight_codes_alone());
  for (const LinearRecipe& recipe : recipes_of_codes_alone()) {
    at::manual_seed(9);
    Fixture f(256, 128, 256, at::kBFloat16, recipe), g(256, 128, 256, at::kBFloat16, recipe);
    const at::Tensor masters = normal({384, 256}) * 0.1;
    f.values.copy_(masters), g.values.fill_(NAN);
    EXPECT_FALSE(at::equal(f.values.to(at::kFloat), masters));
    g.a.master = masters.narrow(0, 0, 128), g.b.master = masters.narrow(0, 128, 256);
    const at::Tensor x = normal({128, 256}, at::kBFloat16), dy = normal({128, 384}, at::kBFloat16);
    const LinearCall expected = keeping_call(x, f.fused), found = keeping_call(x, g.fused);
    EXPECT_TRUE(at::equal(found.y, expected.y)) << recipe.name;
    EXPECT_TRUE(at::equal(found.backward(dy, true), expected.backward(dy, true))) << recipe.name;
    EXPECT_TRUE(at::equal(g.grads, f.grads)) << recipe.name;
    EXPECT_FALSE(f.grads.isnan().any().item<bool>()) << recipe.name;
  }
}

// Records the memory of all copies that it returned.
struct Counting final : WeightSource {
  mutable int reads = 0;
  mutable std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> given;  // except those that right_operand converts to another form
  OperandCopies copies(const Weight& w, const CopyRequest* row, const CopyRequest* transposed, at::ScalarType hp,
                       at::Tensor* found) const override {
    ++reads;
    OperandCopies made = WeightSource::copies(w, row, transposed, hp, found);
    for (const Operand& o : {made.row, made.transposed}) {
      for (const at::Tensor& t : {o.codes, o.packed, o.values, o.panels}) {
        if (t.defined() && !t.is_alias_of(w.value)) given.push_back(t.storage().getWeakStorageImpl());
      }
    }
    return made;
  }
  int64_t alive() const {
    return std::count_if(given.begin(), given.end(), [](const auto& storage) { return !storage.expired(); });
  }
};

// On a GPU, copies of a step's last pass are freed once read, together with those of earlier passes; the results are the same, also for a
// repeated pass.
TEST_P(Linear, CopiesOfTheLastPassGoWithTheirUse) {
  const Deterministic same_bits;
  const bool cuda = test_device().is_cuda();
  std::vector<LinearRecipe> recipes = recipes_of_codes_alone();
  recipes.push_back(recipe_named("mxfp4")), recipes.back().dge = true;
  for (const LinearRecipe& recipe : recipes) {
    at::manual_seed(10);
    test_step() = {17, 3, 64};
    Fixture f(256, 128, 256, at::kBFloat16, recipe), g(256, 128, 256, at::kBFloat16, recipe);
    g.values.copy_(f.values);
    Counting source;
    g.fused.source = &source;
    const at::Tensor x = normal({128, 256}, at::kBFloat16), dy = normal({128, 384}, at::kBFloat16);
    const auto same_pass = [&](bool last, const char* what) {
      test_step().last_pass = false;
      const LinearCall expected = keeping_call(x, f.fused);
      const at::Tensor dx = expected.backward(dy, true);
      test_step().last_pass = last;
      const LinearCall found = keeping_call(x, g.fused);
      EXPECT_TRUE(at::equal(found.y, expected.y)) << recipe.name << ", " << what;
      EXPECT_TRUE(at::equal(found.backward(dy, true), dx)) << recipe.name << ", " << what;
      EXPECT_TRUE(at::equal(g.grads, f.grads)) << recipe.name << ", " << what;
    };
    const bool goes = cuda && !recipe.dge;
    same_pass(true, "the only pass");
    EXPECT_TRUE(!goes || source.alive() == 0) << recipe.name;
    const int once = source.reads;
    same_pass(true, "again");
    EXPECT_EQ(source.reads, goes ? 2 * once : once) << recipe.name;
    same_pass(false, "a pass before others");
    EXPECT_TRUE(!goes || recipe.name != "fp8_tensorwise" || source.alive() == 4);
    const int before = source.reads;
    same_pass(true, "the last of two");
    EXPECT_EQ(source.reads, before) << recipe.name << ": copies of the pass before";
    EXPECT_TRUE(!goes || source.alive() == 0) << recipe.name;
  }
  test_step().last_pass = false;
}

TEST(LinearOnCpu, LogsHowItsProductsRun) {
  at::manual_seed(8);
  test_device() = at::kCPU;
  Fixture f(32, 16, 48, at::kBFloat16, recipe_named("int8"));
  set_log_level(LogLevel::debug);
  testing::internal::CaptureStdout();
  keeping_call(normal({16, 32}, at::kBFloat16), f.fused).backward(normal({16, 64}, at::kBFloat16), true);
  keeping_call(normal({16, 32}, at::kBFloat16), f.fused);
  const std::string log = testing::internal::GetCapturedStdout();
  set_log_level(LogLevel::info);
  for (const char* line :
       {"layers.0.w0.weight and siblings: Y is int8 row [16 x 32] as codes by int8 row [64 x 32] as int8 panels\n",
        "layers.0.w0.weight and siblings: dX is int8 row [16 x 16] as codes by int8 row [32 x 16] as int8 panels\n",
        "layers.0.w0.weight and siblings: dW is int8 row [64 x 16] as int8 panels by int8 row [32 x 16] as int8 panels\n"})
    EXPECT_NE(log.find(line), std::string::npos) << line << log;
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 3) << "once a layer";
  const Operand a = plain_operand(normal({16, 32}), false), b = plain_operand(normal({32, 8}), true);
  try {
    multiply(a, b, at::zeros({16, 9}), {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "product of unquantised [16 x 32] as plain values by unquantised [8 x 32] as plain values: expected an "
                 "output of 16 x 8, found 16 x 9");
  }
}

TEST_P(Linear, WrongWidthIsAnError) {
  Fixture f(32, 16, 16, at::kFloat, recipe_named("none"));
  EXPECT_THROW(linear(at::zeros({4, 31}, f.values.options()), f.fused, test_step()), Error);
}

}  // namespace
}  // namespace halftone
