#include "halftone/ops/product_plan.h"

#include <gtest/gtest.h>

#include <array>

namespace halftone::product_plan_test {
namespace {

constexpr std::array kMachines = {Hardware::cpu_vnni, Hardware::sm_90, Hardware::sm_100};

LinearRecipe recipe(std::string_view name) { return *find_linear_recipe(name); }
LinearPlan plan(std::string_view name, const LinearUse& use) { return plan_linear(recipe(name), use); }
std::array<const ProductPlan*, 3> products(const LinearPlan& p) { return {&p.forward, &p.dgrad, &p.wgrad}; }
int outputs(const CopyRequest& c) { return c.codes + c.packed + c.panels + (c.form != ValueForm::none); }

TEST(ProductPlan, PrintsOneLinePerProduct) {
  struct Line {
    std::string_view recipe;
    Hardware hardware;
    LinearProduct product;
    std::string_view text;
  };
  using enum LinearProduct;
  for (const Line& line : {
           Line{"none", Hardware::sm_90, forward,
                "Y is unquantised as plain values by unquantised as plain values; X along rows (x.fwd), until its product; W along rows "
                "(w.fwd), until the weights change"},
           {"none", Hardware::cpu_vnni, wgrad,
            "dW is unquantised as plain values by unquantised as plain values; dY along columns (dy.wgrad), until wgrad; X along columns "
            "(x.wgrad), until wgrad; siblings joined"},
           {"int8", Hardware::cpu_vnni, forward,
            "Y is int8 row as codes by int8 row as int8 panels; X along rows (x.fwd), until its product; W along rows (w.fwd), until the "
            "weights change; siblings joined"},
           {"int8", Hardware::cpu_vnni, dgrad,
            "dX is int8 row as codes by int8 row as int8 panels; dY along rows (dy.dgrad), until its product; W along columns (w.dgrad), "
            "until the weights change"},
           {"int8", Hardware::cpu_vnni, wgrad,
            "dW is int8 row as int8 panels by int8 row as int8 panels; dY along columns (dy.wgrad), read with its other copy, until wgrad; "
            "X along columns (x.wgrad), read with its other copy, until wgrad; siblings joined"},
           {"fp8_rowwise", Hardware::sm_90, dgrad,
            "dX is e4m3 row p2 as codes by e4m3 row p2 as codes; dY along rows (dy.dgrad), until its product; W along columns (w.dgrad), "
            "read with its other copy, until the weights change"},
           {"fp8_rowwise", Hardware::sm_100, forward,
            "Y is e4m3 row p2 as bf16 values by e4m3 row p2 as bf16 values; X along rows (x.fwd), until its product; W along rows (w.fwd), "
            "until the weights change"},
           {"mxfp4", Hardware::sm_90, wgrad,
            "dW is e2m1 1x32 e8m0 adaptive H32 SR as folded e4m3 codes by e2m1 1x32 e8m0 adaptive H32 as folded e4m3 codes; dY along "
            "columns (dy.wgrad), read with its other copy, rotated, until wgrad; X along columns (x.wgrad), read with its other copy, "
            "rotated, until wgrad"},
           {"mxfp4", Hardware::sm_100, wgrad,
            "dW is e2m1 1x32 e8m0 adaptive H32 SR as bf16 values by e2m1 1x32 e8m0 adaptive H32 as packed codes; dY along columns "
            "(dy.wgrad), read with its other copy, rotated, until wgrad; X along columns (x.wgrad), read with its other copy, rotated, "
            "until wgrad"},
           {"fp8_tensorwise", Hardware::cpu_vnni, dgrad,
            "dX is e5m2 tensor as bf16 values by e4m3 tensor as bf16 panels; dY along rows (dy.dgrad), until its product; W along columns "
            "(w.fwd), read with its other copy, until the weights change"},
           {"int8_weight", Hardware::sm_90, dgrad,
            "dX is unquantised as plain values by int8 row stored as bf16 values; dY along rows (dy.dgrad), until its product; W along "
            "columns (w.dgrad), read with its other copy, until the weights change; dY times stored scales"},
           {"bitnet", Hardware::cpu_vnni, wgrad,
            "dW is unquantised as plain values by int8 row as codes; dY along columns (dy.wgrad), until wgrad; X along columns (x.fwd), "
            "from the forward codes, until wgrad"},
       }) {
    const LinearPlan p = plan(line.recipe, {.hardware = line.hardware});
    EXPECT_EQ(fmt::format("{}", *products(p)[static_cast<size_t>(line.product)]), line.text) << line.recipe;
  }
}

TEST(ProductPlan, OperandsTextTakesSizes) {
  EXPECT_EQ(operands_text(plan("int8", {}).wgrad, 64, 32, 16),
            "dW is int8 row [64 x 16] as int8 panels by int8 row [32 x 16] as int8 panels");
}

// Every recipe of the table on a CPU, a Hopper and a Blackwell GPU.
TEST(ProductPlan, EveryOperandIsReadInOneForm) {
  for (const LinearRecipe& r : kLinearRecipes) {
    for (const Hardware h : kMachines) {
      for (const bool emulate : {false, true}) {
        SCOPED_TRACE(fmt::format("{} on {}{}", r.name, name(h), emulate ? ", emulated" : ""));
        LinearRecipe asked = r;
        asked.emulate = emulate;
        const LinearPlan p = plan_linear(asked, {.hardware = h});
        const std::array specs = {r.x_forward, r.w_forward, r.dy_dgrad, r.w_dgrad, r.dy_wgrad, r.x_wgrad};
        for (size_t i = 0; i < specs.size(); ++i) {
          const ProductPlan& product = *products(p)[i / 2];
          const OperandPlan& o = i % 2 == 0 ? product.left : product.right;
          EXPECT_EQ(o.copy.spec, specs[i].quantized() ? specs[i] : OperandSpec()) << i;
          EXPECT_EQ(outputs(o.copy), specs[i].quantized() ? 1 : 0) << i;
          EXPECT_TRUE(is_cpu(h) || !o.copy.panels) << i;
          EXPECT_EQ(o.columns, i >= 3) << i;  // dgrad contracts N, wgrad the tokens
          EXPECT_EQ(o.copy.multiple, specs[i].quantized() && !is_cpu(h) ? 16 : 1) << i;
          EXPECT_EQ(product.emulate, emulate);
        }
        for (const ProductPlan* product : products(p)) {
          EXPECT_EQ(product->units.panels, is_cpu(h));
          EXPECT_TRUE(!emulate || (product->units.path == Path::dequantized && product->units.type == DType::f32));
          const OperandSpec &a = product->left.copy.spec, &b = product->right.copy.spec;
          const bool by_table = !emulate && !is_cpu(h) && a.quantized() && b.quantized();
          EXPECT_TRUE(!by_table || product->units.path == product_support(a, b, h).path);
          // Both operands of one product are rotated by the same signs, or neither is.
          EXPECT_EQ(product->left.copy.spec.hadamard, product->right.copy.spec.hadamard);
        }
      }
    }
  }
}

TEST(ProductPlan, UnquantisedNumbersAreTheWiderOfTheTwo) {
  const LinearPlan mixed = plan("none", {.hardware = Hardware::sm_90, .x = DType::f32, .w = DType::bf16, .dy = DType::bf16});
  EXPECT_EQ(mixed.forward.units.type, DType::f32);
  EXPECT_EQ(mixed.dgrad.right.numbers, DType::f32);  // dY is expected in X's dtype
  EXPECT_EQ(mixed.dgrad.left.numbers, DType::bf16);
  EXPECT_EQ(mixed.wgrad.units.type, DType::f32);
  EXPECT_EQ(plan("int8_weight", {.hardware = Hardware::sm_90, .w = DType::f32}).forward.units.type, DType::bf16);
}

TEST(ProductPlan, LastPassOnAGpuFreesTheWeightsCopies) {
  for (const LinearRecipe& r : kLinearRecipes) {
    for (const Hardware h : kMachines) {
      const LinearPlan p = plan_linear(r, {.hardware = h, .last_pass = true});
      const Lifetime expected = is_cpu(h) ? Lifetime::version : Lifetime::product;
      EXPECT_EQ(p.forward.right.life, expected) << r.name;
      EXPECT_EQ(p.dgrad.right.life, expected) << r.name;
      EXPECT_TRUE(is_cpu(h) || p.dgrad.right.origin == Origin::own_read) << r.name << ": made when activations have been freed";
    }
  }
  LinearRecipe slopes = recipe("mxfp4");
  slopes.dge = true;
  const LinearPlan p = plan_linear(slopes, {.hardware = Hardware::sm_90, .last_pass = true});
  EXPECT_EQ(p.forward.right.life, Lifetime::version) << "wgrad reads the forward copy again";
  EXPECT_TRUE(p.wgrad.slopes && p.forward.right.copy.block_scales);
}

TEST(ProductPlan, XIsKeptOrReadAgain) {
  for (const Hardware h : kMachines) {
    EXPECT_EQ(plan("int8", {.hardware = h}).wgrad.right.life, Lifetime::wgrad);
    const OperandPlan again = plan("int4", {.hardware = h, .x_again = true}).wgrad.right;
    EXPECT_EQ(again.origin, Origin::read_again);
    EXPECT_EQ(again.life, Lifetime::product);
    EXPECT_TRUE(again.copy.codes) << "not packed: it is not held";
    EXPECT_TRUE(plan("int4", {.hardware = h}).wgrad.right.copy.packed);
    EXPECT_TRUE(plan("int4", {.hardware = h, .tokens = 33}).wgrad.right.copy.codes) << "an odd number of codes fills no bytes";
    EXPECT_TRUE(plan("mxfp4", {.hardware = Hardware::sm_100, .tokens = 33}).wgrad.right.copy.packed) << "a rotation pads it";
    // bitnet reads the forward codes even if X can be read again.
    const LinearPlan bitnet = plan("bitnet", {.hardware = h, .x_again = true});
    EXPECT_EQ(bitnet.wgrad.right.origin, Origin::forward_codes);
    EXPECT_EQ(bitnet.forward.left.life, Lifetime::wgrad);
    EXPECT_EQ(plan("bitnet", {.hardware = h, .keep = false}).forward.left.life, Lifetime::product);
  }
}

TEST(ProductPlan, SiblingsJoinOnTheCpuAlone) {
  for (const LinearRecipe& r : kLinearRecipes) {
    const bool joins = r.name == "none" || r.name == "int8" || r.name == "fp8_rowwise";
    EXPECT_EQ(plan_linear(r, {}).forward.joined, joins) << r.name;
    for (const Hardware h : {Hardware::sm_90, Hardware::sm_100}) {
      const LinearPlan p = plan_linear(r, {.hardware = h});
      EXPECT_FALSE(p.forward.joined || p.dgrad.joined || p.wgrad.joined) << r.name;
    }
  }
  EXPECT_TRUE(plan("none", {}).dgrad.joined);
  EXPECT_FALSE(plan("int8", {}).dgrad.joined) << "each dY has scales of its own";
  EXPECT_FALSE(plan("int8", {.biases = true}).forward.joined);
  EXPECT_FALSE(plan("int8", {.siblings_match = false}).forward.joined);
  for (const LinearUse& use : {LinearUse{.whole_panels = false}, LinearUse{.keeps_results = true}}) {
    EXPECT_FALSE(plan("int8", use).forward.joined);
    EXPECT_TRUE(plan("int8", use).wgrad.joined);
  }
  LinearRecipe stochastic = recipe("int8");
  stochastic.dy_wgrad.stochastic = true;
  EXPECT_FALSE(plan_linear(stochastic, {}).wgrad.joined);
}

TEST(ProductPlan, RanksSendCodesWhereTheProductReadsThem) {
  for (const Hardware h : kMachines) {
    const LinearPlan in = plan("fp8_rowwise", {.hardware = h, .gathers = true, .in_parts = true});
    EXPECT_EQ(in.forward.left.sent, Sent::codes);
    EXPECT_TRUE(in.forward.left.copy.codes && in.forward.left.copy.form == ValueForm::none);
    EXPECT_TRUE(in.forward.in_parts && in.dgrad.in_parts && !in.wgrad.in_parts);
    EXPECT_EQ(in.wgrad.right.origin, Origin::read_again) << "X is gathered again, its rows have been sent as codes";
    EXPECT_EQ(in.wgrad.right.sent, Sent::values);
    const LinearPlan plain = plan("none", {.hardware = h, .gathers = true});
    EXPECT_EQ(plain.forward.left.sent, Sent::values);
    EXPECT_EQ(plain.wgrad.right.origin, Origin::own_read) << "the gathered X is kept";
    EXPECT_EQ(plan("bitnet", {.hardware = h, .gathers = true}).wgrad.right.origin, Origin::forward_codes);
    const LinearPlan out = plan("fp8_rowwise", {.hardware = h, .scatters = true});
    EXPECT_EQ(out.dgrad.left.sent, Sent::values);
    EXPECT_EQ(out.wgrad.left.origin, Origin::shared_read);
    EXPECT_EQ(plan("fp8_rowwise", {.hardware = h, .scatters = true, .in_parts = true}).wgrad.left.origin, Origin::own_read)
        << "rows are quantised as they arrive, columns once all have";
  }
  EXPECT_TRUE(plan("int4", {.hardware = Hardware::sm_90, .gathers = true}).forward.left.copy.packed);
  const CopyRequest folded = plan("mxfp4", {.hardware = Hardware::sm_90, .gathers = true}).forward.left.copy;
  EXPECT_EQ(folded.form, ValueForm::fold_e4m3);
  EXPECT_TRUE(plan("mxfp8_e4m3", {.hardware = Hardware::sm_90, .gathers = true}).forward.left.copy.block_scales);
}

// The weights of all experts on a GPU: both copies from one read, except views of the current memory.
TEST(ProductPlan, ExpertsKeepWhatIsQuantised) {
  for (const LinearRecipe& r : kLinearRecipes) {
    const LinearPlan p = plan_linear(r, {.hardware = Hardware::sm_90, .grouped = true, .last_pass = true});
    const bool both = r.w_forward.quantized() && r.w_dgrad.quantized();
    EXPECT_EQ(p.forward.right.life, both ? Lifetime::version : Lifetime::product) << r.name;
    EXPECT_EQ(p.dgrad.right.origin, both ? Origin::shared_read : Origin::own_read) << r.name;
    EXPECT_FALSE(p.forward.right.packed_once || p.dgrad.right.packed_once) << r.name;
  }
}

TEST(ProductPlan, RolesOfSharedCodes) {
  const LinearPlan shared = plan("fp8_tensorwise", {});
  EXPECT_STREQ(shared.dgrad.right.role, "w.fwd");
  EXPECT_STREQ(shared.wgrad.left.role, "dy.dgrad");
  EXPECT_STREQ(shared.wgrad.right.role, "x.fwd");
  const LinearPlan own = plan("int8", {});
  EXPECT_STREQ(own.dgrad.right.role, "w.dgrad");
  EXPECT_STREQ(own.wgrad.left.role, "dy.wgrad");
  EXPECT_STREQ(own.wgrad.right.role, "x.wgrad");
}

// Bytes per element that the memory estimate reads.
TEST(ProductPlan, BytesOfCopies) {
  const LinearPlan fp4 = plan("mxfp4", {.hardware = Hardware::sm_100}), folded = plan("mxfp4", {.hardware = Hardware::sm_90});
  EXPECT_EQ(copy_bytes(fp4.wgrad.right.copy, Hardware::sm_100), 0.5 + 1.0 / 32);
  EXPECT_EQ(copy_bytes(fp4.forward.left.copy, Hardware::sm_100), 2);  // values include the scales
  EXPECT_EQ(copy_bytes(fp4.forward.left.copy, Hardware::cpu_vnni), 2 + 1.0 / 32);
  EXPECT_EQ(right_operand_bytes(fp4.forward), 2);
  EXPECT_EQ(right_operand_bytes(folded.forward), 1);
  const LinearPlan none = plan("none", {.hardware = Hardware::sm_90}), cpu = plan("none", {});
  EXPECT_EQ(copy_bytes(none.forward.left.copy, Hardware::sm_90), 0);
  EXPECT_EQ(right_operand_bytes(none.forward), 0);
  EXPECT_EQ(right_operand_bytes(cpu.forward), 2);
  EXPECT_EQ(right_operand_bytes(plan("int8", {}).forward), 1);
  EXPECT_EQ(copy_bytes(plan("int8", {}).wgrad.right.copy, Hardware::cpu_vnni), 1);
}

}  // namespace
}  // namespace halftone::product_plan_test
