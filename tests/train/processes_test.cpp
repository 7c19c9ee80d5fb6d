#include "halftone/train/processes.h"

#include <gtest/gtest.h>

#include "checkpoint/support.h"

namespace halftone {
namespace {

TEST(Processes, WhatDiffersIsNamedWithItsRanks) {
  EXPECT_NO_THROW(check_same("tokenizers", {"a"}));
  EXPECT_NO_THROW(check_same("tokenizers", {"a", "a", "a"}));
  testing::expect_error(
      [] {
        check_same("tokenizers", {"a", "b", "a", "a"});
      },
      "ranks have different tokenizers: a on ranks 0, 2-3, b on rank 1; give all ranks the same files");
  testing::expect_error([] { check_same("data", {"a", "b", "c", "d", "e"}); }, "a on rank 0, b on rank 1, c on rank 2 and 2 more;");
}

// One process says what it says.
TEST(Processes, AloneItAgreesWithItself) {
  Processes alone({}, {});
  EXPECT_EQ(alone.texts("x"), std::vector<std::string>{"x"});
  EXPECT_NO_THROW(alone.compare("data", "x"));
}

}  // namespace
}  // namespace halftone
