#include "halftone/gemm/cpu/gemm.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstring>
#include <random>

#include "halftone/base/error.h"
#include "halftone/gemm/cpu/gemm_ref.h"
#include "halftone/quantize/operand.h"
#include "quantize/cases.h"

namespace halftone::gemm {
namespace {

using testing::Buffer;

std::vector<Isa> isas() {
  std::vector<Isa> all;
  for (const Isa isa : {Isa::v3, Isa::avxvnni, Isa::avx512, Isa::vnni, Isa::amx})
    if (available(isa)) all.push_back(isa);
  return all;
}

struct Case {
  int64_t m, n, k;
};
const std::vector<Case> kCases = {{1, 16, 64},   {17, 33, 65},   {150, 100, 7},  {32, 32, 256},  {5, 1, 1},
                                  {33, 706, 31}, {40, 48, 2880}, {64, 96, 1030}, {150, 257, 130}};

void fill(DType type, std::byte* out, int64_t n, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < n; ++i) {
    const float v = normal(rng);
    if (type == DType::s8)
      reinterpret_cast<int8_t*>(out)[i] = static_cast<int8_t>(static_cast<int>(rng() % 255) - 127);
    else if (type == DType::bf16)
      reinterpret_cast<bf16*>(out)[i] = bf16(v);
    else
      reinterpret_cast<float*>(out)[i] = v;
  }
}

// Operands of one GEMM: A both row-major (row stride k + 3) and in panels, B packed by either function.
struct Problem {
  Problem(DType type, Case s, bool b_by_columns)
      : type(type),
        s(s),
        lda(s.k + 3),
        a(s.m * lda * static_cast<int64_t>(size_of(type))),
        a_panels(packed_bytes(type, s.k, s.m)),
        b(packed_bytes(type, s.k, s.n)),
        scale_m(s.m),
        scale_n(s.n),
        bias(s.n) {
    fill(type, a.data(), s.m * lda, 1);
    pack_rows(type, s.m, s.k, a.data(), lda, a_panels.data());
    const int64_t ld = (b_by_columns ? s.n : s.k) + 1;
    Buffer src((b_by_columns ? s.k : s.n) * ld * static_cast<int64_t>(size_of(type)));
    fill(type, src.data(), (b_by_columns ? s.k : s.n) * ld, 2);
    if (b_by_columns)
      pack_columns(type, s.k, s.n, src.data(), ld, b.data());
    else
      pack_rows(type, s.n, s.k, src.data(), ld, b.data());
    std::mt19937 rng(3);
    std::uniform_real_distribution<float> u(0.5f, 1.5f);
    for (auto* v : {&scale_m, &scale_n, &bias})
      for (float& x : *v) x = u(rng);
  }
  Gemm gemm(bool panels, bool scaled) {
    Gemm g{.type = type,
           .m = s.m,
           .n = s.n,
           .k = s.k,
           .a = panels ? a_panels.data() : a.data(),
           .lda = lda,
           .a_panels = panels,
           .b = b.data()};
    if (scaled) g.scale_m = scale_m.data(), g.scale_n = scale_n.data(), g.bias = bias.data();
    return g;
  }
  DType type;
  Case s;
  int64_t lda;
  Buffer a, a_panels, b;
  std::vector<float> scale_m, scale_n, bias;
};

std::vector<float> result(Gemm g, DType c_type, bool accumulate, Isa isa) {
  const int64_t ldc = g.n + 5;
  Buffer c(g.m * ldc * static_cast<int64_t>(size_of(c_type)));
  g.c = c.data(), g.c_type = c_type, g.ldc = ldc, g.accumulate = accumulate;
  if (accumulate) fill(c_type, c.data(), g.m * ldc, 4);
  run(g, isa);
  EXPECT_TRUE(c.guard_intact());
  std::vector<float> out;
  for (int64_t i = 0; i < g.m; ++i)
    for (int64_t j = 0; j < g.n; ++j)
      out.push_back(c_type == DType::f32 ? c.as<float>()[i * ldc + j] : static_cast<float>(c.as<bf16>()[i * ldc + j]));
  if (!accumulate && g.m > 0) {
    EXPECT_EQ(c.data()[g.n * static_cast<int64_t>(size_of(c_type))], std::byte{0xA5}) << "wrote between the rows";
  }
  return out;
}

double decibel(const std::vector<float>& found, const std::vector<float>& expected) {
  double signal = 0, noise = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    signal += static_cast<double>(expected[i]) * expected[i];
    noise += std::pow(static_cast<double>(found[i]) - expected[i], 2);
  }
  return noise == 0 ? 999 : 10 * std::log10(signal / noise);
}

