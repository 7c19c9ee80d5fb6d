#include "halftone/cli/bus_error.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "halftone/data/file_io.h"

namespace halftone {
namespace {

TEST(BusErrorDeathTest, NamesTheFileThatWasCut) {
  const std::string path = (std::filesystem::path(testing::TempDir()) / "cut while read.bin").string();
  std::ofstream(path) << std::string(100'000, 'x');
  const auto read = [&] {
    report_bus_errors();
    const MappedFile file(path);
    if (::truncate(path.c_str(), 10) != 0) ::_exit(99);
    volatile auto last = file.bytes()[99'999];
    (void)last;
    ::_exit(0);
  };
  EXPECT_EXIT(read(), testing::ExitedWithCode(2), "halftone: /.*cut while read\\.bin: expected as many bytes .* restore it");
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace halftone
