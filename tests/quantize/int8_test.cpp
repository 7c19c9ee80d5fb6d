#include "halftone/quantize/int8.h"

#include <gtest/gtest.h>
#include <omp.h>

#include "halftone/base/error.h"
#include "halftone/quantize/int8_ref.h"
#include "quantize/cases.h"

namespace halftone::int8_test {
namespace {

using namespace testing;

struct Outputs {
  Outputs(int64_t rows, int64_t cols)
      : codes(rows * (cols + 3)), row_scale(rows * 4), panels(panels_bytes(DType::s8, rows, cols)), col_scale(cols * 4) {}
  void attach(Int8Quantize& p, bool by_row, bool by_col) {
    if (by_row) p.row_codes = codes.as<int8_t>(), p.row_codes_ld = p.cols + 3, p.row_scale = row_scale.as<float>();
    if (by_col) p.col_panels = panels.data(), p.col_scale = col_scale.as<float>();
  }
  Buffer codes, row_scale, panels, col_scale;
};

void expect_same(const Int8Quantize& p, Outputs& a, Outputs& b, const std::string& what) {
  EXPECT_EQ(std::memcmp(a.codes.data(), b.codes.data(), static_cast<size_t>(a.codes.size())), 0) << what;
  EXPECT_EQ(std::memcmp(a.panels.data(), b.panels.data(), static_cast<size_t>(a.panels.size())), 0) << what;
  if (p.row_scale != nullptr) {
    for (int64_t r = 0; r < p.rows; ++r) {
      ASSERT_TRUE(same(a.row_scale.as<float>()[r], b.row_scale.as<float>()[r])) << what << " row " << r;
    }
  }
  if (p.col_scale != nullptr) {
    for (int64_t c = 0; c < p.cols; ++c) {
      ASSERT_TRUE(same(a.col_scale.as<float>()[c], b.col_scale.as<float>()[c])) << what << " column " << c;
    }
  }
  for (Buffer* x : {&a.codes, &a.row_scale, &a.panels, &a.col_scale}) EXPECT_TRUE(x->guard_intact()) << what;
}

TEST(Int8, EqualsTheReferenceOnEveryIsa) {
  for (const Shape s : kShapes) {
    for (const Fill fill : {Fill::normal, Fill::zeros, Fill::tiny, Fill::spread, Fill::nan, Fill::inf, Fill::ties}) {
      for (const DType type : {DType::bf16, DType::f32}) {
        const auto x = elements(values(fill, s.rows, s.cols + s.pad), type);
        for (const int sr : {0, 1, 2}) {
          Int8Quantize p{.x = x.data(), .type = type, .rows = s.rows, .cols = s.cols, .ld = s.cols + s.pad};
          p.row_rounding = {
              .stochastic = sr > 0, .key = philox_key(1, "x.fwd"), .step = 3, .first_row = sr == 2 ? (int64_t{1} << 32) / 8 : 5};
          p.col_rounding = {.stochastic = sr > 0,
                            .key = philox_key(1, "x.wgrad"),
                            .step = 3,
                            .first_row = 5,
                            .first_column = sr == 2 ? 3 : 0,
                            .row_length = sr == 2 ? s.cols + 7 : 0};
          Outputs expected(s.rows, s.cols);
          Int8Quantize ref = p;
          expected.attach(ref, true, true);
          ref::int8_quantize(ref);
          for (const Isa isa : isas()) {
            Outputs found(s.rows, s.cols);
            Int8Quantize q = p;
            found.attach(q, true, true);
            int8_quantize(q, isa);
            expect_same(q, found, expected,
                        fmt::format("{} {}x{} fill {} type {} sr {}", name(isa), s.rows, s.cols, static_cast<int>(fill),
                                    static_cast<int>(type), sr));
          }
        }
      }
    }
  }
}

TEST(Int8, SubsetsAndThreadCountsGiveTheSameBits) {
  const int threads = omp_get_max_threads();
  const auto x = elements(values(Fill::normal, 300, 80), DType::bf16);
  const Int8Quantize base{.x = x.data(), .rows = 300, .cols = 80, .ld = 80};
  Outputs all(300, 80);
  Int8Quantize p = base;
  all.attach(p, true, true);
  int8_quantize(p);
  for (const int n : {1, 2, 3, 7}) {
    omp_set_num_threads(n);
    Outputs rows(300, 80), cols(300, 80);
    Int8Quantize r = base, c = base;
    rows.attach(r, true, false), cols.attach(c, false, true);
    int8_quantize(r), int8_quantize(c);
    EXPECT_EQ(std::memcmp(rows.codes.data(), all.codes.data(), static_cast<size_t>(all.codes.size())), 0);
    EXPECT_EQ(std::memcmp(cols.panels.data(), all.panels.data(), static_cast<size_t>(all.panels.size())), 0);
    EXPECT_EQ(std::memcmp(cols.col_scale.data(), all.col_scale.data(), 80 * 4), 0);
  }
  omp_set_num_threads(threads);
}

TEST(Int8, NamedValues) {
  const std::vector<float> x = {127, 63.5f, -0.5f, -127, 1.5f, 2.5f, 0, 0};
  int8_t codes[8];
  float scale = 0;
  int8_quantize({.x = x.data(), .type = DType::f32, .rows = 1, .cols = 8, .ld = 8, .row_codes = codes, .row_scale = &scale});
  EXPECT_EQ(scale, 1.0f);
  const int expected[] = {127, 64, 0, -127, 2, 2, 0, 0};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(codes[i], expected[i]);
}

TEST(Int8, ANanPoisonsItsRowAndColumnOnly) {
  std::vector<float> x(64 * 64, 1.0f);
  x[10 * 64 + 20] = NAN;
  Outputs out(64, 64);
  Int8Quantize p{.x = x.data(), .type = DType::f32, .rows = 64, .cols = 64, .ld = 64};
  out.attach(p, true, true);
  int8_quantize(p);
  for (int64_t i = 0; i < 64; ++i) {
    EXPECT_EQ(std::isnan(p.row_scale[i]), i == 10);
    EXPECT_EQ(std::isnan(p.col_scale[i]), i == 20);
    EXPECT_EQ(p.row_codes[10 * 67 + i], 0);
    EXPECT_EQ(p.row_codes[11 * 67 + i], 127);
  }
}

TEST(Int8, StochasticRoundingIsUnbiased) {
  const int64_t n = 1 << 16;
  std::vector<float> x(static_cast<size_t>(n), 0.3f);
  x[0] = 127;
  std::vector<int8_t> codes(static_cast<size_t>(n));
  float scale = 0;
  int8_quantize({.x = x.data(),
                 .type = DType::f32,
                 .rows = 1,
                 .cols = n,
                 .ld = n,
                 .row_codes = codes.data(),
                 .row_scale = &scale,
                 .row_rounding = {.stochastic = true, .key = philox_key(9, "t#dy.dgrad")}});
  double sum = 0;
  for (int64_t i = 1; i < n; ++i) sum += codes[static_cast<size_t>(i)];
  EXPECT_NEAR(sum / static_cast<double>(n - 1), 0.3, 4 * std::sqrt(0.21 / static_cast<double>(n)));
}

TEST(Int8, ImpossibleDescriptionsAreErrors) {
  float x[4] = {}, scale[4];
  int8_t codes[4];
  EXPECT_THROW(int8_quantize({.x = x, .type = DType::s8, .rows = 2, .cols = 2, .ld = 2}), Error);
  EXPECT_THROW(int8_quantize({.x = x, .type = DType::f32, .rows = 2, .cols = 2, .ld = 1}), Error);
  EXPECT_THROW(int8_quantize({.x = x, .type = DType::f32, .rows = 2, .cols = 2, .ld = 2, .row_codes = codes}), Error);
  EXPECT_THROW(int8_quantize({.x = nullptr, .type = DType::f32, .rows = 2, .cols = 2, .ld = 2, .row_codes = codes, .row_scale = scale}),
               Error);
}

}  // namespace
}  // namespace halftone::int8_test
