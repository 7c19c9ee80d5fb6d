#include "halftone/fused/rms_norm.h"

#include "fused/support.h"
#include "halftone/base/error.h"
#include "halftone/fused/rms_norm_ref.h"

namespace halftone {
namespace {

struct Case {
  int64_t rows, cols;
};
struct Types {
  DType stream, type;
};
const Types kStreams[] = {{DType::f32, DType::f32}, {DType::f32, DType::bf16}, {DType::bf16, DType::bf16}};
const Case kCases[] = {{1, 1}, {3, 5}, {2, 16}, {4, 31}, {5, 64}, {70, 100}, {130, 256}, {3, 1027}};

RmsNormForward forward(Matrix& x, Matrix& w, Matrix& y, std::vector<float>& rstd) {
  RmsNormForward p;
  p.rows = x.rows, p.cols = x.cols, p.stream_dtype = x.type, p.dtype = y.type, p.weight_dtype = w.type;
  p.x = x.data(), p.x_stride = x.stride, p.weight = w.data();
  p.y = y.data(), p.y_stride = y.stride, p.rstd = rstd.data();
  return p;
}

TEST(RmsNorm, ForwardMatchesReference) {
  for (const auto [rows, cols] : kCases) {
    for (const auto [stream, type] : kStreams) {
      for (const DType weight_type : kFloatTypes) {
        Matrix x(rows, cols, stream), w(1, cols, weight_type), y(rows, cols, type);
        x.randomise(1), w.randomise(2);
        std::vector<float> rstd(static_cast<size_t>(rows));
        const RmsNormForward p = forward(x, w, y, rstd);
        const auto expected = rms_norm_forward_ref(p);
        rms_norm_forward(p);
        y.expect_near(expected.y, 2e-6, 1e-7, fmt::format("{}x{} {}", rows, cols, name_of(type)));
        y.expect_gaps_untouched();
        for (int64_t t = 0; t < rows; ++t) ASSERT_NEAR(rstd[static_cast<size_t>(t)] / expected.rstd[static_cast<size_t>(t)], 1, 1e-6);
      }
    }
  }
}

TEST(RmsNorm, GivesTheLargestMagnitude) {
  for (const auto [stream, type] : kStreams) {
    for (const float odd : {1.0f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
      expect_same_everywhere([&] {
        Matrix x(101, 333, stream), w(1, 333, DType::f32), y(101, 333, type);
        x.randomise(1), w.randomise(2), x.set(50, 11, odd);
        std::vector<float> rstd(101);
        uint32_t amax = 0xFFFFFFFFu;
        RmsNormForward p = forward(x, w, y, rstd);
        p.amax = &amax;
        rms_norm_forward(p);
        EXPECT_EQ(amax, largest_magnitude(y));
        EXPECT_EQ(amax > 0x7F800000u, odd != 1.0f);  // an infinite row has an infinite mean: 0 times infinity
        return std::vector<float>{std::bit_cast<float>(amax)};
      });
    }
  }
}

TEST(RmsNorm, AddsTheBranchAndNormalisesTheRoundedSum) {
  for (const auto [stream, type] : kStreams) {
    Matrix x(37, 53, stream), r(37, 53, type, 0), sum(37, 53, stream, 5), w(1, 53, DType::f32), y(37, 53, type);
    x.randomise(1), r.randomise(3, 0.01f), w.randomise(2);
    std::vector<float> rstd(37);
    RmsNormForward p = forward(x, w, y, rstd);
    p.branch = r.data(), p.branch_stride = r.stride, p.sum = sum.data(), p.sum_stride = sum.stride;
    const auto expected = rms_norm_forward_ref(p);
    rms_norm_forward(p);
    sum.expect_near(expected.sum, 1e-7, 0, "sum");
    y.expect_near(expected.y, 2e-6, 1e-7, "y");
    sum.expect_gaps_untouched();
    Matrix before = sum;
    p.sum = x.data(), p.sum_stride = x.stride;  // in place
    rms_norm_forward(p);
    EXPECT_EQ(values(x), values(before));
  }
}

TEST(RmsNorm, BackwardMatchesReference) {
  for (const auto [rows, cols] : kCases) {
    for (const auto [stream, type] : kStreams) {
      for (const bool residual : {false, true}) {
        Matrix x(rows, cols, stream), w(1, cols, DType::f32), y(rows, cols, type), dy(rows, cols, type), d_sum(rows, cols, stream, 1),
            dx(rows, cols, stream), d_branch(rows, cols, type, 2);
        x.randomise(1), w.randomise(2), dy.randomise(3), d_sum.randomise(4);
        std::vector<float> rstd(static_cast<size_t>(rows)), dw(static_cast<size_t>(cols), 0.5f);
        rms_norm_forward(forward(x, w, y, rstd));
        RmsNormBackward p;
        p.rows = rows, p.cols = cols, p.stream_dtype = stream, p.dtype = type, p.x = x.data(), p.x_stride = x.stride, p.weight = w.data(),
        p.rstd = rstd.data();
        p.dy = dy.data(), p.dy_stride = dy.stride, p.dx = dx.data(), p.dx_stride = dx.stride, p.dw = dw.data();
        if (residual)
          p.d_sum = d_sum.data(), p.d_sum_stride = d_sum.stride, p.d_branch = d_branch.data(), p.d_branch_stride = d_branch.stride;
        const auto expected = rms_norm_backward_ref(p);
        rms_norm_backward(p);
        dx.expect_near(expected.dx, 1e-5, 2e-6, fmt::format("dx {}x{} {}", rows, cols, name_of(type)));
        dx.expect_gaps_untouched();
        if (residual) {
          d_branch.expect_near(expected.dx, 1e-5, 2e-6, "d_branch");
          d_branch.expect_gaps_untouched();
        }
        for (int64_t i = 0; i < cols; ++i) {
          const double e = expected.dw[static_cast<size_t>(i)] + 0.5;
          ASSERT_NEAR(dw[static_cast<size_t>(i)], e, 1e-5 * (1 + std::abs(e))) << "dw " << i;
        }
      }
    }
  }
}

// The analytic gradient against finite differences of the forward reference.
TEST(RmsNorm, BackwardIsTheDerivative) {
  Matrix x(1, 7, DType::f32), w(1, 7, DType::f32), y(1, 7, DType::f32), dy(1, 7, DType::f32), dx(1, 7, DType::f32);
  x.randomise(1), w.randomise(2), dy.randomise(3);
  std::vector<float> rstd(1), dw(7);
  RmsNormForward f = forward(x, w, y, rstd);
  rms_norm_forward(f);
  RmsNormBackward p;
  p.rows = 1, p.cols = 7, p.stream_dtype = p.dtype = DType::f32, p.x = x.data(), p.x_stride = x.stride, p.weight = w.data(),
  p.rstd = rstd.data();
  p.dy = dy.data(), p.dy_stride = dy.stride, p.dx = dx.data(), p.dx_stride = dx.stride, p.dw = dw.data();
  rms_norm_backward(p);
  const auto objective = [&] {
    const auto out = rms_norm_forward_ref(f).y;
    double sum = 0;
    for (int64_t i = 0; i < 7; ++i) sum += out[static_cast<size_t>(i)] * dy.at(0, i);
    return sum;
  };
  constexpr float kStep = 0x1p-8f;
  for (int64_t i = 0; i < 7; ++i) {
    for (Matrix* operand : {&x, &w}) {
      const float centre = static_cast<float>(operand->at(0, i));
      operand->set(0, i, centre + kStep);
      const double above = objective();
      operand->set(0, i, centre - kStep);
      const double slope = (above - objective()) / (2 * kStep);
      operand->set(0, i, centre);
      EXPECT_NEAR(slope, operand == &x ? dx.at(0, i) : dw[static_cast<size_t>(i)], 2e-4);
    }
  }
}

TEST(RmsNorm, SameBitsForEveryThreadCountAndInstructionSet) {
  for (const DType type : kFloatTypes) {
    expect_same_everywhere([&] {
      Matrix x(301, 259, type), w(1, 259, DType::f32), y(301, 259, type), dy(301, 259, type), dx(301, 259, type);
      x.randomise(1), w.randomise(2), dy.randomise(3);
      std::vector<float> rstd(301), dw(259);
      rms_norm_forward(forward(x, w, y, rstd));
      RmsNormBackward p;
      p.rows = 301, p.cols = 259, p.stream_dtype = p.dtype = type, p.x = x.data(), p.x_stride = x.stride, p.weight = w.data(),
      p.rstd = rstd.data();
      p.dy = dy.data(), p.dy_stride = dy.stride, p.dx = dx.data(), p.dx_stride = dx.stride, p.dw = dw.data();
      rms_norm_backward(p);
      std::vector<float> all = values(y);
      append(all, values(dx)), append(all, rstd), append(all, dw);
      return all;
    });
  }
}

TEST(RmsNorm, EmptyIsNothingAndWrongTypesAreRefused) {
  RmsNormForward p;
  p.cols = 8;
  EXPECT_NO_THROW(rms_norm_forward(p));
  p.dtype = DType::s8;
  EXPECT_THROW(rms_norm_forward(p), Error);
  RmsNormBackward b;
  b.cols = 8;
  EXPECT_NO_THROW(rms_norm_backward(b));
}

TEST(RmsNorm, NanStaysInItsRow) {
  Matrix x(3, 20, DType::bf16), w(1, 20, DType::f32), y(3, 20, DType::bf16);
  x.randomise(1), w.randomise(2);
  x.set(1, 7, std::nanf(""));
  std::vector<float> rstd(3);
  rms_norm_forward(forward(x, w, y, rstd));
  for (int64_t i = 0; i < 20; ++i) {
    EXPECT_FALSE(std::isnan(y.at(0, i)));
    EXPECT_TRUE(std::isnan(y.at(1, i)));
    EXPECT_FALSE(std::isnan(y.at(2, i)));
  }
}

}  // namespace
}  // namespace halftone
