#include "halftone/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <array>

#include "checkpoint/support.h"

namespace halftone {
namespace {

using testing::expect_error;
using testing::TemporaryFolder;

std::string with_length(const std::string& json, const std::string& data) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(json.size() >> (8 * i));
  return text + json + data;
}

// A file with the given header and data must be rejected with `part` in the message.
void expect_refused(const std::string& json, size_t data_bytes, const std::string& part) {
  SCOPED_TRACE(json);
  const TemporaryFolder folder;
  testing::write_file(folder / "x.safetensors", with_length(json, std::string(data_bytes, 'x')));
  expect_error([&] { SafetensorsFile{folder / "x.safetensors"}; }, part);
}

std::string one(const std::string& fields) { return "{\"a\":{" + fields + "}}"; }

TEST(Safetensors, RoundTripWithOddNamesAndTypes) {
  const TemporaryFolder folder;
  const std::vector<std::string> names{"plain.weight", "quote\"back\\slash", "new\nline\ttab", "é漢😀", "", "a b/c@0,1"};
  std::vector<TensorEntry> entries;
  for (size_t i = 0; i < names.size(); ++i)
    entries.push_back({.name = names[i], .dtype = i % 2 ? FileDType::u8 : FileDType::f32, .shape = {static_cast<int64_t>(i), 3}});
  entries.push_back({.name = "scalar", .dtype = FileDType::i64, .shape = {}});
  SafetensorsWriter writer(folder / "x.safetensors", entries, {{"who", "me \"x\""}});
  uint64_t total = 0;
  for (const TensorEntry& entry : writer.order()) {
    std::string bytes(entry.end - entry.begin, '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(entry.name.size() + i);
    writer.write(bytes.data(), bytes.size() / 2);  // in two writes
    writer.write(bytes.data() + bytes.size() / 2, bytes.size() - bytes.size() / 2);
    total += bytes.size();
  }
  const WrittenFile written = writer.finish();
  EXPECT_EQ(written.bytes, std::filesystem::file_size(folder / "x.safetensors"));
  EXPECT_EQ(written.checksum, checksum_of(folder / "x.safetensors"));

  const SafetensorsFile file(folder / "x.safetensors");
  EXPECT_EQ(file.header().data_start % 8, 0u);
  EXPECT_EQ(file.header().metadata.at("who"), "me \"x\"");
  EXPECT_EQ(file.header().tensors.size(), entries.size());
  for (const TensorEntry& wanted : entries) {
    const TensorEntry& found = file.at(wanted.name);
    EXPECT_EQ(found.dtype, wanted.dtype);
    EXPECT_EQ(found.shape, wanted.shape);
    EXPECT_EQ(found.begin % size_of(found.dtype), 0u);  // aligned to its elements
    std::string bytes(found.end - found.begin, '\0');
    file.read(found, bytes.data(), bytes.size());
    for (size_t i = 0; i < bytes.size(); ++i) ASSERT_EQ(bytes[i], static_cast<char>(wanted.name.size() + i));
    total -= bytes.size();
  }
  EXPECT_EQ(total, 0u);
  EXPECT_EQ(file.find("absent"), nullptr);
  expect_error([&] { file.at("absent"); }, "no tensor named absent");
}

TEST(Safetensors, RefusesDamagedHeaders) {
  expect_refused("[1]", 0, "not a JSON object");
  expect_refused("{\"a\":", 0, "not valid JSON");
  expect_refused(one("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]"), 7, "do not lie in the data section of 7 bytes");
  expect_refused(one("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]"), 9, "the tensors take 8 bytes, the file holds 9");
  expect_refused(one("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]"), 8, "do not lie in");
  expect_refused(one("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]"), 8, "non-negative integer");
  expect_refused(one("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]"), 8, "two numbers");
  expect_refused(one("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,99999999999999999999]"), 8, "non-negative integer");
  expect_refused(one("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]"), 8, "takes 12 bytes, data_offsets hold 8");
  expect_refused(one("\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]"), 8, "unknown dtype \"F33\"");
  expect_refused(one("\"dtype\":4,\"shape\":[2],\"data_offsets\":[0,8]"), 8, "expects a string");
  expect_refused(one("\"dtype\":\"F32\",\"data_offsets\":[0,8]"), 8, "expected exactly dtype, shape and data_offsets");
  expect_refused(one("\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]"), 8, "non-negative integer");
  expect_refused(one("\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,2],\"data_offsets\":[0,8]"), 8, "too many elements");
  expect_refused(one("\"dtype\":\"U8\",\"shape\":[9223372036854775807,2],\"data_offsets\":[0,8]"), 8, "too many elements");
  const std::string tensor = "{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[";
  expect_refused("{\"a\":" + tensor + "0,4]},\"a\":" + tensor + "4,8]}}", 8, "appears twice");
  expect_refused("{\"a\":" + tensor + "0,4]},\"b\":" + tensor + "2,6]}}", 6, "begins at byte 2 inside the one before");
  expect_refused("{\"a\":" + tensor + "0,4]},\"b\":" + tensor + "5,9]}}", 9, "1 unused bytes before tensor b");
  expect_refused("{\"__metadata__\":{\"x\":1}}", 0, "__metadata__ expects strings");
  expect_refused("{\"a\":" + std::string(200, '[') + std::string(200, ']') + "}", 0, "nested deeper");
  expect_refused(one("\"dtype\":\"\xff\",\"shape\":[2],\"data_offsets\":[0,8]"), 8, "not valid JSON");
}

TEST(Safetensors, RefusesWrongLengths) {
  const TemporaryFolder folder;
  const auto path = folder / "x.safetensors";
  const auto refused = [&](const std::string& bytes, const std::string& part) {
    testing::write_file(path, bytes);
    expect_error([&] { SafetensorsFile{path}; }, part);
  };
  refused("", "not a safetensors file");
  refused("1234567", "not a safetensors file");
  refused(with_length("{}", "").substr(0, 9), "the file is truncated");
  refused(std::string(8, '\xff') + "{}", "expected at most 100000000");
  testing::write_file(path, with_length("{}", ""));
  EXPECT_TRUE(SafetensorsFile(path).header().tensors.empty());
  expect_error([&] { SafetensorsFile{folder.path()}; }, "not a regular file");
  expect_error([&] { SafetensorsFile{folder / "absent"}; }, "No such file");
}

TEST(Safetensors, AFileThatShrinksWhileOpenIsAnError) {
  const TemporaryFolder folder;
  const auto path = folder / "x.safetensors";
  SafetensorsWriter writer(path, {{.name = "a", .dtype = FileDType::u8, .shape = {100}}}, {});
  const std::string bytes(100, 'x');
  writer.write(bytes.data(), 100);
  writer.finish();
  const SafetensorsFile file(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  std::string out(100, '\0');
  expect_error([&] { file.read(file.at("a"), out.data(), 100); }, "truncated");
  expect_error([&] { file.read(file.at("a"), out.data(), 1, 100); }, "asked for 1 at 100");
}

TEST(Safetensors, WriterRefusesMisuse) {
  const TemporaryFolder folder;
  const std::vector<TensorEntry> entries{{.name = "a", .dtype = FileDType::u8, .shape = {4}}};
  SafetensorsWriter writer(folder / "x", entries, {});
  writer.write("123", 3);
  expect_error([&] { writer.finish(); }, "3 of 4 bytes");
  expect_error([&] { writer.write("45", 2); }, "beyond the announced 4");
  expect_error([&] { SafetensorsWriter(folder / "y", {{.name = "\xff", .dtype = FileDType::u8, .shape = {4}}}, {}); }, "UTF-8");
  expect_error([&] { SafetensorsWriter(folder / "no" / "y", entries, {}); }, "No such file");
}

}  // namespace
}  // namespace halftone
