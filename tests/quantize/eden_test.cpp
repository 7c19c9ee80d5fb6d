// MS-EDEN (numerics.md 4.1): edge data, and that its numbers have the mean of what they stand for.
#include "halftone/formats/eden.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "halftone/quantize/operand_ref.h"
#include "quantize/operand_cases.h"

namespace halftone::eden_test {
namespace {

using namespace testing;

OperandSpec eden_spec(int width) {
  OperandSpec s = find_linear_recipe("quartet2")->dy_wgrad;
  s.hadamard = width;
  return s;
}
RotationSigns signs_of(uint32_t step) { return RotationSigns(philox(philox_key(5, "w#rht"), 0, step)); }

// x[rows, width] quantised along its rows with the signs and draws of a step, rotated back.
std::vector<double> estimate(const std::vector<float>& x, int64_t rows, const OperandSpec& spec, const RotationSigns& signs,
                             uint32_t step) {
  const int width = spec.hadamard;
  QuantizeOperand p;
  p.x = x.data(), p.type = DType::f32, p.rows = rows, p.cols = p.ld = width, p.want_row = true;
  p.row.spec = spec, p.row.form = ValueForm::f32, p.row.signs = signs;
  p.row.rounding.key = philox_key(5, "w#dy.dgrad.scale"), p.row.rounding.step = step;
  CopyBuffers out(p.row, rows, width);
  quantize_operand(p);
  std::vector<double> result;
  with_width(width, [&]<int kWidth> {
    for (int64_t r = 0; r < rows; ++r) {
      float v[kWidth];
      for (int j = 0; j < kWidth; ++j) v[j] = out.values.as<float>()[r * kWidth + j];
      hadamard(v, {});  // symmetric: H^T is the transform followed by the signs
      for (int j = 0; j < kWidth; ++j) result.push_back((signs.negative(j) != 0 ? -1.0 : 1.0) * *out.outer.as<float>() * v[j]);
    }
  });
  return result;
}

double dot(const double* a, const float* b, int64_t n) { return std::inner_product(a, a + n, b, 0.0); }

// <x^, x> has the mean <x, x> for every single rotation: the factor S makes it exact before the scales are rounded, and their rounding is
// unbiased. A block's scale s S lies between neighbours at most s S / 8 apart (three mantissa bits, normal scales), so its rounding has a
// standard deviation of at most s S / 16, and contributes <x, x>_b (1/16) to that of <x^, x>: together at most <x, x> / 16 over one draw,
// <x, x> / (16 sqrt(N)) over N. Bound: five of these, and 1e-5 for fp32 and the resolution of the draws.
TEST(Eden, AlongTheOperandTheMeanIsExactInEveryRotation) {
  constexpr int64_t kRows = 32, kDraws = 400;
  for (const int width : {16, 32, 64, 128}) {
    const std::vector<float> x = values(Fill::normal, kRows, width);
    for (const uint32_t rotation : {0u, 1u, 2u}) {
      std::vector<double> mean(kRows);
      for (uint32_t step = 0; step < kDraws; ++step) {
        const std::vector<double> q = estimate(x, kRows, eden_spec(width), signs_of(rotation), step);
        for (int64_t r = 0; r < kRows; ++r) mean[static_cast<size_t>(r)] += dot(q.data() + r * width, x.data() + r * width, width) / kDraws;
      }
      for (int64_t r = 0; r < kRows; ++r) {
        const float* row = x.data() + r * width;
        const double exact = std::inner_product(row, row + width, row, 0.0);
        EXPECT_NEAR(mean[static_cast<size_t>(r)] / exact, 1, 5.0 / (16 * std::sqrt(double{kDraws})) + 1e-5) << width << " row " << r;
      }
    }
  }
}

// Mean squared error of the mean over kDraws rotations, in standard errors: of n elements whose estimates have the means x, it is 1 with a
// standard deviation of (2 / n)^(1/2). Rotations by signs are not uniform, which leaves a bias that falls with the width: at 16 it is
// noticed, at 32 and more it is below the standard error of 2,000 draws.
double squared_error_of_mean(const std::vector<float>& x, int64_t rows, const OperandSpec& spec) {
  constexpr uint32_t kDraws = 2000;
  std::vector<double> sum(x.size()), squares(x.size());
  for (uint32_t step = 0; step < kDraws; ++step) {
    const std::vector<double> q = estimate(x, rows, spec, signs_of(step), step);
    for (size_t i = 0; i < x.size(); ++i) {
      const double e = q[i] - double{x[i]};
      sum[i] += e, squares[i] += e * e;
    }
  }
  double result = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double mean = sum[i] / kDraws, variance = squares[i] / kDraws - mean * mean;
    result += mean * mean / (variance / kDraws) / static_cast<double>(x.size());
  }
  return result;
}

TEST(Eden, TheMeanOverRotationsIsTheOperand) {
  constexpr int64_t kRows = 32;
  for (const int width : {32, 64, 128}) {
    const std::vector<float> x = values(Fill::normal, kRows, width);
    const double found = squared_error_of_mean(x, kRows, eden_spec(width));
    EXPECT_NEAR(found, 1, 5 * std::sqrt(2.0 / static_cast<double>(x.size()))) << width;
    // Codes to nearest alone are about 1% too small, eight standard errors.
    OperandSpec nearest = eden_spec(width);
    nearest.eden = false;
    EXPECT_GT(squared_error_of_mean(x, kRows, nearest), 2) << width;
  }
}

// About half of the variance of codes rounded stochastically.
TEST(Eden, HasLessVarianceThanStochasticCodes) {
  constexpr int64_t kRows = 256;
  constexpr int kWidth = 128;
  const std::vector<float> x = values(Fill::normal, kRows, kWidth);
  const auto error = [&](const std::vector<double>& q) {
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += (q[i] - double{x[i]}) * (q[i] - double{x[i]}) / static_cast<double>(x.size());
    return sum;
  };
  OperandSpec stochastic = eden_spec(kWidth);
  stochastic.eden = false, stochastic.stochastic = true;
  const double eden = error(estimate(x, kRows, eden_spec(kWidth), signs_of(1), 1)),
               plain = error(estimate(x, kRows, stochastic, signs_of(1), 1));
  EXPECT_LT(eden, 0.55 * plain);
  EXPECT_LT(eden, 0.0105);
}

// Every byte of both copies against the reference, on every instruction set.
void expect_reference(const std::vector<float>& x, int64_t rows, int64_t cols, int width) {
  QuantizeOperand p;
  p.x = x.data(), p.type = DType::f32, p.rows = rows, p.cols = p.ld = cols, p.want_transposed = true;
  p.want_row = rows % 16 < 2;  // every matrix would take most of a minute
  for (QuantizedCopy* copy : {&p.row, &p.transposed}) {
    copy->spec = eden_spec(width), copy->form = ValueForm::bf16, copy->signs = signs_of(static_cast<uint32_t>(rows));
    copy->rounding.key = philox_key(5, "w#dy.scale"), copy->rounding.step = 3;
  }
  QuantizeOperand ref = p;
  CopyBuffers a(ref.row, rows, cols), b(ref.transposed, cols, rows);
  ref::quantize_operand(ref);
  for (const Isa isa : isas()) {
    CopyBuffers r(p.row, rows, cols), t(p.transposed, cols, rows);
    quantize_operand(p, isa);
    for (const auto& [found, expected] : {std::pair{&r, &a}, {&t, &b}}) {
      const auto x = found->all(), y = expected->all();
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(std::memcmp(x[i].second->data(), y[i].second->data(), static_cast<size_t>(y[i].second->size())), 0)
            << x[i].first << ", " << rows << " x " << cols << " by " << width << ", " << name(isa);
      }
    }
  }
}

