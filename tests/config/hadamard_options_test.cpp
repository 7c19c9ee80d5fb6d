// Widths and signs of the Hadamard transform in the operands of a scheme.
#include <gtest/gtest.h>

#include "halftone/config/layer_recipe.h"
#include "halftone/config/quantize_options.h"

namespace halftone::hadamard_options_test {
namespace {

LinearRecipe recipe(const std::string& scheme, void (*set)(RecipeOptions&)) {
  RecipeOptions options;
  set(options);
  return layer_recipe(scheme, options, "layers.0.feed_forward.w1").linear;
}

TEST(HadamardOptions, ChangeTheOperandsThatRotate) {
  const LinearRecipe plain = recipe("nvfp4", [](RecipeOptions&) {});
  EXPECT_EQ(plain.x_wgrad.hadamard, 32);
  EXPECT_EQ(plain.x_wgrad.signs, Signs::random);
  const LinearRecipe wide = recipe("nvfp4", [](RecipeOptions& o) { o.hadamard_width = 128, o.hadamard_signs = "deterministic"; });
  for (const OperandSpec& s : {wide.dy_wgrad, wide.x_wgrad}) {
    EXPECT_EQ(s.hadamard, 128);
    EXPECT_EQ(s.signs, Signs::deterministic);
  }
  for (const OperandSpec& s : {wide.x_forward, wide.w_forward, wide.dy_dgrad, wide.w_dgrad}) EXPECT_EQ(s.hadamard, 0);
  const LinearRecipe torchao = recipe("nvfp4", [](RecipeOptions& o) { o.style = "torchao"; });
  EXPECT_EQ(torchao.dy_wgrad.hadamard, 16);
  EXPECT_EQ(torchao.dy_wgrad.signs, Signs::torchao);
}

TEST(HadamardOptions, QuartetRotatesBothBackwardProducts) {
  const LinearRecipe wide = recipe("quartet2", [](RecipeOptions&) {}),
                     narrow = recipe("quartet2", [](RecipeOptions&o) { o.hadamard_width = 32; });
  for (const auto& [r, width] : {std::pair{wide, 128}, {narrow, 32}}) {
    for (const OperandSpec& s : {r.dy_dgrad, r.w_dgrad, r.dy_wgrad, r.x_wgrad}) {
      EXPECT_EQ(s.hadamard, width);
      EXPECT_TRUE(s.eden && !s.stochastic);
    }
    EXPECT_EQ(r.x_forward.hadamard + r.w_forward.hadamard, 0);
    EXPECT_EQ(r.weight_rows(), width);
  }
}

}  // namespace
}  // namespace halftone::hadamard_options_test
