#include <cmath>

#include "cuda/operand_device.h"

namespace halftone {
namespace {

using namespace testing;

// Rotated through where there are too many cases for every combination.
constexpr Fill kFills[] = {Fill::normal, Fill::ties, Fill::spread, Fill::nan, Fill::tiny, Fill::inf, Fill::zeros};

// The references take minutes of CPU time: split, so that several processes share them (GTEST_TOTAL_SHARDS).
constexpr int kParts = 4;
std::vector<Case> part_of(const std::vector<Case>& cases, int part) {
  std::vector<Case> out;
  for (size_t i = static_cast<size_t>(part); i < cases.size(); i += kParts) out.push_back(cases[i]);
  return out;
}

// Full tiles, tails of tiles, blocks and vectors, then sizes that only the general kernel supports, and empty ones.
const std::vector<Shape> kDeviceShapes = {{128, 128, 0}, {160, 200, 8}, {48, 2888, 0}, {17, 152, 0}, {304, 72, 16}, {1, 64, 0},
                                          {256, 264, 0}, {17, 150, 0},  {33, 7, 2},    {0, 64, 0},   {64, 0, 0},    {1, 1, 0}};

std::vector<Case> all_cases(bool stochastic, DType type) {
  std::vector<Case> cases;
  size_t turn = 0;
  for (const NamedSpec& named : operand_specs()) {
    const auto forms = value_forms(named.spec);
    for (const Shape& shape : kDeviceShapes) {
      for (int which = 1; which <= 3; ++which) {
        Case c{
            named,        named, shape, kFills[turn % 7], type, forms[turn % forms.size()], stochastic, (which & 1) != 0, (which & 2) != 0,
            turn % 5 != 0};
        if (turn % 6 == 1) c.length = (shape.rows > shape.cols ? shape.rows : shape.cols) + 24;
        c.given_amax = turn % 9 == 4 && c.fill == Fill::normal;
        cases.push_back(c);
        ++turn;
      }
      if (named.rotates) {  // beside a plain row copy, from one read
        const NamedSpec row = unrotated(named);
        cases.push_back({row, named, shape, kFills[turn % 7], type, forms[turn % forms.size()], stochastic, true, true, true});
        ++turn;
      }
    }
  }
  return cases;
}

class QuantizeCudaAll : public ::testing::TestWithParam<std::tuple<DType, bool, int>> {};

TEST_P(QuantizeCudaAll, EqualsTheReferenceBitForBit) {
  if (!missing().empty()) GTEST_SKIP() << missing();
  const auto [type, stochastic, part] = GetParam();
  expect_reference(part_of(all_cases(stochastic, type), part));
}
INSTANTIATE_TEST_SUITE_P(All, QuantizeCudaAll,
                         ::testing::Combine(::testing::Values(DType::bf16, DType::f32), ::testing::Bool(), ::testing::Range(0, kParts)));

class QuantizeCudaParts : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Part, QuantizeCudaParts, ::testing::Range(0, kParts));

// Every form of every spec, on data that is hard for it.
TEST_P(QuantizeCudaParts, EqualTheReferenceOnEveryFill) {
  if (!missing().empty()) GTEST_SKIP() << missing();
  std::vector<Case> cases;
  for (const NamedSpec& named : operand_specs()) {
    for (const ValueForm form : value_forms(named.spec)) {
      for (const Fill fill : {Fill::normal, Fill::spread, Fill::ties, Fill::tiny, Fill::nan, Fill::inf}) {
        for (const bool stochastic : {false, true}) {
          const NamedSpec row = unrotated(named);
          cases.push_back({row, named, {96, 160, 0}, fill, DType::bf16, form, stochastic, true, true, true});
        }
      }
    }
  }
  expect_reference(part_of(cases, GetParam()));
}

// One output at a time: the kernels that training runs.
TEST_P(QuantizeCudaParts, OneOutputAtATime) {
  if (!missing().empty()) GTEST_SKIP() << missing();
  std::vector<Case> cases;
  size_t turn = 0;
  for (const NamedSpec& named : operand_specs()) {
    const NamedSpec row = unrotated(named);
    std::vector<std::pair<Only, ValueForm>> outputs = {{Only::codes, ValueForm::none}};
    if (bits_of(named.spec.element) == 4) outputs.emplace_back(Only::packed, ValueForm::none);
    for (const ValueForm form : value_forms(named.spec)) {
      if (form != ValueForm::none && form != ValueForm::f32) outputs.emplace_back(Only::values, form);
    }
    for (const auto& [only, form] : outputs) {
      for (const Shape& shape : {Shape{160, 200, 8}, {136, 392, 0}}) {
        for (const bool stochastic : {false, true}) {
          for (int which = 1; which <= 3; ++which, ++turn) {
            Case c{named.spec.eden ? named : row,
                   named,
                   shape,
                   kFills[turn % 7],
                   DType::bf16,
                   form,
                   stochastic,
                   (which & 1) != 0,
                   (which & 2) != 0,
                   true};
            c.only = only;
            if (turn % 5 == 2) c.length = 448;
            cases.push_back(c);
            if (named.spec.element != Element::e2m1 || named.spec.block != 16) continue;
            c.type = DType::f32;  // has kernels of its own too
            cases.push_back(c);
          }
        }
      }
      if (only != Only::values || form != ValueForm::fold_e4m3) continue;
      for (const int64_t cols : {1024, 4096, 8192, 14336, 32768}) {
        for (const bool stochastic : {false, true}) {
          Case c{row, named, {3, cols, 0}, Fill::spread, DType::bf16, form, stochastic, true, false, true};
          c.only = only;
          cases.push_back(c);
        }
      }
    }
  }
  expect_reference(part_of(cases, GetParam()));
}

// fp32 elements rounded to bf16 (weights from their masters): both copies from one read, or the row copy and later the transposed one,
// which reuses the amax of the first read.
TEST_P(QuantizeCudaParts, MastersCountAsTheirRoundedCopies) {
  if (!missing().empty()) GTEST_SKIP() << missing();
  std::vector<Case> cases;
  size_t turn = static_cast<size_t>(GetParam());
  const std::vector<NamedSpec> specs = operand_specs();
  for (size_t i = static_cast<size_t>(GetParam()); i < specs.size(); i += kParts) {
    const NamedSpec named = unrotated(specs[i]);
    const auto forms = value_forms(named.spec);
    for (const Shape& shape : kDeviceShapes) {
      const Fill fill = kFills[turn % 7];
      const bool codes = turn % 3 == 1, stochastic = turn / 2 % 2 == 1;
      const ValueForm form = codes ? ValueForm::none : forms[turn % forms.size()];
      ++turn;
      for (const auto& [row, transposed, master] : {std::tuple{true, true, Master{}},
                                                    {true, false, Master{true, false}},
                                                    {false, true, Master{false, true}},
                                                    {true, false, Master{false, true}}}) {
        Case c{named, named, shape, fill, DType::bf16, form, stochastic, row, transposed, true};
        c.master = master;
        if (codes) c.only = Only::codes;
        cases.push_back(c);
      }
    }
  }
  expect_reference(cases);
}

// The matrices of the sources' block-scale tests (numerics.md 13.1); 513 rows: a tail.
TEST_P(QuantizeCudaParts, BlockScalesOnTheSourcesShapes) {
  if (!missing().empty()) GTEST_SKIP() << missing();
  std::vector<Case> cases;
  size_t turn = 0;
  for (const NamedSpec& named : operand_specs()) {
    if (named.rotates || (named.spec.block != 16 && named.spec.block != 32)) continue;
    for (const Shape& shape : {Shape{128, 64, 0}, {512, 64, 0}, {513, 64, 0}, {2048, 2048, 0}}) {
      for (const Fill fill : {Fill::normal, Fill::outliers}) {
        const bool large = shape.rows == 2048;  // in one type and without values, so that the references take seconds
        for (const DType type : {DType::bf16, DType::f32}) {
          if (large && (type == DType::f32) != (turn++ % 2 == 0)) continue;
          cases.push_back({named, named, shape, fill, type, large ? ValueForm::none : ValueForm::bf16, false, true, true, true});
        }
      }
    }
  }
  expect_reference(part_of(cases, GetParam()));
}

// Outputs that layers request of X: values, and packed codes for later.
TEST(QuantizeCuda, ValuesBesidePackedCodes) {
  if (!missing().empty()) GTEST_SKIP() << missing();
  std::vector<Case> cases;
  for (const NamedSpec& named : operand_specs()) {
    const NamedSpec row = unrotated(named);
    if (named.spec.element != Element::e2m1 || named.spec.block != 16) continue;
    for (const Fill fill : kFills) {
      for (const DType type : {DType::bf16, DType::f32}) {
        Case c{row, named, {168, 392, 0}, fill, type, ValueForm::bf16, fill == Fill::ties, true, true, true};
        c.only = Only::values, c.transposed_only = std::pair{Only::packed, ValueForm::none};
        if (fill == Fill::normal) c.length = 400;
        cases.push_back(c);
      }
    }
  }
  expect_reference(cases);
}

// Row copies alone, with scales gathered per thread block of 32 x 512 elements, and tails of rows, blocks and 16-byte pieces of scales.
TEST(QuantizeCuda, GatheredScalesOfRows) {
  if (!missing().empty()) GTEST_SKIP() << missing();
  std::vector<Case> cases;
  size_t turn = 0;
  for (const NamedSpec& named : operand_specs()) {
    const OperandSpec& s = named.spec;
    if (s.granularity != Granularity::block || named.rotates || (s.block != 32 && s.block != 128)) continue;
    for (const Shape& shape : {Shape{40, 1000, 0}, {168, 512, 8}, {129, 2032, 16}}) {
      for (const Only only : {Only::all, Only::codes, Only::packed}) {
        if (only == Only::packed && bits_of(s.element) != 4) continue;
        for (const bool stochastic : {false, true}) {
          Case c{named, named, shape, kFills[turn % 7], turn % 2 == 0 ? DType::bf16 : DType::f32, ValueForm::none, stochastic,
                 true,  false, true};
          c.only = only;
          if (turn % 5 == 3) c.length = 3056;
          cases.push_back(c);
          ++turn;
        }
      }
    }
  }
  expect_reference(cases);
}

// The outputs for which one kernel makes both copies.
std::vector<std::pair<Only, ValueForm>> paired_outputs(const OperandSpec& s) {
  const bool mx = s.scale == ScaleFormat::e8m0 && s.block == 32, fp8 = s.element == Element::e4m3 || s.element == Element::e5m2;
  if (fp8 && (mx || s.block == 128)) return {{Only::codes, ValueForm::none}};
  if (s.element == Element::int8 && s.granularity == Granularity::row) return {{Only::codes, ValueForm::none}};
  if (s.element == Element::int4 && s.granularity == Granularity::row)
    return {{Only::codes, ValueForm::none}, {Only::packed, ValueForm::none}};
  if (s.element == Element::e2m1 && mx) return {{Only::packed, ValueForm::none}, {Only::values, ValueForm::fold_e4m3}};
  return {};
}

// For all block types, with and without tile tails.
TEST(QuantizeCuda, BothStochasticCopiesTogether) {
  if (!missing().empty()) GTEST_SKIP() << missing();
  std::vector<Case> cases;
  for (const NamedSpec& named : operand_specs()) {
    const NamedSpec row = unrotated(named);
    for (const auto& [only, form] : paired_outputs(named.spec)) {
      for (const Fill fill : kFills) {
        for (const DType type : {DType::bf16, DType::f32}) {
          Case c{row, named, {168, 264, 8}, fill, type, form, true, true, true, true};
          c.only = only;
          if (fill == Fill::normal) c.length = 280;
          cases.push_back(c);
          // A step from device memory, as in graphs, and full tiles.
          const auto add = [&](Shape shape, bool device_step) { c.shape = shape, c.device_step = device_step, cases.push_back(c); };
          c.length = 0;
          if (fill == Fill::spread) add(c.shape, true);
          add({128, 256, 0}, false);
          if (fill == Fill::normal) add(c.shape, true);
        }
      }
    }
  }
  expect_reference(cases);
}

// Per-tensor scales whose amax has any bf16 significand: where it is a multiple of 3 or 7, elements hit midpoints between codes in every
// block with a different scale. Blocks with all significands.
TEST(QuantizeCuda, MiddlesOfFp4CodesAtAnyScale) {
  if (!missing().empty()) GTEST_SKIP() << missing();
  Device device;
  ASSERT_TRUE(device.ready());
  for (const NamedSpec& named : operand_specs()) {
    const OperandSpec& s = named.spec;
    if (s.two_level != TwoLevel::tensor || named.rotates || s.granularity != Granularity::block) continue;
    for (const auto& [only, form] : {std::pair{Only::packed, ValueForm::none}, {Only::values, ValueForm::bf16}}) {
      for (int significand = 128; significand < 256; ++significand) {
        Case c{named, named, {128, 128, 0}, Fill::normal, DType::bf16, form, false, true, true, true};
        c.only = only;
        Request r(c);
        auto* x = reinterpret_cast<bf16*>(r.x.data());
        for (int64_t i = 0; i < r.p.rows * r.p.cols; ++i) x[i] = bf16(std::ldexp(to_float(x[i]), -static_cast<int>(i / 512 % 4)));
        x[significand * 61] = bf16(static_cast<float>(significand) / 32);
        ref::quantize_operand(r.p);
        ASSERT_EQ(device.run(r), "") << c.what() << " significand " << significand;
      }
    }
  }
}

// Full rows of integers in registers: one, two, four and eight vectors per thread.
TEST(QuantizeCuda, LongRowsOfIntegers) {
  if (!missing().empty()) GTEST_SKIP() << missing();
  std::vector<Case> cases;
  for (const NamedSpec& named : operand_specs()) {
    const OperandSpec& s = named.spec;
    if ((s.element != Element::int8 && s.element != Element::int4) || s.granularity != Granularity::row) continue;
    for (const auto& [only, form] : paired_outputs(s)) {
      for (const int64_t cols : {1024, 4096, 8192, 14336, 32768}) {
        for (const Fill fill : kFills) {
          Case c{named, named, {3, cols, 0}, fill, DType::bf16, form, true, true, false, true};
          c.only = only;
          cases.push_back(c);
        }
      }
    }
  }
  expect_reference(cases);
}

// Columns or rows in which every element is the negative amax. int8's quotient of some is 127 + 2^-17, which one draw of 65536 rounds to
// -128, which is clipped.
TEST(QuantizeCuda, LargestMagnitudesOfInt8) {
  if (!missing().empty()) GTEST_SKIP() << missing();
  Device device;
  ASSERT_TRUE(device.ready());
  const NamedSpec named = operand_spec("int8 row");
  ASSERT_EQ(named.name, "int8 row");
  for (const bool columns : {false, true}) {
    Case c{named, named, {1160, 2056, 0}, Fill::zeros, DType::bf16, ValueForm::none, true, true, true, true};
    c.only = Only::codes;
    Request r(c);
    auto* x = reinterpret_cast<bf16*>(r.x.data());
    for (int64_t i = 0; i < r.p.rows * r.p.cols; ++i) {
      const int64_t vector = columns ? i % r.p.cols : i / r.p.cols;
      x[i] = bf16(-1.0f - static_cast<float>(vector % 128) / 128);
    }
    ref::quantize_operand(r.p);
    EXPECT_EQ(device.run(r), "") << (columns ? "columns" : "rows");
  }
}

// Copies of different families, rows longer than a kernel holds, misaligned inputs.
TEST(QuantizeCuda, MixedAndMisaligned) {
  if (!missing().empty()) GTEST_SKIP() << missing();
  const auto specs = operand_specs();
  std::vector<Case> mixed, rows, moved;
  for (size_t i = 0; i + 1 < specs.size(); ++i) {
    if (!specs[i].rotates)
      mixed.push_back({specs[i], specs[i + 1], {136, 264, 0}, Fill::normal, DType::bf16, ValueForm::none, i % 2 == 0, true, true, true});
    if (specs[i].spec.granularity == Granularity::row || specs[i].name == "mx e2m1 adaptive 1x32") {
      for (const int64_t cols : {2048, 4104, 8192, 14336, 32800}) {
        const ValueForm form = specs[i].spec.element == Element::e2m1 ? ValueForm::fold_e4m3 : ValueForm::none;
        for (const bool stochastic : {false, true}) {
          rows.push_back(
              {specs[i], specs[i], {5, cols, 8}, Fill::spread, i % 2 == 0 ? DType::bf16 : DType::f32, form, stochastic, true, false, true});
        }
      }
    }
    if (i % 3 == 0 && !specs[i].rotates)
      moved.push_back({specs[i], specs[i], {40, 64, 0}, Fill::normal, DType::bf16, ValueForm::none, false, true, true, true});
  }
  expect_reference(mixed);
  expect_reference(rows);
  expect_reference(moved, 2);
}

TEST(QuantizeCuda, AmaxEqualsTheReference) {
  if (!missing().empty()) GTEST_SKIP() << missing();
  Device device;
  ASSERT_TRUE(device.ready());
  for (const DType type : {DType::bf16, DType::f32}) {
    for (const Shape& shape : kDeviceShapes) {
      for (const Fill fill : {Fill::normal, Fill::nan, Fill::inf, Fill::tiny, Fill::zeros}) {
        Case c{{}, {}, shape, fill, type, ValueForm::none, false, false, false, true};
        Request r(c);
        uint32_t expected = 0, found = 1;
        for (int64_t i = 0; i < r.p.rows; ++i) {
          for (int64_t j = 0; j < r.p.cols; ++j) {
            const int64_t at = i * r.p.ld + j;
            const float v = type == DType::f32 ? static_cast<const float*>(r.p.x)[at] : to_float(static_cast<const bf16*>(r.p.x)[at]);
            expected = std::max(expected, std::bit_cast<uint32_t>(v) & 0x7FFFFFFFu);
          }
        }
        ASSERT_EQ(device.amax(r, found), "") << c.what();
        EXPECT_EQ(found, expected) << c.what();
      }
    }
  }
}

TEST(QuantizeCuda, RefusesWhatItCannotDo) {
  if (!missing().empty()) GTEST_SKIP() << missing();
  const CudaModule module;
  const auto quantize = module.function<QuantizeFunction>("halftone_cuda_quantize_operand");
  ASSERT_NE(quantize, nullptr);
  QuantizeOperand p;
  p.type = DType::s8;
  EXPECT_STREQ(quantize(&p, nullptr, 0, nullptr), "quantiser: expected bf16 or f32 elements");
  p.type = DType::bf16, p.rows = 4, p.cols = 8, p.ld = 8;
  EXPECT_STREQ(quantize(&p, nullptr, 0, nullptr), "quantiser: no input");
  float x = 0;
  p.x = &x, p.want_row = true;
  EXPECT_STREQ(quantize(&p, nullptr, 0, nullptr), "quantiser: expected a quantised element type, found hp");
  p.row.spec = make_spec(Element::e4m3, Granularity::tensor, 0, ScaleFormat::fp32);
  EXPECT_STREQ(quantize(&p, nullptr, 0, nullptr), "quantiser: the workspace is smaller than halftone_cuda_quantize_workspace says");
}

}  // namespace
}  // namespace halftone