TEST(Eden, RowsFromOneToElevenHundred) {
  for (int64_t rows = 1; rows <= 1100; ++rows) {
    const int width = 16 << rows % 4;
    const int64_t cols = 1 + rows % 5;
    expect_reference(values(rows % 5 == 0 ? Fill::spread : Fill::normal, rows, cols), rows, cols, width);
    if (HasFatalFailure()) return;
  }
}

TEST(Eden, TinyBlocksAndOneHugeElement) {
  for (const int width : {16, 32, 64, 128}) {
    std::vector<float> tiny(static_cast<size_t>(128 * width)), huge = tiny;
    for (size_t i = 0; i < tiny.size(); ++i) tiny[i] = i % 3 == 0 ? 1e-37f : -1e-37f;
    huge[static_cast<size_t>(width + 5)] = 3e38f;
    expect_reference(tiny, 128, width, width), expect_reference(huge, 128, width, width);
    std::vector<float> beside = tiny;
    beside[7] = 3e38f;
    expect_reference(beside, 128, width, width);
    if (HasFatalFailure()) return;
    const std::vector<double> of_tiny = estimate(tiny, 128, eden_spec(width), signs_of(2), 2);
    const std::vector<double> of_huge = estimate(huge, 128, eden_spec(width), signs_of(2), 2);
    // Scales of the tiny blocks are subnormal: each is rounded by a standard deviation of at most half of the smallest number, and so of
    // itself. Bound: five of the mean's.
    double along = 0;
    for (size_t i = 0; i < tiny.size(); ++i) along += of_tiny[i] / 1e-37 * (tiny[i] > 0 ? 1 : -1) / static_cast<double>(tiny.size());
    EXPECT_NEAR(along, 1, 2.5 / std::sqrt(128.0 * width / 16)) << width;
    // Normal scales are rounded by less than an eighth.
    for (size_t i = 0; i < huge.size(); ++i) {
      EXPECT_NEAR(of_huge[i] / 3e38, huge[i] > 0 ? 1 : 0, 0.125) << width << " element " << i;
    }
  }
}

TEST(Eden, PoisonStaysInItsRotationGroupUnlessTheTensorHasIt) {
  constexpr int kWidth = 32;
  // Finite, but the sums of the first group overflow.
  std::vector<float> x(static_cast<size_t>(4 * kWidth), 1e38f);
  for (int i = 0; i < kWidth; ++i) x[static_cast<size_t>(i)] = 3e38f;
  expect_reference(x, 2, 2 * kWidth, kWidth);
  x[3] = std::numeric_limits<float>::quiet_NaN();
  expect_reference(x, 2, 2 * kWidth, kWidth);
  for (const double v : estimate(x, 4, eden_spec(kWidth), signs_of(1), 1)) EXPECT_TRUE(std::isnan(v));
}

}  // namespace
}  // namespace halftone::eden_test
