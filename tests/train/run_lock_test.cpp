#include "halftone/train/run_lock.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>

#include "halftone/base/error.h"

namespace halftone {
namespace {

TEST(RunLock, OneProcessAtATime) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "locked run";
  std::filesystem::create_directories(folder);
  std::optional<RunLock> first(folder);
  try {
    RunLock second(folder);
    FAIL() << "two hold one folder";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(fmt::format("process {} on ", ::getpid())), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find(folder.string()), std::string::npos) << e.what();
  }
  first.reset();
  EXPECT_NO_THROW(RunLock{folder});
  std::filesystem::remove_all(folder);
}

TEST(RunLock, FolderThatCannotBeWritten) { EXPECT_THROW(RunLock(std::filesystem::path(::testing::TempDir()) / "no such folder"), Error); }

}  // namespace
}  // namespace halftone
