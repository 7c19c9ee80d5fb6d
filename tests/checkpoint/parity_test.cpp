// Files exchanged with other programs: tests/parity/safetensors_parity.py sets HALFTONE_PARITY_DIR and runs these tests.
#include <gtest/gtest.h>

#include <cstdlib>

#include "checkpoint/support.h"
#include "halftone/checkpoint/safetensors.h"

namespace halftone {
namespace {

// Byte i of tensor number t.
uint8_t byte_at(size_t t, size_t i) { return static_cast<uint8_t>((t * 31 + i * 7 + 5) % 113); }

TEST(SafetensorsParity, Write) {
  const char* folder = std::getenv("HALFTONE_PARITY_DIR");
  if (!folder) GTEST_SKIP() << "run by tests/parity/safetensors_parity.py";
  const std::vector<TensorEntry> entries{{.name = "0", .dtype = FileDType::u8, .shape = {5}},
                                         {.name = "1", .dtype = FileDType::f32, .shape = {3, 4}},
                                         {.name = "2", .dtype = FileDType::i64, .shape = {}},
                                         {.name = "3", .dtype = FileDType::f16, .shape = {2, 0, 3}},
                                         {.name = "4 \"odd\\\n é漢", .dtype = FileDType::f64, .shape = {2, 2, 2}},
                                         {.name = "5", .dtype = FileDType::i8, .shape = {7}}};
  SafetensorsWriter writer(std::filesystem::path(folder) / "ours.safetensors", entries, {{"format", "pt"}, {"k\"ey", "väl"}});
  for (const TensorEntry& entry : writer.order()) {
    std::vector<uint8_t> bytes(entry.end - entry.begin);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = byte_at(static_cast<size_t>(entry.name[0] - '0'), i);
    writer.write(bytes.data(), bytes.size());
  }
  writer.finish();
}

TEST(SafetensorsParity, Read) {
  const char* folder = std::getenv("HALFTONE_PARITY_DIR");
  if (!folder) GTEST_SKIP() << "run by tests/parity/safetensors_parity.py";
  const SafetensorsFile file(std::filesystem::path(folder) / "theirs.safetensors");
  EXPECT_EQ(file.header().metadata.at("who"), "theirs");
  ASSERT_EQ(file.header().tensors.size(), 4u);
  EXPECT_EQ(file.at("1").dtype, FileDType::f32);
  EXPECT_EQ(file.at("1").shape, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(file.at("2").shape, std::vector<int64_t>{});
  EXPECT_EQ(file.at("3 é").dtype, FileDType::boolean);
  for (const TensorEntry& entry : file.header().tensors) {
    if (entry.dtype == FileDType::boolean) continue;
    std::vector<uint8_t> bytes(entry.end - entry.begin);
    file.read(entry, bytes.data(), bytes.size());
    for (size_t i = 0; i < bytes.size(); ++i) ASSERT_EQ(bytes[i], byte_at(static_cast<size_t>(entry.name[0] - '0'), i));
  }
}

}  // namespace
}  // namespace halftone
