#include <cmath>

#include "cuda/operand_device.h"

// Matrices large enough to use other kernels.
namespace halftone::large_quantize_cuda_test {
namespace {

using namespace testing;

// Large enough that tile scales are written together and rearranged afterwards, with tails of tiles and blocks.
TEST(LargeQuantizeCuda, ArrangedScales) {
  if (!missing().empty()) GTEST_SKIP() << missing();
  std::vector<Case> cases;
  for (const NamedSpec& named : operand_specs()) {
    const OperandSpec& s = named.spec;
    const bool mx = s.block == 32 && s.scale == ScaleFormat::e8m0 && s.two_level == TwoLevel::none && s.clip == Clip::none &&
                    (s.element == Element::e4m3 ? s.mode == ScaleMode::rceil : s.element == Element::e2m1 && s.mode == ScaleMode::adaptive);
    const bool wide = s.block == 128 && s.element == Element::e4m3 && s.scale == ScaleFormat::fp32;
    if (s.granularity != Granularity::block || named.rotates || (!mx && !wide)) continue;
    cases.push_back({named, named, {4072, 8680, 0}, Fill::normal, DType::bf16, ValueForm::none, false, true, true, true});
  }
  EXPECT_EQ(cases.size(), 3u);
  expect_reference(cases);
}

// Large enough that the last tiles of NVFP4 and AMDFP4 use two thread blocks, one per copy; tails of tiles and blocks.
TEST(LargeQuantizeCuda, CopiesOfTheLastFp4Tiles) {
  if (!missing().empty()) GTEST_SKIP() << missing();
  std::vector<Case> cases;
  const auto add = [&](const char* name, Only only, bool stochastic, Fill fill) -> Case& {
    const NamedSpec named = operand_spec(name);
    const ValueForm form = only == Only::values ? ValueForm::bf16 : ValueForm::none;
    Case c{unrotated(named), named, {4072, 4232, 0}, fill, DType::bf16, form, stochastic, true, true, true};
    c.only = only;
    return cases.emplace_back(c);
  };
  add("nvfp4 alto block", Only::packed, false, Fill::normal);
  add("nvfp4 torchao block", Only::packed, false, Fill::ties);
  add("amdfp4 alto block", Only::packed, true, Fill::normal);
  add("nvfp4 torchao tile", Only::values, false, Fill::normal);
  add("nvfp4 alto block", Only::values, false, Fill::spread).transposed_only = std::pair{Only::packed, ValueForm::none};
  add("amdfp4 alto rotated", Only::values, false, Fill::normal);
  add("nvfp4 torchao rotated", Only::values, true, Fill::spread);
  expect_reference(cases);
}

// Large enough that thread blocks split the amax search of rows.
TEST(LargeQuantizeCuda, MaximaOfManyRows) {
  if (!missing().empty()) GTEST_SKIP() << missing();
  std::vector<Case> cases;
  for (const NamedSpec& named : operand_specs()) {
    if (named.name != "int8 row" && named.name != "int4 row") continue;
    const bool f32 = named.name == "int8 row";
    Case c{named, named, {15240, f32 ? 1016 : 2040, 0}, Fill::spread, f32 ? DType::f32 : DType::bf16, ValueForm::none, false, true,
           true,  true};
    c.only = Only::codes;
    cases.push_back(c);
  }
  EXPECT_EQ(cases.size(), 2u);
  expect_reference(cases);
}

// Above 128 MiB the warps of a thread block split the amax search of rows before folded copies; the last rows are a partial band. The
// amax of each row and column lies in a different strip and band.
TEST(LargeQuantizeCuda, MaximaOfRowsAndRotatedColumns) {
  if (!missing().empty()) GTEST_SKIP() << missing();
  Device device(size_t{640} << 20);
  ASSERT_TRUE(device.ready());
  const NamedSpec rotated = operand_spec("mxfp4 rotated");
  ASSERT_EQ(rotated.name, "mxfp4 rotated");
  Case c{unrotated(rotated), rotated, {65544, 1024, 0}, Fill::normal, DType::bf16, ValueForm::fold_e4m3, true, true, true, true};
  c.only = Only::values;
  Request r(c);
  auto* x = reinterpret_cast<bf16*>(r.x.data());
  const int64_t elements = r.p.rows * r.p.cols;
  for (int64_t i = 0; i < 40000; ++i) {
    bf16& v = x[i * 7919 * 31 % elements];
    v = bf16(std::ldexp(to_float(v), static_cast<int>(i % 9)));
  }
  x[elements - 5] = bf16(NAN), x[elements / 2 + 77] = bf16(-INFINITY);
  ref::quantize_operand(r.p);
  EXPECT_EQ(device.run(r), "");
}

}  // namespace
}  // namespace halftone::large_quantize_cuda_test
