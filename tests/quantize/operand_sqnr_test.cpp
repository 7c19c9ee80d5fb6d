// Round-trip accuracy of one tensor in every format: a table of operand, data and bounds. A result that is too good means that something
// was not quantised.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <ostream>

#include "halftone/formats/mx9.h"
#include "halftone/quantize/operand.h"
#include "quantize/operand_data.h"

namespace halftone::operand_sqnr_test {
namespace {

using namespace testing;
using E = Element;
using G = Granularity;
using S = ScaleFormat;
using M = ScaleMode;

constexpr int64_t kN = 1024;

struct Row {
  std::string name;
  OperandSpec spec;
  bool outliers;  // data O, else R
  int64_t rows, cols;
  int seeds;         // the mean over so many tensors: those with outliers vary
  double low, high;  // dB
  const char* source;
  int mx9_bits = 0;  // the block format of formats/mx9.h instead of `spec`
};
std::ostream& operator<<(std::ostream& out, const Row& row) { return out << row.name << ", bounds of " << row.source; }

OperandSpec fp4(G g, S scale, Fp4Chain chain = Fp4Chain::alto) {
  OperandSpec s = make_spec(E::e2m1, g, 16, scale);
  s.two_level = TwoLevel::tensor, s.chain = chain;
  return s;
}
OperandSpec four_over_six(G g, S scale, ScaleChoice choice = ScaleChoice::squared) {
  OperandSpec s = fp4(g, scale);
  s.choice = choice;
  return s;
}
OperandSpec nvint4(G g) {
  OperandSpec s = make_spec(E::int4, g, 16, S::e4m3);
  s.two_level = TwoLevel::tensor;
  return s;
}
OperandSpec stochastic(OperandSpec s) {
  s.stochastic = true;
  return s;
}
OperandSpec macro() {
  OperandSpec s = make_spec(E::e2m1, G::block, 32, S::e8m0, M::adaptive);
  s.two_level = TwoLevel::macro;
  return s;
}

std::vector<Row> rows() {
  struct Figures {
    const char* name;
    OperandSpec spec;
    double on_r, on_o;  // 0: not given
  };
  const auto mx = [](E e, M m, G g = G::block) { return make_spec(e, g, 32, S::e8m0, m); };
  const Figures figures[] = {
      {"e4m3 T", make_spec(E::e4m3, G::tensor, 0, S::fp32), 31.6, 31.6},
      {"e4m3 row p2", make_spec(E::e4m3, G::row, 0, S::fp32_pow2), 31.5, 31.6},
      {"e4m3 1x128", make_spec(E::e4m3, G::block, 128, S::fp32), 31.8, 40.7},
      {"e4m3 128x128", make_spec(E::e4m3, G::tile, 128, S::fp32), 31.55, 32.0},
      {"e5m2 T", make_spec(E::e5m2, G::tensor, 0, S::fp32), 25.6, 25.4},
      {"MX e4m3 rceil", mx(E::e4m3, M::rceil), 31.5, 31.6},
      {"MX e4m3 floor", mx(E::e4m3, M::floor), 30.7, 28.1},
      {"MX e4m3 even", mx(E::e4m3, M::even), 31.2, 29.7},
      {"MX e5m2 rceil", mx(E::e5m2, M::rceil), 25.5, 25.8},
      {"MX e2m3 even", mx(E::e2m3, M::even), 31.0, 27.9},
      {"MX e3m2 even", mx(E::e3m2, M::even), 25.5, 25.8},
      {"MX e2m1 adaptive", mx(E::e2m1, M::adaptive), 19.03, 18.8},
      {"MX e2m1 floor", mx(E::e2m1, M::floor), 18.8, 17.2},
      {"MX e2m1 rceil", mx(E::e2m1, M::rceil), 18.8, 18.75},
      {"MX e2m1 ceil", mx(E::e2m1, M::ceil), 16.8, 18.6},
      {"MX e2m1 uos", mx(E::e2m1, M::uos), 19.05, 18.6},
      {"MX e2m1 32x32", mx(E::e2m1, M::adaptive, G::tile), 17.9, 15.2},
      {"MX e2m1 SR", stochastic(mx(E::e2m1, M::adaptive)), 16.0, 0},
      {"macro 1x32", macro(), 19.3, 24.4},
      {"nvfp4 1x16", fp4(G::block, S::e4m3), 20.4, 26.9},
      {"nvfp4 1x16 torchao", fp4(G::block, S::e4m3, Fp4Chain::torchao), 20.4, 26.9},
      {"amdfp4 1x16", fp4(G::block, S::ue5m3), 20.4, 26.9},
      {"nvfp4 16x16", fp4(G::tile, S::e4m3), 19.1, 18.4},
      {"nvfp4 16x16 torchao", fp4(G::tile, S::e4m3, Fp4Chain::torchao), 19.1, 18.4},
      {"nvfp4 four over six", four_over_six(G::block, S::e4m3), 21.2, 27.8},
      {"nvfp4 four over six absolute", four_over_six(G::block, S::e4m3, ScaleChoice::absolute), 21.1, 27.8},
      {"nvfp4 four over six largest", four_over_six(G::block, S::e4m3, ScaleChoice::largest), 21.0, 27.7},
      {"nvfp4 four over six 16x16", four_over_six(G::tile, S::e4m3), 19.1, 18.6},
      {"amdfp4 four over six", four_over_six(G::block, S::ue5m3), 21.2, 27.8},
      {"nvfp4 four over six SR", stochastic(four_over_six(G::block, S::e4m3)), 17.5, 0},
      {"mxint8 rceil", mx(E::int8, M::rceil), 41.3, 34.9},
      {"mxint8 floor", mx(E::int8, M::floor), 41.3, 34.9},
      {"mxint8 32x32", mx(E::int8, M::rceil, G::tile), 39.9, 22.8},
      {"nvint4 1x16", nvint4(G::block), 21.3, 26.7},
      {"nvint4 16x16", nvint4(G::tile), 18.0, 18.2},
      {"nvfp4 SR", stochastic(fp4(G::block, S::e4m3)), 17.25, 0},
      {"int8 row", make_spec(E::int8, G::row, 0, S::fp32), 42.1, 25.5},
      {"int8 row SR", stochastic(make_spec(E::int8, G::row, 0, S::fp32)), 39.1, 22.5},
      {"int4 row", make_spec(E::int4, G::row, 0, S::fp32), 17.4, 16.5},
      {"uint4 g32", make_spec(E::uint4, G::block, 32, S::fp32), 22.1, 20.7},
      {"uint4 g32 bf16", make_spec(E::uint4, G::block, 32, S::bf16), 22.1, 20.7},
  };
  constexpr double kNone = std::numeric_limits<double>::infinity();
  constexpr const char *k131 = "numerics.md 13.1", *k133 = "numerics.md 13.3";
  std::vector<Row> out;
  for (const Figures& f : figures) {
    out.push_back({fmt::format("{} R", f.name), f.spec, false, kN, kN, 1, f.on_r - 0.3, f.on_r + 0.5, k133});
    if (f.on_o > 0) out.push_back({fmt::format("{} O", f.name), f.spec, true, kN, kN, 3, f.on_o - 0.6, f.on_o + 0.8, k133});
  }
  for (const auto& [bits, on_r, on_o] : {std::tuple{8, 45.6, 41.9}, std::tuple{5, 28.3, 28.0}}) {
    out.push_back({fmt::format("MX{} R", bits + 1), {}, false, kN, kN, 3, on_r - 0.3, on_r + 0.5, k133, bits});
    out.push_back({fmt::format("MX{} O", bits + 1), {}, true, kN, kN, 3, on_o - 0.6, on_o + 0.8, k133, bits});
  }
  for (const int64_t n : {128, 512}) {  // 128 x 64, 4 x 128 x 64
    for (const auto chain : {Fp4Chain::alto, Fp4Chain::torchao}) {
      for (const auto& [g, on_r, on_o] : {std::tuple{G::block, 19.0, 8.0}, {G::tile, 18.0, 5.0}}) {
        const auto name = fmt::format("nvfp4 {}{} {}x64", g == G::tile ? "16x16" : "1x16", chain == Fp4Chain::alto ? "" : " torchao", n);
        out.push_back({name + " R", fp4(g, S::e4m3, chain), false, n, 64, 1, on_r, kNone, k131});
        out.push_back({name + " O", fp4(g, S::e4m3, chain), true, n, 64, 1, on_o, kNone, k131});
      }
    }
  }
  return out;
}

double mx9_db(int bits, const std::vector<float>& x) {
  Sqnr s;
  for (size_t i = 0; i < x.size(); i += 16) {
    uint8_t block[18];
    float back[16];
    mx9_encode(bits, x.data() + i, 16, block);
    mx9_decode(bits, block, 16, back);
    for (size_t j = 0; j < 16; ++j) s.add(x[i + j], back[j]);
  }
  return s.db();
}

class OperandSqnr : public ::testing::TestWithParam<Row> {};

TEST_P(OperandSqnr, IsWithinTheBounds) {
  const Row& row = GetParam();
  double db = 0;
  for (unsigned seed = 1234; seed < 1234u + static_cast<unsigned>(row.seeds); ++seed) {
    const auto x = row.outliers ? data_o(row.rows * row.cols, seed) : data_r(row.rows * row.cols, seed);
    if (row.mx9_bits > 0) {
      db += mx9_db(row.mx9_bits, x) / row.seeds;
      continue;
    }
    const Qdq q(x, row.rows, row.cols, row.spec, draws(seed));
    EXPECT_EQ(q.packed_differs, 0);
    db += q.sqnr(x) / row.seeds;
  }
  RecordProperty("dB", fmt::format("{:.2f}", db));
  EXPECT_GT(db, row.low);
  EXPECT_LE(db, row.high);
}

INSTANTIATE_TEST_SUITE_P(Formats, OperandSqnr, ::testing::ValuesIn(rows()), [](const auto& info) {
  std::string name = info.param.name;
  std::erase_if(name, [](char c) { return c == '.'; });
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
});

// numerics.md 13.1: blocks without an outer scale at the limits of the block scales' ranges.
TEST(OperandRange, Ue5m3BlocksReachFurtherThanE4m3Blocks) {
  const auto db = [&](S scale, float value, TwoLevel two_level) {
    OperandSpec s = make_spec(E::e2m1, G::block, 16, scale);
    s.two_level = two_level;
    std::vector<float> x = data_r(128 * 128, 1234);
    if (value != 0) std::fill(x.begin(), x.end(), to_float(bf16(value)));
    return std::min(200.0, Qdq(x, 128, 128, s).sqnr(x));
  };
  EXPECT_GE(db(S::ue5m3, 1e4f, TwoLevel::none), db(S::e4m3, 1e4f, TwoLevel::none) + 10);
  EXPECT_GE(db(S::ue5m3, 1e-4f, TwoLevel::none), db(S::e4m3, 1e-4f, TwoLevel::none) + 5);
  EXPECT_GE(db(S::ue5m3, 0, TwoLevel::none), db(S::e4m3, 0, TwoLevel::none) - 0.5);
  EXPECT_GE(db(S::e4m3, 1e-4f, TwoLevel::tensor), 20);  // gradients rely on the outer scale (3.4)
}

// A rotation is undone by the other operand's; here by the transform itself.
TEST(OperandRotation, RotatedCopyIsTheQuantisedRotation) {
  for (const int n : {16, 32}) {
    const uint32_t signs = n == 16 ? 0xD7E8u : 0xB5297A4Du;
    OperandSpec s = fp4(G::block, S::e4m3);
    s.hadamard = n;
    const int64_t tokens = 300, features = 70;  // a tail: zero rows are appended
    const auto x = data_r(tokens * features, 1234);
    const Qdq q(x, tokens, features, s, {}, true, signs);
    EXPECT_EQ(q.C, round_up(tokens, n));
    Sqnr rotated, back;
    for (int64_t f = 0; f < features; ++f) {
      for (int64_t t = 0; t < q.C; t += n) {
        const auto at = [&](int64_t i) { return t + i < tokens ? x[static_cast<size_t>((t + i) * features + f)] : 0.0f; };
        std::vector<double> h(static_cast<size_t>(n)), undone(h);
        for (int i = 0; i < n; ++i) {
          for (int j = 0; j < n; ++j) {
            const bool negative = (std::popcount(static_cast<unsigned>(i & j)) + static_cast<int>(signs >> j & 1)) % 2 != 0;
            const double hij = (negative ? -1 : 1) / std::sqrt(static_cast<double>(n));
            h[static_cast<size_t>(i)] += hij * at(j);
            undone[static_cast<size_t>(j)] += hij * q.values[static_cast<size_t>(f * q.C + t + i)];
          }
        }
        for (int i = 0; i < n; ++i) {
          rotated.add(h[static_cast<size_t>(i)], q.values[static_cast<size_t>(f * q.C + t + i)]);
          back.add(at(i), undone[static_cast<size_t>(i)]);
        }
      }
    }
    EXPECT_NEAR(rotated.db(), back.db(), 0.2) << n;  // orthogonal: the error keeps its magnitude
    EXPECT_GE(rotated.db(), 20.4 - 0.3) << n;        // still Gaussian
    EXPECT_LE(rotated.db(), 20.4 + 0.5) << n;
  }
}

}  // namespace
}  // namespace halftone::operand_sqnr_test
