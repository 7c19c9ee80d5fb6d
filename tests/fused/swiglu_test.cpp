#include "halftone/fused/swiglu.h"

#include "fused/support.h"
#include "halftone/fused/swiglu_ref.h"

namespace halftone::swiglu_test {
namespace {

// g and u as halves of one fused GEMM output [T, 2F].
struct Fused {
  Matrix gu, dh, dgu, h;
  Fused(int64_t rows, int64_t cols, DType type)
      : gu(rows, 2 * cols, type), dh(rows, cols, type, 1), dgu(rows, 2 * cols, type), h(rows, cols, type) {
    gu.randomise(1, 6.0f), dh.randomise(2);
  }
  static void* half(Matrix& m) { return static_cast<char*>(m.data()) + m.cols / 2 * static_cast<int64_t>(size_of(m.type)); }
  SwigluForward forward() {
    SwigluForward p;
    p.rows = h.rows, p.cols = h.cols, p.dtype = h.type, p.g = gu.data(), p.g_stride = gu.stride, p.u = half(gu), p.u_stride = gu.stride;
    p.h = h.data(), p.h_stride = h.stride;
    return p;
  }
  SwigluBackward backward() {
    SwigluBackward p;
    p.rows = h.rows, p.cols = h.cols, p.dtype = h.type, p.g = gu.data(), p.g_stride = gu.stride, p.u = half(gu), p.u_stride = gu.stride;
    p.dh = dh.data(), p.dh_stride = dh.stride, p.dg = dgu.data(), p.dg_stride = dgu.stride, p.du = half(dgu), p.du_stride = dgu.stride;
    p.h = h.data(), p.h_stride = h.stride;
    return p;
  }
};

struct Case {
  int64_t rows, cols;
};
const Case kCases[] = {{1, 1}, {3, 15}, {2, 16}, {5, 67}, {40, 704}};

TEST(Swiglu, ForwardMatchesReference) {
  for (const auto [rows, cols] : kCases) {
    for (const DType type : kFloatTypes) {
      Fused f(rows, cols, type);
      const SwigluForward p = f.forward();
      const auto expected = swiglu_forward_ref(p);
      swiglu_forward(p);
      f.h.expect_near(expected, 5e-7, 1e-9, fmt::format("{}x{} {}", rows, cols, name_of(type)));
      f.h.expect_gaps_untouched();
    }
  }
}

TEST(Swiglu, BackwardMatchesReferenceAndRecomputesH) {
  for (const auto [rows, cols] : kCases) {
    for (const DType type : kFloatTypes) {
      Fused f(rows, cols, type);
      const SwigluBackward p = f.backward();
      auto expected = swiglu_backward_ref(p);
      std::vector<double> both;
      for (int64_t t = 0; t < rows; ++t) {
        both.insert(both.end(), expected.dg.begin() + t * cols, expected.dg.begin() + (t + 1) * cols);
        both.insert(both.end(), expected.du.begin() + t * cols, expected.du.begin() + (t + 1) * cols);
      }
      swiglu_backward(p);
      f.dgu.expect_near(both, 2e-6, 1e-6, fmt::format("{}x{} {}", rows, cols, name_of(type)));
      f.h.expect_near(expected.h, 5e-7, 1e-9, "h");
      f.dgu.expect_gaps_untouched();
    }
  }
}

// In place: dg over g, du over u, h over dh.
TEST(Swiglu, BackwardWorksInPlace) {
  Fused f(9, 35, DType::bf16);
  swiglu_backward(f.backward());
  const auto expected = values(f.dgu), expected_h = values(f.h);
  SwigluBackward p = f.backward();
  p.dg = f.gu.data(), p.dg_stride = f.gu.stride, p.du = Fused::half(f.gu), p.du_stride = f.gu.stride, p.h = f.dh.data(),
  p.h_stride = f.dh.stride;
  swiglu_backward(p);
  EXPECT_EQ(values(f.gu), expected);
  EXPECT_EQ(values(f.dh), expected_h);
}

TEST(Swiglu, ExtremeGatesSaturate) {
  Fused f(1, 6, DType::f32);
  const float gates[] = {-1000, -100, -88, 88, 1000, std::nanf("")};
  for (int64_t i = 0; i < 6; ++i) f.gu.set(0, i, gates[i]), f.gu.set(0, 6 + i, 1);
  swiglu_forward(f.forward());
  for (int64_t i = 0; i < 3; ++i) EXPECT_NEAR(f.h.at(0, i), 0, 1e-30);
  EXPECT_EQ(f.h.at(0, 3), 88);
  EXPECT_EQ(f.h.at(0, 4), 1000);
  EXPECT_TRUE(std::isnan(f.h.at(0, 5)));
}

// Every binade and sign: the exponential inside must stay accurate and NaN must stay NaN whatever its payload.
TEST(Swiglu, AccurateOverTheWholeRange) {
  Fused f(1, 4000, DType::f32);
  for (int64_t i = 0; i < 4000; ++i)
    f.gu.set(0, i, static_cast<float>((i % 2 ? 1 : -1) * std::exp2(i * 0.01 - 33))), f.gu.set(0, 4000 + i, 1);
  const auto expected = swiglu_forward_ref(f.forward());
  swiglu_forward(f.forward());
  f.h.expect_near(expected, 4e-7, 1e-35, "silu");
  for (const uint32_t bits : {0x7FC00000u, 0xFFC00000u, 0x7FC00001u, 0x7FFFFFFFu}) {
    f.gu.set(0, 7, std::bit_cast<float>(bits));
    swiglu_forward(f.forward());
    EXPECT_TRUE(std::isnan(f.h.at(0, 7)));
  }
}

TEST(Swiglu, SameBitsForEveryThreadCountAndInstructionSet) {
  for (const DType type : kFloatTypes) {
    expect_same_everywhere([&] {
      Fused f(101, 333, type);
      swiglu_forward(f.forward());
      std::vector<float> all = values(f.h);
      swiglu_backward(f.backward());
      append(all, values(f.dgu));
      return all;
    });
  }
}

// Also if the rest of the tensor is NaN or infinite.
TEST(Swiglu, GivesTheLargestMagnitudes) {
  for (const DType type : kFloatTypes) {
    for (const float odd : {1.0f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
      expect_same_everywhere([&] {
        Fused f(101, 333, type);
        f.gu.set(40, 7, odd), f.dh.set(70, 20, odd);
        uint32_t forward = 0xFFFFFFFFu, backward[2] = {forward, forward};
        SwigluForward p = f.forward();
        p.amax = &forward;
        swiglu_forward(p);
        EXPECT_EQ(forward, largest_magnitude(f.h));
        EXPECT_EQ(forward > 0x7F800000u, std::isnan(odd));
        SwigluBackward q = f.backward();
        q.amax = backward;
        swiglu_backward(q);
        Matrix dg(101, 333, type), du(101, 333, type);
        for (int64_t r = 0; r < 101; ++r) {
          for (int64_t c = 0; c < 333; ++c) {
            dg.set(r, c, static_cast<float>(f.dgu.at(r, c))), du.set(r, c, static_cast<float>(f.dgu.at(r, 333 + c)));
          }
        }
        EXPECT_EQ(backward[0], largest_magnitude(dg));
        EXPECT_EQ(backward[1], largest_magnitude(du));
        return std::vector<float>{std::bit_cast<float>(forward), std::bit_cast<float>(backward[0]), std::bit_cast<float>(backward[1])};
      });
    }
  }
}

TEST(Swiglu, EmptyIsNothing) {
  uint32_t amax[2] = {1, 2};
  SwigluBackward nothing;
  nothing.amax = amax;
  swiglu_backward(nothing);
  EXPECT_EQ(amax[0] | amax[1], 0u);
  EXPECT_NO_THROW(swiglu_forward(SwigluForward{}));
  EXPECT_NO_THROW(swiglu_backward(SwigluBackward{}));
}

}  // namespace
}  // namespace halftone::swiglu_test
