#include "halftone/quantize/fp8_rowwise.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "halftone/quantize/fp8_rowwise_ref.h"
#include "quantize/cases.h"

namespace halftone {
namespace {

using namespace testing;

struct Outputs {
  explicit Outputs(Fp8Rowwise& p)
      : row_codes(p.rows * p.cols),
        row_values(p.rows * p.cols * 2),
        row_scale(p.rows * 4),
        col_codes(p.rows * p.cols),
        panels(panels_bytes(DType::bf16, p.rows, p.cols)),
        col_scale(p.cols * 4) {
    p.row_codes = row_codes.as<uint8_t>(), p.row_values = row_values.as<bf16>(), p.row_scale = row_scale.as<float>();
    p.col_codes = col_codes.as<uint8_t>(), p.col_panels = panels.data(), p.col_scale = col_scale.as<float>();
  }
  std::vector<Buffer*> all() { return {&row_codes, &row_values, &col_codes, &panels}; }
  Buffer row_codes, row_values, row_scale, col_codes, panels, col_scale;
};

TEST(Fp8Rowwise, EqualsTheReferenceOnEveryIsa) {
  for (const Shape s : kShapes) {
    for (const Fill fill : {Fill::normal, Fill::zeros, Fill::tiny, Fill::spread, Fill::nan, Fill::inf, Fill::ties}) {
      for (const DType type : {DType::bf16, DType::f32}) {
        const auto x = elements(values(fill, s.rows, s.cols + s.pad), type);
        Fp8Rowwise ref{.x = x.data(), .type = type, .rows = s.rows, .cols = s.cols, .ld = s.cols + s.pad};
        Fp8Rowwise p = ref;
        Outputs expected(ref);
        ref::fp8_rowwise(ref);
        for (const Isa isa : isas()) {
          Outputs found(p);
          fp8_rowwise(p, isa);
          const auto what =
              fmt::format("{} {}x{} fill {} type {}", name(isa), s.rows, s.cols, static_cast<int>(fill), static_cast<int>(type));
          for (size_t i = 0; i < 4; ++i) {
            ASSERT_EQ(std::memcmp(found.all()[i]->data(), expected.all()[i]->data(), static_cast<size_t>(expected.all()[i]->size())), 0)
                << what << " output " << i;
            ASSERT_TRUE(found.all()[i]->guard_intact()) << what;
          }
          for (int64_t r = 0; r < s.rows; ++r) ASSERT_TRUE(same(p.row_scale[r], ref.row_scale[r])) << what;
          for (int64_t c = 0; c < s.cols; ++c) ASSERT_TRUE(same(p.col_scale[c], ref.col_scale[c])) << what;
        }
      }
    }
  }
}

TEST(Fp8Rowwise, EveryRoundingBoundaryOfE4m3) {
  // Rows whose first element sets the scale to 1: all codes, the midpoints between them and their neighbours.
  std::vector<float> x;
  for (int code = 0; code < 0x7E; ++code) {
    const float a = decode(Float::e4m3, static_cast<uint8_t>(code)), mid = (a + decode(Float::e4m3, static_cast<uint8_t>(code + 1))) / 2;
    for (const float v : {a, mid, std::nextafter(mid, 0.0f), std::nextafter(mid, 1e9f)}) x.push_back(v), x.push_back(-v);
  }
  x.push_back(448);
  const auto n = static_cast<int64_t>(x.size());
  for (const Isa isa : isas()) {
    std::vector<uint8_t> codes(x.size());
    std::vector<bf16> decoded(x.size());
    float scale = 0;
    fp8_rowwise({.x = x.data(),
                 .type = DType::f32,
                 .rows = 1,
                 .cols = n,
                 .ld = n,
                 .row_codes = codes.data(),
                 .row_values = decoded.data(),
                 .row_scale = &scale},
                isa);
    EXPECT_EQ(scale, 1.0f);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(codes[i], encode(Float::e4m3, x[i])) << name(isa) << " " << x[i];
      ASSERT_TRUE(same(static_cast<float>(decoded[i]), decode(Float::e4m3, codes[i])));
    }
  }
}

TEST(Fp8Rowwise, ScalesOfSpecification) {
  const auto scale = [](float amax) { return ref::fp8_scale_pow2(std::bit_cast<uint32_t>(amax)); };
  EXPECT_EQ(scale(448).inv, 1.0f);
  EXPECT_EQ(scale(449).inv, 0.5f);
  EXPECT_EQ(scale(0).inv, std::bit_cast<float>(0x57800000u));
  EXPECT_TRUE(std::isnan(scale(INFINITY).scale));
}

}  // namespace
}  // namespace halftone
