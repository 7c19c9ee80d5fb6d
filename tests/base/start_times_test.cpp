#include "halftone/base/start_times.h"

#include <gtest/gtest.h>

#include <regex>

namespace halftone {
namespace {

TEST(StartTimes, NamesItsPartsInOrder) {
  StartTimes times;
  EXPECT_EQ(times.seconds(), 0);
  times.mark("program"), times.mark("first step");
  EXPECT_GE(times.seconds(), 0);
  const std::regex expected("[0-9]+\\.[0-9]{2} s after the launch: program [0-9]+\\.[0-9]{2}, first step [0-9]+\\.[0-9]{2}");
  EXPECT_TRUE(std::regex_match(times.text(), expected)) << times.text();
}

}  // namespace
}  // namespace halftone
