// Copies with one scale per row and their panels: int8, and e4m3 with power-of-two scales (quantize/operand_rows.cpp).
#include <gtest/gtest.h>
#include <omp.h>

#include "halftone/base/error.h"
#include "halftone/formats/fp8_scale.h"
#include "halftone/quantize/operand.h"
#include "quantize/operand_cases.h"

namespace halftone::row_scales_test {
namespace {

using namespace testing;

OperandSpec row_spec(Element e, bool stochastic = false) {
  OperandSpec s = make_spec(e, Granularity::row, 0, e == Element::int8 ? ScaleFormat::fp32 : ScaleFormat::fp32_pow2);
  s.stochastic = stochastic;
  return s;
}

QuantizeOperand request(const void* x, DType type, int64_t rows, int64_t cols, int64_t ld, const OperandSpec& spec) {
  QuantizeOperand p;
  p.x = x, p.type = type, p.rows = rows, p.cols = cols, p.ld = ld;
  p.row.spec = p.transposed.spec = spec;
  if (spec.element == Element::e4m3) p.row.form = ValueForm::bf16;
  return p;
}

// Memory for the row copy and the panels of a request.
struct Outputs {
  Outputs(QuantizeOperand& p, bool by_row, bool by_col)
      : row(p.row, p.rows, p.cols), panels(panels_bytes(panel_type(p.transposed.spec), p.rows, p.cols)), col_scales(p.cols * 4) {
    p.want_row = by_row, p.want_transposed = by_col;
    p.transposed.panels = panels.data(), p.transposed.scales = col_scales.data();
  }
  std::vector<Buffer*> all() { return {&row.codes, &row.scales, &row.values, &panels, &col_scales}; }
  const int8_t* codes() { return row.codes.as<int8_t>(); }
  float* scales() { return row.scales.as<float>(); }
  CopyBuffers row;
  Buffer panels, col_scales;
};

void expect_same(Outputs& a, Outputs& b, const std::string& what) {
  for (size_t i = 0; i < a.all().size(); ++i) {
    Buffer &x = *a.all()[i], &y = *b.all()[i];
    EXPECT_EQ(std::memcmp(x.data(), y.data(), static_cast<size_t>(x.size())), 0) << what << " output " << i;
    EXPECT_TRUE(x.guard_intact() && y.guard_intact()) << what << " output " << i;
  }
}

void expect_reference(Element e, const std::vector<int>& rounding) {
  for (const Shape s : kShapes) {
    for (const Fill fill : {Fill::normal, Fill::zeros, Fill::tiny, Fill::spread, Fill::nan, Fill::inf, Fill::ties}) {
      for (const DType type : {DType::bf16, DType::f32}) {
        const auto x = elements(values(fill, s.rows, s.cols + s.pad), type);
        for (const int sr : rounding) {
          QuantizeOperand p = request(x.data(), type, s.rows, s.cols, s.cols + s.pad, row_spec(e, sr > 0));
          p.row.rounding = {.key = philox_key(1, "x.fwd"), .step = 3, .first_row = sr == 2 ? (int64_t{1} << 32) / 8 : 5};
          p.transposed.rounding = {.key = philox_key(1, "x.wgrad"),
                                   .step = 3,
                                   .first_row = 5,
                                   .first_column = sr == 2 ? 3 : 0,
                                   .row_length = sr == 2 ? s.cols + 7 : 0};
          Outputs expected(p, true, true);
          quantize_operand(p, Isa::ref);
          for (const Isa isa : isas()) {
            Outputs found(p, true, true);
            quantize_operand(p, isa);
            expect_same(found, expected,
                        fmt::format("{} {}x{} fill {} type {} sr {}", name(isa), s.rows, s.cols, static_cast<int>(fill),
                                    static_cast<int>(type), sr));
          }
        }
      }
    }
  }
}

TEST(Int8Rows, EqualTheReferenceOnEveryIsa) { expect_reference(Element::int8, {0, 1, 2}); }
TEST(E4m3Rows, EqualTheReferenceOnEveryIsa) { expect_reference(Element::e4m3, {0}); }

// The low word of the draws' counter wraps within a row: 2^32 groups of 8 draws.
TEST(Int8Rows, DrawsCarryIntoTheHighWordOfTheCounter) {
  const auto x = elements(values(Fill::normal, 2, 4096), DType::bf16);
  QuantizeOperand p = request(x.data(), DType::bf16, 2, 4096, 4096, row_spec(Element::int8, true));
  for (const int64_t first : {(int64_t{1} << 35) / 4096 - 1, (int64_t{1} << 34) / 4096 - 1}) {
    p.row.rounding = p.transposed.rounding = {.key = philox_key(1, "x.fwd"), .first_row = first, .first_column = 24};
    Outputs expected(p, true, true);
    quantize_operand(p, Isa::ref);
    for (const Isa isa : isas()) {
      Outputs found(p, true, true);
      quantize_operand(p, isa);
      expect_same(found, expected, name(isa));
    }
  }
}

TEST(Int8Rows, SubsetsAndThreadCountsGiveTheSameBits) {
  const int threads = omp_get_max_threads();
  const auto x = elements(values(Fill::normal, 300, 80), DType::bf16);
  QuantizeOperand p = request(x.data(), DType::bf16, 300, 80, 80, row_spec(Element::int8));
  Outputs all(p, true, true);
  quantize_operand(p);
  for (const int n : {1, 2, 3, 7}) {
    omp_set_num_threads(n);
    Outputs rows(p, true, false);
    quantize_operand(p);
    Outputs cols(p, false, true);
    quantize_operand(p);
    EXPECT_EQ(std::memcmp(rows.codes(), all.codes(), static_cast<size_t>(all.row.codes.size())), 0);
    EXPECT_EQ(std::memcmp(cols.panels.data(), all.panels.data(), static_cast<size_t>(all.panels.size())), 0);
    EXPECT_EQ(std::memcmp(cols.col_scales.data(), all.col_scales.data(), 80 * 4), 0);
  }
  omp_set_num_threads(threads);
}

TEST(Int8Rows, NamedValues) {
  const std::vector<float> x = {127, 63.5f, -0.5f, -127, 1.5f, 2.5f, 0, 0};
  QuantizeOperand p = request(x.data(), DType::f32, 1, 8, 8, row_spec(Element::int8));
  Outputs out(p, true, false);
  quantize_operand(p);
  EXPECT_EQ(out.scales()[0], 1.0f);
  const int expected[] = {127, 64, 0, -127, 2, 2, 0, 0};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(out.codes()[i], expected[i]);
}

TEST(Int8Rows, ANanPoisonsItsRowAndColumnOnly) {
  std::vector<float> x(64 * 64, 1.0f);
  x[10 * 64 + 20] = NAN;
  QuantizeOperand p = request(x.data(), DType::f32, 64, 64, 64, row_spec(Element::int8));
  Outputs out(p, true, true);
  quantize_operand(p);
  for (int64_t i = 0; i < 64; ++i) {
    EXPECT_EQ(std::isnan(out.scales()[i]), i == 10);
    EXPECT_EQ(std::isnan(out.col_scales.as<float>()[i]), i == 20);
    EXPECT_EQ(out.codes()[10 * 64 + i], 0);
    EXPECT_EQ(out.codes()[11 * 64 + i], 127);
  }
}

TEST(Int8Rows, StochasticRoundingIsUnbiased) {
  const int64_t n = 1 << 16;
  std::vector<float> x(static_cast<size_t>(n), 0.3f);
  x[0] = 127;
  QuantizeOperand p = request(x.data(), DType::f32, 1, n, n, row_spec(Element::int8, true));
  p.row.rounding.key = philox_key(9, "t#dy.dgrad");
  Outputs out(p, true, false);
  quantize_operand(p);
  double sum = 0;
  for (int64_t i = 1; i < n; ++i) sum += out.codes()[i];
  EXPECT_NEAR(sum / static_cast<double>(n - 1), 0.3, 4 * std::sqrt(0.21 / static_cast<double>(n)));
}

TEST(Int8Rows, ImpossibleDescriptionsAreErrors) {
  float x[4] = {};
  const auto expect_error = [&](auto change) {
    QuantizeOperand p = request(x, DType::f32, 2, 2, 2, row_spec(Element::int8));
    Outputs out(p, true, true);
    EXPECT_NO_THROW(quantize_operand(p));
    change(p);
    EXPECT_THROW(quantize_operand(p), Error);
  };
  expect_error([](QuantizeOperand& p) { p.type = DType::s8; });
  expect_error([](QuantizeOperand& p) { p.ld = 1; });
  expect_error([](QuantizeOperand& p) { p.transposed.scales = nullptr; });
  expect_error([](QuantizeOperand& p) { p.x = nullptr; });
}

TEST(E4m3Rows, EveryRoundingBoundary) {
  // Rows whose first element sets the scale to 1: all codes, the midpoints between them and their neighbours.
  std::vector<float> x;
  for (int code = 0; code < 0x7E; ++code) {
    const float a = decode(Float::e4m3, static_cast<uint8_t>(code)), mid = (a + decode(Float::e4m3, static_cast<uint8_t>(code + 1))) / 2;
    for (const float v : {a, mid, std::nextafter(mid, 0.0f), std::nextafter(mid, 1e9f)}) x.push_back(v), x.push_back(-v);
  }
  x.push_back(448);
  const auto n = static_cast<int64_t>(x.size());
  for (const Isa isa : isas()) {
    QuantizeOperand p = request(x.data(), DType::f32, 1, n, n, row_spec(Element::e4m3));
    Outputs out(p, true, false);
    quantize_operand(p, isa);
    EXPECT_EQ(out.scales()[0], 1.0f);
    for (int64_t i = 0; i < n; ++i) {
      const uint8_t code = p.row.codes[i];
      ASSERT_EQ(code, encode(Float::e4m3, x[static_cast<size_t>(i)])) << name(isa) << " " << x[static_cast<size_t>(i)];
      ASSERT_TRUE(same(static_cast<float>(out.row.values.as<bf16>()[i]), decode(Float::e4m3, code)));
    }
  }
}

TEST(E4m3Rows, ScalesOfSpecification) {
  const auto scale = [](float amax) { return fp8_scale(Float::e4m3, true, std::bit_cast<uint32_t>(amax)); };
  EXPECT_EQ(scale(448).inv, 1.0f);
  EXPECT_EQ(scale(449).inv, 0.5f);
  EXPECT_EQ(scale(0).inv, std::bit_cast<float>(0x57800000u));
  EXPECT_TRUE(std::isnan(scale(INFINITY).scale));
}

}  // namespace
}  // namespace halftone::row_scales_test
