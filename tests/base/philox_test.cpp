#include "halftone/base/philox.h"

#include <gtest/gtest.h>

#include "halftone/base/cpu.h"
#include "halftone/base/dtype.h"
#include "halftone/base/parallel.h"

namespace halftone {
namespace {

TEST(Philox, UnitFloatStaysBelowOne) {
  EXPECT_EQ(unit_float(0), 0.0f);
  EXPECT_LT(unit_float(0xFFFFFFFFu), 1.0f);
}

TEST(Bf16, RoundsTiesToEvenAndKeepsNan) {
  EXPECT_EQ(bf16(1.0f).bits, 0x3F80);
  EXPECT_EQ(bf16(std::bit_cast<float>(0x3F808000u)).bits, 0x3F80);
  EXPECT_EQ(bf16(std::bit_cast<float>(0x3F818000u)).bits, 0x3F82);
  const float nan = std::bit_cast<float>(0x7F800001u);
  EXPECT_NE(to_float(bf16(nan)), to_float(bf16(nan)));
}

TEST(ParallelFor, CoversTheRangeOnce) {
  std::vector<int> seen(10007);
  parallel_for(10007, 16, [&](int64_t b, int64_t e) { for (int64_t i = b; i < e; ++i) ++seen[i]; });
  for (const int n : seen) ASSERT_EQ(n, 1);
}

}  // namespace
}  // namespace halftone