class Products : public ::testing::TestWithParam<DType> {};

TEST_P(Products, EqualTheReference) {
  const DType type = GetParam();
  for (const Case s : kCases) {
    for (const bool by_columns : {false, true}) {
      Problem p(type, s, by_columns);
      for (const int epilogue : {0, 1, 2, 3}) {
        const DType c_type = epilogue % 2 == 0 ? DType::f32 : DType::bf16;
        const bool extended = epilogue >= 2;
        const auto expected = result(p.gemm(false, extended), c_type, extended, Isa::ref);
        for (const bool panels : {false, true}) {
          for (const Isa isa : isas()) {
            const auto found = result(p.gemm(panels, extended), c_type, extended, isa);
            const auto what = fmt::format("{} type {} m {} n {} k {} panels {} epilogue {}", name(isa), static_cast<int>(type), s.m, s.n,
                                          s.k, panels, epilogue);
            if (type == DType::s8) {
              ASSERT_EQ(found, expected) << what;
            } else {
              ASSERT_GE(decibel(found, expected), c_type == DType::f32 ? 90 : 54) << what;
            }
          }
        }
      }
    }
  }
}

TEST(Gemm, PanelReferenceReadsWhatRowMajorDoes) {
  for (const DType type : {DType::s8, DType::bf16, DType::f32}) {
    Problem p(type, {19, 21, 70}, true);
    EXPECT_EQ(result(p.gemm(false, true), DType::f32, true, Isa::ref), result(p.gemm(true, true), DType::f32, true, Isa::ref));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Products, ::testing::Values(DType::s8, DType::bf16, DType::f32));

TEST(Gemm, ThreadCountDoesNotChangeABit) {
  const int threads = omp_get_max_threads();
  for (const DType type : {DType::s8, DType::bf16, DType::f32}) {
    Problem p(type, {300, 200, 1100}, false);
    for (const Isa isa : isas()) {
      std::vector<float> first;
      for (const int n : {1, 2, 3, 16}) {
        omp_set_num_threads(n);
        const auto found = result(p.gemm(false, true), DType::f32, false, isa);
        if (n == 1) first = found;
        ASSERT_EQ(std::memcmp(first.data(), found.data(), found.size() * 4), 0) << name(isa) << " " << n;
      }
    }
  }
  omp_set_num_threads(threads);
}

// More columns than one epilogue finishes, an odd remainder, and tiles whose epilogue is deferred to the next one.
TEST(Gemm, ManyColumns) {
  for (const DType type : {DType::s8, DType::bf16, DType::f32}) {
    Problem p(type, {70, 8192 + 48, 9}, false);
    const auto expected = result(p.gemm(false, true), DType::f32, false, Isa::ref);
    for (const Isa isa : isas()) ASSERT_GE(decibel(result(p.gemm(false, true), DType::f32, false, isa), expected), 90) << name(isa);
  }
}

TEST(Gemm, EmptySizes) {
  for (const Isa isa : isas()) {
    run(Gemm{.type = DType::s8, .m = 0, .n = 4, .k = 4, .lda = 4}, isa);
    run(Gemm{.type = DType::bf16, .m = 4, .n = 0, .k = 4, .lda = 4}, isa);
    float c[6] = {9, 9, 9, 9, 9, 9};
    const float bias[3] = {1, 2, 3};
    run(Gemm{.type = DType::bf16, .m = 2, .n = 3, .k = 0, .bias = bias, .c = c, .c_type = DType::f32, .ldc = 3}, isa);
    for (int i = 0; i < 6; ++i) EXPECT_EQ(c[i], static_cast<float>(i % 3 + 1)) << name(isa);
  }
}

TEST(Gemm, ExtremeCodesSumExactly) {
  const int64_t k = 4096;
  Buffer a(33 * k), b(packed_bytes(DType::s8, k, 40));
  std::memset(a.data(), 127, static_cast<size_t>(33 * k));
  Buffer w(40 * k);
  std::memset(w.data(), 0x81, static_cast<size_t>(40 * k));  // -127
  pack_rows(DType::s8, 40, k, w.data(), k, b.data());
  for (const Isa isa : isas()) {
    std::vector<float> c(33 * 40);
    run(Gemm{.type = DType::s8,
             .m = 33,
             .n = 40,
             .k = k,
             .a = a.data(),
             .lda = k,
             .b = b.data(),
             .c = c.data(),
             .c_type = DType::f32,
             .ldc = 40},
        isa);
    for (const float v : c) ASSERT_EQ(v, -127.0f * 127.0f * 4096.0f) << name(isa);
  }
}

TEST(Gemm, ANanStaysInItsRow) {
  for (const Isa isa : isas()) {
    Problem p(DType::bf16, {40, 32, 70}, false);
    p.a.as<bf16>()[3 * p.lda + 5] = bf16(NAN);
    p.a.as<bf16>()[6 * p.lda + 70] = bf16(NAN);  // beyond the row's end: must not be read
    const auto c = result(p.gemm(false, false), DType::f32, false, isa);
    for (int64_t i = 0; i < 40; ++i)
      for (int64_t j = 0; j < 32; ++j) ASSERT_EQ(std::isnan(c[static_cast<size_t>(i * 32 + j)]), i == 3) << name(isa) << " " << i;
  }
}

// The three GEMMs of an int8 linear layer on the quantiser's output, against fp64 on the dequantised operands.
TEST(Gemm, QuantisedLinearLayer) {
  const int64_t m = 150, n = 72, k = 104;
  std::vector<bf16> x(static_cast<size_t>(m * k)), w(static_cast<size_t>(n * k)), dy(static_cast<size_t>(m * n));
  fill(DType::bf16, reinterpret_cast<std::byte*>(x.data()), m * k, 1);
  fill(DType::bf16, reinterpret_cast<std::byte*>(w.data()), n * k, 2);
  fill(DType::bf16, reinterpret_cast<std::byte*>(dy.data()), m * n, 3);
  struct Quantised {
    Quantised(const std::vector<bf16>& v, int64_t r, int64_t c)
        : codes(r * c), panels(packed_bytes(DType::s8, r, c)), rows(static_cast<size_t>(r)), cols(static_cast<size_t>(c)) {
      QuantizeOperand p;
      p.x = v.data(), p.rows = r, p.cols = p.ld = c, p.want_row = p.want_transposed = true;
      p.row.spec = {.element = Element::int8, .granularity = Granularity::row, .scale = ScaleFormat::fp32}, p.transposed.spec = p.row.spec;
      p.row.codes = codes.as<uint8_t>(), p.row.scales = rows.data();
      p.transposed.panels = panels.data(), p.transposed.scales = cols.data();
      quantize_operand(p);
    }
    Buffer codes, panels;
    std::vector<float> rows, cols;
  };
  Quantised qx(x, m, k), qw(w, n, k), qdy(dy, m, n);
  Buffer packed(packed_bytes(DType::s8, k, n));
  pack_rows(DType::s8, n, k, qw.codes.data(), k, packed.data());
  const auto at = [](const std::vector<bf16>& v, int64_t i) { return static_cast<double>(static_cast<float>(v[static_cast<size_t>(i)])); };
  const auto sqnr = [](const std::vector<float>& c, auto&& exact, int64_t cols) {
    double s = 0, e = 0;
    for (size_t i = 0; i < c.size(); ++i) {
      const double y = exact(static_cast<int64_t>(i) / cols, static_cast<int64_t>(i) % cols);
      s += y * y, e += (c[i] - y) * (c[i] - y);
    }
    return 10 * std::log10(s / e);
  };
  for (const Isa isa : isas()) {
    std::vector<float> y(static_cast<size_t>(m * n)), dx(static_cast<size_t>(m * k)), dw(static_cast<size_t>(n * k));
    run({.type = DType::s8,
         .m = m,
         .n = n,
         .k = k,
         .a = qx.codes.data(),
         .lda = k,
         .b = packed.data(),
         .scale_m = qx.rows.data(),
         .scale_n = qw.rows.data(),
         .c = y.data(),
         .c_type = DType::f32,
         .ldc = n},
        isa);
    run({.type = DType::s8,
         .m = m,
         .n = k,
         .k = n,
         .a = qdy.codes.data(),
         .lda = n,
         .b = qw.panels.data(),
         .scale_m = qdy.rows.data(),
         .scale_n = qw.cols.data(),
         .c = dx.data(),
         .c_type = DType::f32,
         .ldc = k},
        isa);
    run({.type = DType::s8,
         .m = n,
         .n = k,
         .k = m,
         .a = qdy.panels.data(),
         .a_panels = true,
         .b = qx.panels.data(),
         .scale_m = qdy.cols.data(),
         .scale_n = qx.cols.data(),
         .c = dw.data(),
         .c_type = DType::f32,
         .ldc = k,
         .accumulate = true},
        isa);
    EXPECT_GT(sqnr(
                  y,
                  [&](int64_t i, int64_t j) {
                    double s = 0;
                    for (int64_t l = 0; l < k; ++l) s += at(x, i * k + l) * at(w, j * k + l);
                    return s;
                  },
                  n),
              36)
        << name(isa);
    EXPECT_GT(sqnr(
                  dx,
                  [&](int64_t i, int64_t j) {
                    double s = 0;
                    for (int64_t l = 0; l < n; ++l) s += at(dy, i * n + l) * at(w, l * k + j);
                    return s;
                  },
                  k),
              36)
        << name(isa);
    EXPECT_GT(sqnr(
                  dw,
                  [&](int64_t i, int64_t j) {
                    double s = 0;
                    for (int64_t l = 0; l < m; ++l) s += at(dy, l * n + i) * at(x, l * k + j);
                    return s;
                  },
                  k),
              36)
        << name(isa);
  }
}

TEST(Gemm, ImpossibleDescriptionsAreErrors) {
  float c[4];
  int8_t a[4] = {};
  EXPECT_THROW(run(Gemm{.type = DType::u8, .m = 1, .n = 1, .k = 1, .a = a, .lda = 1, .b = a, .c = c, .ldc = 1}), Error);
  EXPECT_THROW(run(Gemm{.type = DType::s8, .m = 1, .n = 1, .k = 1, .a = a, .lda = 1, .b = nullptr, .c = c, .ldc = 1}), Error);
  EXPECT_THROW(run(Gemm{.type = DType::s8, .m = 2, .n = 2, .k = 2, .a = a, .lda = 1, .b = a, .c = c, .ldc = 2}), Error);
  EXPECT_THROW(run(Gemm{.type = DType::s8, .m = 1, .n = 1, .k = 200000, .a = a, .lda = 200000, .b = a, .c = c, .ldc = 1}), Error);
  EXPECT_THROW(run(Gemm{.type = DType::s8, .m = 1, .n = 1, .k = 1, .a = a, .lda = 1, .b = a, .c = c, .c_type = DType::s32, .ldc = 1}),
               Error);
}

// docs/sampling.md: no sum of a row depends on the other rows, in any instruction set.
TEST(Gemm, RowsDoNotDependOnTheirNumber) {
  for (const Isa isa : isas()) {
    for (const DType type : {DType::s8, DType::bf16, DType::f32}) {
      for (const Case& c : {Case{150, 257, 130}, Case{97, 64, 2880}, Case{40, 706, 31}}) {
        SCOPED_TRACE(fmt::format("{} type {} of {} x {} x {}", name(isa), static_cast<int>(type), c.m, c.n, c.k));
        Problem p(type, c, false);
        const auto run_rows = [&](int64_t first, int64_t rows) {
          std::vector<float> out(static_cast<size_t>(rows * c.n), NAN);
          Gemm g = p.gemm(false, true);
          g.m = rows, g.a = p.a.data() + first * p.lda * static_cast<int64_t>(size_of(type)), g.scale_m = p.scale_m.data() + first;
          g.c = out.data(), g.c_type = DType::f32, g.ldc = c.n;
          run(g, isa);
          return out;
        };
        const std::vector<float> all = run_rows(0, c.m);
        for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{0, 1}, {c.m - 1, 1}, {3, 17}, {1, c.m - 2}}) {
          const std::vector<float> some = run_rows(first, rows);
          EXPECT_EQ(std::memcmp(some.data(), all.data() + first * c.n, some.size() * sizeof(float)), 0) << rows << " rows from " << first;
        }
      }
    }
  }
}

}  // namespace
}  // namespace halftone::gemm
