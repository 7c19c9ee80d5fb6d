#include "halftone/gemm/product_operand.h"

#include <gtest/gtest.h>

namespace halftone::gemm {
namespace {

QuantizedCopy copy(const OperandSpec& spec, ValueForm form = ValueForm::none) {
  static uint8_t codes[1], values[1], macro[1];
  static float scales[1], outer[1], fold[1];
  QuantizedCopy c;
  c.spec = spec, c.form = form, c.codes = codes, c.values = values, c.macro = macro;
  c.scales = scales, c.outer = outer, c.fold_scale = fold;
  return c;
}
OperandSpec forward(const char* recipe, bool weight = false) {
  const auto r = find_linear_recipe(recipe);
  return weight ? r->w_forward : r->x_forward;
}

TEST(ProductOperand, ReadsWhatTheQuantiserWrites) {
  struct Case {
    QuantizedCopy from;
    Numbers numbers;
    Scales scales;
    bool values, outer;
  };
  for (const Case& c : {
           Case{copy(forward("fp8_tensorwise")), Numbers::e4m3, Scales::tensor, false, false},
           {copy(find_linear_recipe("fp8_tensorwise")->dy_dgrad), Numbers::e5m2, Scales::tensor, false, false},
           {copy(forward("fp8_rowwise")), Numbers::e4m3, Scales::row, false, false},
           {copy(forward("fp8_blockwise")), Numbers::e4m3, Scales::block128, false, false},
           {copy(forward("fp8_blockwise", true)), Numbers::e4m3, Scales::tile128, false, false},
           {copy(forward("fp8_blockwise"), ValueForm::f32), Numbers::f32, Scales::block128, true, false},
           {copy(forward("int8")), Numbers::s8, Scales::row, false, false},
           {copy(forward("int4")), Numbers::s8, Scales::row, false, false},
           {copy(forward("bitnet", true)), Numbers::s8, Scales::tensor, false, false},
           {copy(forward("int8_weight", true), ValueForm::bf16), Numbers::bf16, Scales::row, true, false},
           {copy(forward("mxfp8_e4m3"), ValueForm::bf16), Numbers::bf16, Scales::none, true, false},
           {copy(forward("mxfp4"), ValueForm::fold_e4m3), Numbers::e4m3, Scales::row, true, false},
           {copy(forward("mxfp4"), ValueForm::fold_e5m2), Numbers::e5m2, Scales::tensor, true, false},
           {copy(forward("mxfp4"), ValueForm::bf16), Numbers::bf16, Scales::none, true, false},
           {copy(forward("nvfp4"), ValueForm::bf16), Numbers::bf16, Scales::none, true, true},
           {copy(forward("mxint8"), ValueForm::bf16), Numbers::bf16, Scales::none, true, false},
           {copy(forward("nvint4", true), ValueForm::bf16), Numbers::bf16, Scales::none, true, true},
           {copy(forward("amdfp4", true), ValueForm::bf16), Numbers::bf16, Scales::none, true, true},
       }) {
    const ProductOperand x = product_operand(c.from);
    EXPECT_EQ(x.numbers, c.numbers);
    EXPECT_EQ(x.scales, c.scales);
    EXPECT_EQ(x.data, c.values ? c.from.values : static_cast<const void*>(c.from.codes));
    const bool folded = c.from.form == ValueForm::fold_e4m3 || c.from.form == ValueForm::fold_e5m2;
    if (c.scales != Scales::none) {
      EXPECT_EQ(x.scale, folded ? c.from.fold_scale : static_cast<const float*>(c.from.scales));
    }
    EXPECT_EQ(x.outer, c.outer ? c.from.outer : nullptr);
    EXPECT_EQ(x.macro, nullptr);
  }
}

TEST(ProductOperand, MacroBlocksFollowTheirGranularity) {
  OperandSpec x = forward("mxfp4"), w = x;
  x.two_level = w.two_level = TwoLevel::macro, w.granularity = Granularity::tile;
  EXPECT_FALSE(product_operand(copy(x, ValueForm::fold_e4m3)).macro_tiles);
  EXPECT_TRUE(product_operand(copy(w, ValueForm::fold_e4m3)).macro_tiles);
  EXPECT_NE(product_operand(copy(w, ValueForm::fold_e4m3)).macro, nullptr);
}

TEST(ProductOperand, CodesInBlocksThatNoProductReadsHaveNoData) {
  EXPECT_EQ(product_operand(copy(forward("mxfp8_e4m3"))).data, nullptr);
  EXPECT_EQ(product_operand(copy(forward("mxfp4"))).data, nullptr);
  EXPECT_EQ(product_operand(copy(forward("int4_weight", true))).data, nullptr);
}

}  // namespace
}  // namespace halftone::gemm
