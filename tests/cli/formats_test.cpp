#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "halftone/base/error.h"
#include "halftone/cli/commands.h"
#include "halftone/cli/format_example.h"
#include "halftone/cli/format_tables.h"
#include "halftone/formats/support.h"
#include "halftone/ops/stored_weight.h"
#include "source_dir.h"

namespace halftone {
namespace {

using Strings = std::vector<std::string>;

struct Printed {
  int status;
  std::string out;
};
Printed formats(const Strings& args) {
  testing::internal::CaptureStdout();
  int status = -1;
  try {
    status = formats_command(args);
  } catch (...) {
    testing::internal::GetCapturedStdout();
    throw;
  }
  return {status, testing::internal::GetCapturedStdout()};
}

std::string refusal(const Strings& args) {
  try {
    formats(args);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

TEST(Formats, TheListHoldsEveryFormatRuleAndRecipe) {
  const Printed all = formats({});
  EXPECT_EQ(all.status, 0);
  for (const LinearRecipe& r : kLinearRecipes) EXPECT_NE(all.out.find(r.name), std::string::npos) << r.name;
  for (const std::string_view name : shown_names()) EXPECT_NE(all.out.find(name), std::string::npos) << name;
  EXPECT_NE(all.out.find("57344 (0x7B)"), std::string::npos);
}

// The thresholds in the table of numerics.md 3.2, computed from the code.
TEST(Formats, ThresholdsAreThoseOfTheSpecification) {
  EXPECT_EQ(bump_condition(Float::e2m1, ScaleMode::floor), "never");
  EXPECT_EQ(bump_condition(Float::e4m3, ScaleMode::ceil), "m > 1");
  EXPECT_EQ(bump_condition(Float::e2m1, ScaleMode::rceil), "m > 1.5");
  EXPECT_EQ(bump_condition(Float::e4m3, ScaleMode::rceil), "m > 1.75");
  EXPECT_EQ(bump_condition(Float::e2m1, ScaleMode::even), "m >= 1.75");
  EXPECT_EQ(bump_condition(Float::e4m3, ScaleMode::adaptive), "m >= 1.9375");
  EXPECT_EQ(bump_condition(Float::e5m2, ScaleMode::even), "m >= 1.875");
  EXPECT_EQ(bump_condition(Float::e2m1, ScaleMode::uos), "m > 1.8125");
}

TEST(Formats, EveryNameIsShown) {
  for (const std::string_view name : shown_names()) {
    const Printed shown = formats({"--show", std::string(name)});
    EXPECT_EQ(shown.status, 0);
    EXPECT_EQ(shown.out.rfind(name, 0), 0u) << shown.out.substr(0, 80);
    EXPECT_GT(std::count(shown.out.begin(), shown.out.end(), '\n'), 5) << name;
  }
}

TEST(Formats, EveryScaleFormatOfTheListIsShown) {
  std::istringstream list(scale_format_table());
  std::string line;
  std::getline(list, line);  // the header
  int formats_found = 0;
  while (std::getline(list, line)) {
    const std::string name = line.substr(2, line.find(' ', 2) - 2);
    EXPECT_EQ(formats({"--show", name}).out.rfind(name, 0), 0u) << name;
    ++formats_found;
  }
  EXPECT_EQ(formats_found, 6);
  EXPECT_NE(formats({"--show", "fp32_pow2"}).out.find("Scales of: fp8_rowwise"), std::string::npos);
  const std::string fp32 = formats({"--show", "fp32"}).out, bf16 = formats({"--show", "bf16"}).out;
  for (const char* part :
       {"32 bits: sign, 8 of exponent (bias 127), 23 of mantissa", "0x7F7FFFFF  3.40282347e+38  largest",
        "0x00800000  1.17549435e-38  least normal: 2^-126", "0x00000001  1.40129846e-45  least subnormal",
        "Scales of:\nfp8_tensorwise, fp8_blockwise, int8, int4, int8_weight, int4_weight, bitnet", "cut to a power of two"})
    EXPECT_NE(fp32.find(part), std::string::npos) << part << "\n" << fp32;
  for (const char* part :
       {"16 bits: sign, 8 of exponent (bias 127), 7 of mantissa", "0x7F7F  3.38953139e+38  largest", "0x0080  1.17549435e-38",
        "0x0001  9.18354962e-41  least subnormal", "1.00390625     0x3F80  1\n", "1.01171875     0x3F82  1.015625", "0x3DCD  0.100097656"})
    EXPECT_NE(bf16.find(part), std::string::npos) << part << "\n" << bf16;
}

// int8 and int4 are both elements and recipes.
TEST(Formats, AnElementIsShownBeforeTheRecipeOfItsName) {
  for (const std::string name : {"int8", "int4"}) {
    const std::string shown = formats({"--show", name}).out;
    const size_t element = shown.find(fmt::format("{}: {} bits, codes", name, name.back())), recipe = shown.find("\nRecipe " + name + "\n");
    EXPECT_EQ(element, 0u) << name;
    ASSERT_NE(recipe, std::string::npos) << name;
    EXPECT_EQ(shown.find("hardware"), shown.find("hardware", recipe)) << name;
    EXPECT_NE(shown.find("forward X", recipe), std::string::npos) << name;
  }
}

// A scale format's line names uint4 recipes if and only if they store with it, and the recipe file states the cost.
TEST(Formats, Uint4RecipesAreListedWithTheScalesThatTheyStore) {
  const OperandSpec w = find_linear_recipe("int4_weight")->w_forward;
  ASSERT_EQ(w.element, Element::uint4);
  const std::string table = scale_format_table();
  const auto line = [&](std::string_view scale) {
    const size_t at = table.find(fmt::format("\n  {} ", scale));
    return table.substr(at, table.find('\n', at + 1) - at);
  };
  EXPECT_NE(line(name(w.scale)).find("int4_weight"), std::string::npos) << table;
  EXPECT_EQ(line("bf16").find("stored"), std::string::npos) << table;
  EXPECT_NE(line("bf16").find("no recipe"), std::string::npos) << table;
  const StoredWeight s = allocate_stored(w, 64, 128, at::kCPU);
  size_t bytes = 0;
  for (const at::Tensor& t : {s.codes, s.scales, s.zeros}) bytes += t.nbytes();
  std::ifstream file(source_dir() + "/recipes/precision/int4_weight.yaml");
  std::string comment;
  ASSERT_TRUE(std::getline(file, comment));
  EXPECT_NE(comment.find(fmt::format("{} scale and zero", name(w.scale))), std::string::npos) << comment;
  EXPECT_NE(comment.find(fmt::format("{} bits per weight", 8.0 * static_cast<double>(bytes) / (64 * 128))), std::string::npos) << comment;
}

TEST(Formats, ExamplesAreWorkedOutByTheCode) {
  const OperandSpec mx = find_linear_recipe("mxfp4")->x_forward;
  const WorkedExample e = work_out(mx, {0.3125f, -0.75f, 1.25f, 2.625f, -5.25f, 0.0625f, 3.375f, -1.0f}, "x.fwd");
  // amax 5.25 = 1.3125 * 2^2: exponent 2 - 2 = 0, so the scale is 1 and every value is rounded to the e2m1 grid directly.
  EXPECT_EQ(e.codes, (std::vector<uint8_t>{0x1, 0xA, 0x2, 0x5, 0xF, 0x0, 0x5, 0xA}));
  EXPECT_EQ(e.values, (std::vector<float>{0.5f, -1, 1, 3, -6, 0, 3, -1}));
  const std::string text = formats({"--show", "mxfp4"}).out;
  for (const char* part : {"5.25 = 1.3125 * 2^2", "127 = 2^0 (adaptive)", "0xA1      0x52      0x0F      0xA5", "H32", "draws / 2^16"})
    EXPECT_NE(text.find(part), std::string::npos) << part;

  const WorkedExample rows = work_out(find_linear_recipe("int8")->x_forward, {1.0f, -127.0f, 0.5f, 63.5f}, "x.fwd");
  EXPECT_EQ(rows.codes, (std::vector<uint8_t>{1, static_cast<uint8_t>(-127), 0, 64}));
  EXPECT_EQ(rows.values, (std::vector<float>{1, -127, 0, 64}));

  const WorkedExample nv = work_out(find_linear_recipe("nvfp4")->x_forward, {6, 3, -1.5f, 0.5f}, "x.fwd");
  EXPECT_EQ(nv.codes, (std::vector<uint8_t>{7, 5, 0xB, 1}));
  EXPECT_NEAR(nv.values[0], 6, 1e-6);
}

// Stochastic rounding and the rotation of the example's numbers.
TEST(Formats, DrawsAndRotationsFollowTheSpec) {
  OperandSpec s = find_linear_recipe("mxfp4")->dy_wgrad;
  ASSERT_TRUE(s.stochastic && s.hadamard == 32);
  const WorkedExample sr = work_out(s, example_numbers(32), "dy.wgrad");
  EXPECT_EQ(sr.codes, work_out(s, example_numbers(32), "dy.wgrad").codes);
  EXPECT_NE(sr.codes, work_out(s, example_numbers(32), "dy.dgrad").codes);
  s.stochastic = false;
  EXPECT_NE(sr.codes, work_out(s, example_numbers(32), "dy.wgrad").codes);
}

TEST(Formats, OptionsChangeTheRecipeThatIsShown) {
  const std::string uos = formats({"--show", "mxfp4", "--quantize.use_uos", "--quantize.use_hadamard=false"}).out;
  EXPECT_NE(uos.find("e8m0 uos"), std::string::npos);
  EXPECT_EQ(uos.find("H32"), std::string::npos);
  EXPECT_NE(formats({"--show", "nvfp4", "--quantize.preset=alto"}).out.find("warning: "), std::string::npos);
  EXPECT_NE(formats({"--show", "int8", "--quantize.emulate"}).out.find("emulated"), std::string::npos);
}

TEST(Formats, SupportSaysWhyForEveryRecipeAndDevice) {
  const Printed support = formats({"--support"});
  EXPECT_EQ(support.status, 0);
  EXPECT_NE(support.out.find("* this machine"), std::string::npos);
  for (const LinearRecipe& r : kLinearRecipes) {
    for (const HardwareRow& h : kHardware) {
      const RecipeSupport s = recipe_support(r, h.hardware);
      for (const Support* product : {&s.forward, &s.dgrad, &s.wgrad}) EXPECT_FALSE(product->reason.empty());
      EXPECT_NE(support.out.find(s.worst().reason), std::string::npos) << r.name << " on " << h.name;
      EXPECT_GE(s.worst().how, s.forward.how);
      EXPECT_GE(s.worst().how, s.wgrad.how);
    }
  }
}

TEST(Formats, MistakesAreNamed) {
  EXPECT_NE(refusal({"--show", "mxfp5"}).find("did you mean mxfp4?"), std::string::npos);
  EXPECT_NE(refusal({"--show"}).find("expected a name"), std::string::npos);
  EXPECT_NE(refusal({"--sho", "mxfp4"}).find("--show"), std::string::npos);
  EXPECT_NE(refusal({"--show", "e4m3", "--quantize.emulate"}).find("only a recipe takes options"), std::string::npos);
  EXPECT_NE(refusal({"--show", "int8", "--quantize.use_hadamard"}).find("use_hadamard"), std::string::npos);
  EXPECT_NE(refusal({"--show", "int8", "--quantize.scheme=mxfp4"}).find("mxfp4"), std::string::npos);
  EXPECT_NE(refusal({"--support", "x"}).find("'x'"), std::string::npos);
  EXPECT_NE(refusal({"--show", "mxfp8"}).find("did you mean mxfp8_e4m3 or mxfp8_e5m2?"), std::string::npos);
}

TEST(Formats, OptionsThatWouldChangeNothingAreRefused) {
  const std::vector<std::pair<std::string, std::string>> kIdle = {{"--config=missing.toml", "job.config_file"},
                                                                  {"--training.steps=3", "training.steps"},
                                                                  {"--quantize.targets=Linear", "quantize.targets"},
                                                                  {"--quantize.ignore=output", "quantize.ignore"},
                                                                  {"--quantize.scheme=none", "quantize.scheme"},
                                                                  {"--quantize.scheme=nvfp4", "quantize.scheme"},
                                                                  {"--quantize.skip_last_layers=1", "quantize.skip_last_layers"},
                                                                  {"--quantize.lora_rank=32", "quantize.lora_rank"},
                                                                  {"--quantize.deosc_step=5", "quantize.deosc_step"}};
  for (const auto& [option, field] : kIdle) {
    const std::string said = refusal({"--show", "mxfp4", option});
    EXPECT_NE(said.find("formats --show mxfp4: expected options of [quantize]"), std::string::npos) << option << ": " << said;
    EXPECT_NE(said.find("found --" + field), std::string::npos) << option << ": " << said;
    EXPECT_EQ(said.find('\n'), std::string::npos) << said;
  }
  EXPECT_EQ(refusal({"--show", "mxfp4", "--quantize.scheme=mxfp4", "--quantize.use_dge", "--quantize.preset=alto"}), "");
}

}  // namespace
}  // namespace halftone
