#include "halftone/formats/support.h"

#include <gtest/gtest.h>

namespace halftone {
namespace {

RecipeSupport of(std::string_view recipe, Hardware h) { return recipe_support(*find_linear_recipe(recipe), h); }

TEST(Support, EveryProductHasAWayAndAReason) {
  for (const LinearRecipe& r : kLinearRecipes) {
    for (const HardwareRow& h : kHardware) {
      const RecipeSupport s = recipe_support(r, h.hardware);
      for (const Support* product : {&s.forward, &s.dgrad, &s.wgrad}) {
        EXPECT_FALSE(product->reason.empty()) << r.name << " on " << h.name;
        EXPECT_LE(product->how, s.worst().how);
        EXPECT_EQ(product->how == How::emulated, product->path == Path::dequantized);
      }
    }
  }
}

// Every CPU computes every recipe from codes; integers are always multiplied as integers.
TEST(Support, ProcessorsEmulateNothing) {
  for (const Hardware h : {Hardware::cpu_v3, Hardware::cpu_avxvnni, Hardware::cpu_avx512, Hardware::cpu_vnni, Hardware::cpu_amx}) {
    for (const LinearRecipe& r : kLinearRecipes) EXPECT_NE(recipe_support(r, h).worst().how, How::emulated) << r.name;
    for (const char* name : {"int8", "int4"}) EXPECT_EQ(of(name, h).wgrad.path, Path::int8);
  }
  EXPECT_EQ(of("int8", Hardware::cpu_amx).worst().how, How::native);
  EXPECT_EQ(of("int8", Hardware::cpu_avx512).worst().how, How::rewrite);
  EXPECT_EQ(of("int4", Hardware::cpu_amx).worst().how, How::rewrite);
  EXPECT_EQ(of("bitnet", Hardware::cpu_vnni).forward.path, Path::int8);
}

TEST(Support, HopperMultipliesFp8AndFoldsMxfp4) {
  for (const char* name : {"fp8_tensorwise", "fp8_rowwise", "fp8_rowwise_with_gw_hp", "fp8_blockwise", "int8"})
    EXPECT_EQ(of(name, Hardware::sm_90).worst().how, How::native) << name;
  EXPECT_EQ(of("mxfp4", Hardware::sm_90).forward.path, Path::folded);
  EXPECT_EQ(of("mxfp8_e4m3", Hardware::sm_90).forward.path, Path::values);
  EXPECT_EQ(of("nvfp4", Hardware::sm_90).wgrad.path, Path::values);
  EXPECT_EQ(of("fp8_blockwise", Hardware::sm_90).wgrad.path, Path::fp8);
  for (const char* name : {"int8", "int4", "bitnet"}) EXPECT_EQ(of(name, Hardware::sm_90).forward.path, Path::int8) << name;
  for (const LinearRecipe& r : kLinearRecipes) EXPECT_NE(recipe_support(r, Hardware::sm_90).worst().how, How::emulated) << r.name;
}

TEST(Support, OtherGpusDoWhatTheyCan) {
  EXPECT_EQ(of("fp8_tensorwise", Hardware::sm_80).forward.path, Path::values);
  EXPECT_EQ(of("fp8_tensorwise", Hardware::sm_89).forward.path, Path::fp8);
  EXPECT_EQ(of("fp8_rowwise", Hardware::sm_100).forward.path, Path::values);
  EXPECT_EQ(of("fp8_blockwise", Hardware::sm_100).worst().how, How::emulated);
  EXPECT_EQ(of("mxfp4", Hardware::sm_89).forward.path, Path::values);
}

TEST(Support, OptionsDecideToo) {
  LinearRecipe r = *find_linear_recipe("mxfp4");
  for (OperandSpec* s : {&r.x_forward, &r.w_forward}) s->two_level = TwoLevel::macro;
  EXPECT_EQ(recipe_support(r, Hardware::sm_90).forward.path, Path::folded);
  EXPECT_EQ(recipe_support(r, Hardware::sm_80).forward.how, How::emulated);
  EXPECT_EQ(recipe_support(r, Hardware::sm_80).dgrad.how, How::rewrite);
  EXPECT_EQ(recipe_support(r, Hardware::sm_80).worst().how, How::emulated);
  EXPECT_EQ(recipe_support(r, Hardware::cpu_v3).forward.how, How::rewrite);
  r.x_forward = r.w_forward = {};
  EXPECT_EQ(recipe_support(r, Hardware::cpu_vnni).forward.path, Path::plain);
  r.emulate = true;
  EXPECT_EQ(recipe_support(r, Hardware::sm_90).wgrad.how, How::emulated);
}

}  // namespace
}  // namespace halftone
