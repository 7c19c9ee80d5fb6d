#include "halftone/train/event_file.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "checkpoint/support.h"

namespace halftone {
namespace {

using testing::TemporaryFolder;

TEST(Crc32c, KnownValues) {
  // RFC 3720, appendix B.4.
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  std::string up;
  for (int i = 0; i < 32; ++i) up += static_cast<char>(i);
  EXPECT_EQ(crc32c(up), 0x46dd794eu);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(""), 0u);
}

TEST(EventFile, BytesOfAnEvent) {
  const std::string event = scalar_event(2.0, 300, {{"ab", 1.0}});
  const std::string wanted(
      "\x09\x00\x00\x00\x00\x00\x00\x00\x40"  // wall_time = 2.0
      "\x10\xac\x02"                          // step = 300
      "\x2a\x0b\x0a\x09\x0a\x02"
      "ab"
      "\x15\x00\x00\x80\x3f",  // summary { value { tag: "ab", simple_value: 1 } }
      25);
  EXPECT_EQ(event, wanted);
}

TEST(EventFile, Frames) {
  const std::string record = tfrecord("hello");
  ASSERT_EQ(record.size(), 8 + 4 + 5 + 4u);
  EXPECT_EQ(record.substr(0, 8), std::string("\x05\0\0\0\0\0\0\0", 8));
  uint32_t crc;
  std::memcpy(&crc, record.data() + 17, 4);
  EXPECT_EQ(crc, masked_crc32c("hello"));
}

TEST(EventFile, FirstRecordIsTheVersion) {
  const TemporaryFolder folder;
  EventFile file(folder / "tb", 12.5);
  file.write(13.5, 1, {{"loss", 2.0}});
  const std::string text = testing::read_file(file.path());
  const std::string first = tfrecord(version_event(12.5));
  EXPECT_NE(first.find("brain.Event:2"), std::string::npos);
  EXPECT_EQ(text, first + tfrecord(scalar_event(13.5, 1, {{"loss", 2.0}})));  // on the disk at once
}

// tests/parity/tensorboard_parity.py reads the output.
TEST(EventFileParity, Write) {
  const char* folder = std::getenv("HALFTONE_PARITY_DIR");
  if (!folder) GTEST_SKIP() << "run by tests/parity/tensorboard_parity.py";
  EventFile file(folder, 1700000000.5);
  for (int64_t step = 0; step < 200; ++step)
    file.write(1700000000.5 + static_cast<double>(step), step * 1000003,
               {{"loss_metrics/global_avg_loss", 8.0 / static_cast<double>(step + 1)}, {"mfu(%) \"é漢\"", -static_cast<double>(step)}});
}

}  // namespace
}  // namespace halftone
