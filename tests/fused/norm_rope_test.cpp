#include "halftone/fused/norm_rope.h"

#include "fused/support.h"
#include "halftone/base/error.h"
#include "halftone/fused/norm_rope_ref.h"

namespace halftone {
namespace {

constexpr int64_t kHeads = 3;

// Both directions on the same data. The input is at the front of wider rows, as q is in a joint projection.
struct Problem {
  RopeTable table;
  Matrix x, y, dy, dx, w, dw;
  NormRope forward;
  NormRopeBackward backward;

  Problem(int64_t tokens, int64_t head_dim, int64_t rotated, DType type, RopePairing pairing)
      : table(rope_table(16, rotated, 10000)),
        x(tokens, kHeads * head_dim, type, head_dim),
        y(tokens, kHeads * head_dim, type, 1),
        dy(tokens, kHeads * head_dim, type, 3),
        dx(tokens, kHeads * head_dim, type, 5),
        w(1, head_dim, type, 0),
        dw(1, head_dim, DType::f32, 0) {
    x.randomise(1), dy.randomise(2), w.randomise(3), dw.randomise(4);
    Rope r;
    r.tokens = tokens, r.heads = kHeads, r.head_dim = head_dim, r.rotated = rotated == head_dim ? 0 : rotated, r.dtype = type;
    r.cos = table.cos.data(), r.sin = table.sin.data(), r.max_positions = table.positions, r.pairing = pairing;
    r.seq_len = 4, r.offset = 2;
    r.x = x.data(), r.x_stride = x.stride, r.out = y.data(), r.out_stride = y.stride;
    forward = {r, w.data(), 1e-3f};
    r.x = dy.data(), r.x_stride = dy.stride, r.out = dx.data(), r.out_stride = dx.stride;
    backward = {{r, w.data(), 1e-3f}, x.data(), x.stride, dw.f.data()};
  }
};

TEST(NormRope, MatchesReferenceForBothPairings) {
  const int32_t positions[] = {3, 0, 15, 7, 7, 1, 2, 14, 8, 9};
  for (const DType type : kFloatTypes) {
    for (const RopePairing pairing : {RopePairing::neighbours, RopePairing::halves}) {
      for (const auto& [head_dim, rotated] : std::vector<std::pair<int64_t, int64_t>>{
               {2, 2}, {8, 8}, {36, 36}, {80, 80}, {128, 128}, {256, 256}, {8, 4}, {36, 10}, {80, 32}, {128, 64}, {256, 2}}) {
        for (const int32_t* at : {static_cast<const int32_t*>(nullptr), static_cast<const int32_t*>(positions)}) {
          const std::string what = fmt::format("{} of {} {} {}", rotated, head_dim, name_of(type), at == nullptr ? "" : "positions");
          Problem p(10, head_dim, rotated, type, pairing);
          p.forward.rope.positions = p.backward.norm.rope.positions = at;
          norm_rope(p.forward);
          p.y.expect_near(norm_rope_ref(p.forward), 1e-6, 1e-6, what), p.y.expect_gaps_untouched();
          NormRopeBackwardRef expected = norm_rope_backward_ref(p.backward);
          for (int64_t i = 0; i < head_dim; ++i) expected.dw[static_cast<size_t>(i)] += p.dw.at(0, i);
          norm_rope_backward(p.backward);
          p.dx.expect_near(expected.dx, 2e-6, 1e-5, "dx " + what), p.dx.expect_gaps_untouched();
          p.dw.expect_near(expected.dw, 2e-6, 1e-5, "dw " + what);
        }
      }
    }
  }
}

TEST(NormRope, WorksInPlaceAndWithoutAGradientOfTheWeight) {
  for (const DType type : kFloatTypes) {
    Problem apart(10, 80, 32, type, RopePairing::halves), in_place(10, 80, 32, type, RopePairing::halves);
    norm_rope(apart.forward), norm_rope_backward(apart.backward);
    Rope& back = in_place.backward.norm.rope;
    back.out = in_place.dy.data(), back.out_stride = in_place.dy.stride, in_place.backward.dw = nullptr;
    norm_rope_backward(in_place.backward);
    EXPECT_EQ(values(in_place.dy), values(apart.dx));
    Rope& there = in_place.forward.rope;
    there.out = in_place.x.data(), there.out_stride = in_place.x.stride;
    norm_rope(in_place.forward);
    EXPECT_EQ(values(in_place.x), values(apart.y));
    in_place.x.expect_gaps_untouched();
  }
}

TEST(NormRope, SameBitsForEveryThreadCountAndInstructionSet) {
  for (const RopePairing pairing : {RopePairing::neighbours, RopePairing::halves}) {
    for (const DType type : kFloatTypes) {
      for (const int64_t head_dim : {36, 128}) {
        expect_same_everywhere([&] {
          Problem p(3000, head_dim, 32, type, pairing);
          norm_rope(p.forward), norm_rope_backward(p.backward);
          std::vector<float> all = values(p.y);
          append(all, values(p.dx)), append(all, values(p.dw));
          return all;
        });
      }
    }
  }
}

TEST(NormRope, RefusesWhatItCanNotDo) {
  Problem p(10, 8, 8, DType::f32, RopePairing::halves);
  const auto fails = [&](auto change) {
    NormRope q = p.forward;
    change(q);
    EXPECT_THROW(norm_rope(q), Error);
  };
  fails([](NormRope& q) { q.weight = nullptr; });
  fails([](NormRope& q) { q.rope.head_dim = 258; });
  fails([](NormRope& q) { q.rope.rotated = 10; });
  fails([](NormRope& q) { q.rope.rotated = 3; });
  fails([](NormRope& q) { q.rope.offset = 13; });
  p.backward.x = nullptr;
  EXPECT_THROW(norm_rope_backward(p.backward), Error);
  p.forward.rope.tokens = 0;
  EXPECT_NO_THROW(norm_rope(p.forward));
}

}  // namespace
}  // namespace halftone
