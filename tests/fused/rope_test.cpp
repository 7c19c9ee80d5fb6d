#include "halftone/fused/rope.h"

#include "fused/support.h"
#include "halftone/base/error.h"
#include "halftone/fused/rope_ref.h"

namespace halftone {
namespace {

Rope parameters(Matrix& x, Matrix& out, const RopeTable& table, int64_t heads, int64_t head_dim) {
  Rope p;
  p.tokens = x.rows, p.heads = heads, p.head_dim = head_dim, p.dtype = x.type;
  p.x = x.data(), p.x_stride = x.stride, p.out = out.data(), p.out_stride = out.stride;
  p.cos = table.cos.data(), p.sin = table.sin.data(), p.max_positions = table.positions;
  p.seq_len = std::max<int64_t>(1, x.rows);
  return p;
}

TEST(Rope, MatchesReferenceForBothPairings) {
  for (const DType type : kFloatTypes) {
    for (const RopePairing pairing : {RopePairing::neighbours, RopePairing::halves}) {
      for (const int64_t head_dim : {2, 8, 32, 36, 64, 128}) {
        const RopeTable table = rope_table(16, head_dim, 10000);
        Matrix x(10, 3 * head_dim, type), out(10, 3 * head_dim, type, 1);
        x.randomise(5);
        Rope p = parameters(x, out, table, 3, head_dim);
        p.pairing = pairing, p.seq_len = 4, p.offset = 2;
        rope(p);
        out.expect_near(rope_ref(p), 3e-7, 3e-7, fmt::format("d {} {}", head_dim, name_of(type)));
        out.expect_gaps_untouched();
        const int32_t positions[] = {3, 0, 15, 7, 7, 1, 2, 14, 8, 9};
        p.positions = positions, p.inverse = true;
        rope(p);
        out.expect_near(rope_ref(p), 3e-7, 3e-7, "inverse with positions");
      }
    }
  }
}

TEST(Rope, RotatesTheFirstElementsOfAHeadAndCopiesTheRest) {
  for (const DType type : kFloatTypes) {
    for (const RopePairing pairing : {RopePairing::neighbours, RopePairing::halves}) {
      for (const auto& [head_dim, rotated] : std::vector<std::pair<int64_t, int64_t>>{{8, 4}, {36, 10}, {80, 32}, {128, 64}, {256, 2}}) {
        const RopeTable table = rope_table(16, rotated, 10000);
        Matrix x(10, 3 * head_dim, type), out(10, 3 * head_dim, type, 1);
        x.randomise(5);
        Rope p = parameters(x, out, table, 3, head_dim);
        p.pairing = pairing, p.rotated = rotated;
        const std::vector<double> expected = rope_ref(p);
        rope(p);
        out.expect_near(expected, 3e-7, 3e-7, fmt::format("{} of {} {}", rotated, head_dim, name_of(type)));
        out.expect_gaps_untouched();
        for (int64_t c = rotated; c < head_dim; ++c) ASSERT_EQ(out.at(7, head_dim + c), x.at(7, head_dim + c));
        p.out = x.data(), p.out_stride = x.stride;
        rope(p);
        EXPECT_EQ(values(x), values(out)) << "in place";
      }
    }
  }
}

TEST(Rope, InverseInPlaceUndoesTheRotation) {
  const RopeTable table = rope_table(64, 64, 500000);
  for (const RopePairing pairing : {RopePairing::neighbours, RopePairing::halves}) {
    Matrix x(64, 128, DType::f32);
    x.randomise(6);
    const std::vector<float> before = values(x);
    Rope p = parameters(x, x, table, 2, 64);
    p.pairing = pairing;
    rope(p);
    EXPECT_NE(values(x), before);
    p.inverse = true;
    rope(p);
    x.expect_near({before.begin(), before.end()}, 1e-6, 1e-6, "round trip");
  }
}

// Sizes by hand for d = 4, theta = 100: f = 1, 0.1.
TEST(Rope, TableHoldsPositionTimesFrequency) {
  const RopeTable table = rope_table(3, 4, 100);
  ASSERT_EQ(table.half_dim, 2);
  EXPECT_EQ(table.cos[0], 1);
  EXPECT_EQ(table.sin[1], 0);
  EXPECT_NEAR(table.cos[4], std::cos(2.0), 1e-7);
  EXPECT_NEAR(table.sin[5], std::sin(0.2), 1e-7);
}

// platform.md 4.5: wavelengths below 2048 stay, above 8192 are slowed by 8, blended between.
TEST(Rope, Llama3ScalingKeepsShortWavelengthsAndSlowsLongOnes) {
  const RopeScaling scaling{
      .type = RopeScaling::Type::llama3, .factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_context = 8192};
  const auto plain = rope_frequencies(128, 500000), scaled = rope_frequencies(128, 500000, scaling);
  int kept = 0, slowed = 0, blended = 0;
  for (size_t j = 0; j < plain.size(); ++j) {
    const double wavelength = 2 * M_PI / plain[j];
    if (wavelength < 2048) {
      EXPECT_DOUBLE_EQ(scaled[j], plain[j]);
      ++kept;
    } else if (wavelength > 8192) {
      EXPECT_DOUBLE_EQ(scaled[j], plain[j] / 8);
      ++slowed;
    } else {
      const double t = (8192 / wavelength - 1) / 3;
      EXPECT_DOUBLE_EQ(scaled[j], plain[j] * (1 - t) / 8 + plain[j] * t);
      ++blended;
    }
  }
  EXPECT_EQ(kept, 29);
  EXPECT_EQ(blended, 6);
  EXPECT_EQ(slowed, 29);
}

TEST(Rope, SameBitsForEveryThreadCountAndInstructionSet) {
  const RopeTable table = rope_table(600, 36, 500000);
  for (const RopePairing pairing : {RopePairing::neighbours, RopePairing::halves}) {
    for (const DType type : kFloatTypes) {
      expect_same_everywhere([&] {
        Matrix x(600, 108, type), out(600, 108, type);
        x.randomise(7);
        Rope p = parameters(x, out, table, 3, 36);
        p.pairing = pairing;
        rope(p);
        return values(out);
      });
    }
  }
}

TEST(Rope, RefusesPositionsOutsideTheTableAndOddHeads) {
  const RopeTable table = rope_table(8, 4, 100);
  Matrix x(3, 4, DType::f32);
  Rope p = parameters(x, x, table, 1, 4);
  p.seq_len = 3, p.offset = 6;
  EXPECT_THROW(rope(p), Error);
  p.offset = 5;
  EXPECT_NO_THROW(rope(p));
  const int32_t positions[] = {0, 8, 1}, negative[] = {0, -1, 1};
  p.positions = positions;
  EXPECT_THROW(rope(p), Error);
  p.positions = negative;
  EXPECT_THROW(rope(p), Error);
  p.positions = nullptr;
  for (const int64_t rotated : {-2, 1, 6}) {
    p.rotated = rotated;
    EXPECT_THROW(rope(p), Error) << rotated;
  }
  p.tokens = 0;
  EXPECT_NO_THROW(rope(p));
  EXPECT_THROW(rope_frequencies(5, 10000), Error);
}

}  // namespace
}  // namespace halftone
