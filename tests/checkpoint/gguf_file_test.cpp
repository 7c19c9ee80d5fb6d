// GGUF's container and blocks: bytes written out by hand, and failures that leave nothing behind.
#include "halftone/checkpoint/gguf_file.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <numeric>

#include "checkpoint/support.h"
#include "halftone/base/error.h"
#include "halftone/checkpoint/file_io.h"
#include "halftone/checkpoint/gguf_blocks.h"
#include "halftone/formats/float_code.h"

namespace halftone::gguf_file_test {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::TemporaryFolder;

using Bytes = std::vector<uint8_t>;

GgufTensor tensor(const std::string& name, const std::vector<int64_t>& shape, GgufType type, const Bytes& rows) {
  const auto row = static_cast<size_t>(gguf_row_bytes(type, shape.back()));
  return {.name = name, .shape = shape, .type = type, .read = [rows, row](int64_t first, int64_t count, uint8_t* out) {
            std::memcpy(out, rows.data() + static_cast<size_t>(first) * row, static_cast<size_t>(count) * row);
          }};
}

template <size_t N>
std::string text(const char (&bytes)[N]) {
  return {bytes, N - 1};  // with its zeros
}

TEST(GgufFile, WritesTheBytesOfTheFormat) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "new" / "model.gguf";
  const GgufMetadata metadata{{"u", uint32_t{258}},
                              {"f", 1.5f},
                              {"b", true},
                              {"s", std::string("hi")},
                              {"l", std::vector<std::string>{"a", ""}},
                              {"i", std::vector<int32_t>{-2, 3}}};
  Bytes floats(24);
  std::iota(floats.begin(), floats.end(), uint8_t{1});
  Bytes codes(34);
  std::iota(codes.begin(), codes.end(), uint8_t{100});
  const int64_t size = write_gguf(path, metadata, {tensor("x", {2, 3}, GgufType::f32, floats), tensor("w", {32}, GgufType::q8_0, codes)});
  std::string expected = text("GGUF\3\0\0\0\2\0\0\0\0\0\0\0\6\0\0\0\0\0\0\0");
  expected += text("\1\0\0\0\0\0\0\0u\4\0\0\0\2\1\0\0");
  expected += text("\1\0\0\0\0\0\0\0f\6\0\0\0\0\0\xC0\x3F");
  expected += text("\1\0\0\0\0\0\0\0b\7\0\0\0\1");
  expected += text("\1\0\0\0\0\0\0\0s\x8\0\0\0\2\0\0\0\0\0\0\0hi");
  expected += text("\1\0\0\0\0\0\0\0l\x9\0\0\0\x8\0\0\0\2\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0") + "a" + text("\0\0\0\0\0\0\0\0");
  expected += text("\1\0\0\0\0\0\0\0i\x9\0\0\0\5\0\0\0\2\0\0\0\0\0\0\0\xFE\xFF\xFF\xFF\3\0\0\0");
  expected += text("\1\0\0\0\0\0\0\0x\2\0\0\0\3\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
  expected += text("\1\0\0\0\0\0\0\0w\1\0\0\0\x20\0\0\0\0\0\0\0\x8\0\0\0\x20\0\0\0\0\0\0\0");
  expected.resize((expected.size() + 31) / 32 * 32);
  expected.append(floats.begin(), floats.end()).append(8, '\0').append(codes.begin(), codes.end()).append(30, '\0');
  EXPECT_EQ(read_text(path, 1 << 20), expected);
  EXPECT_EQ(size, static_cast<int64_t>(expected.size()));
}

TEST(GgufFile, ReadsLargeTensorsInPiecesOfWholeUnits) {
  const TemporaryFolder folder;
  constexpr int64_t kRows = 700, kColumns = 1 << 14;  // 44 MiB
  int64_t next = 0;
  std::vector<int64_t> counts;
  GgufTensor t{.name = "x", .shape = {7, 100, kColumns}, .read = [&](int64_t first, int64_t rows, uint8_t* out) {
                 EXPECT_EQ(first, next);
                 next += rows, counts.push_back(rows);
                 for (int64_t r = 0; r < rows; ++r) {
                   const auto value = static_cast<float>(first + r);
                   for (int64_t c = 0; c < kColumns; ++c) std::memcpy(out + 4 * (r * kColumns + c), &value, 4);
                 }
               }};
  t.unit = 100;
  write_gguf(folder.path() / "x.gguf", {}, {t});
  EXPECT_EQ(next, kRows);
  EXPECT_GT(counts.size(), 1u);
  for (size_t i = 0; i + 1 < counts.size(); ++i) EXPECT_EQ(counts[i] % t.unit, 0);
  const std::string bytes = read_text(folder.path() / "x.gguf", 1 << 30);
  const size_t data = bytes.size() - static_cast<size_t>(kRows * kColumns * 4);
  for (int64_t r = 0; r < kRows; ++r) {
    float value = -1;
    std::memcpy(&value, bytes.data() + data + static_cast<size_t>(r * kColumns + r) * 4, 4);
    ASSERT_EQ(value, static_cast<float>(r));
  }
}

TEST(GgufFile, LeavesTheOldFileWhenAReadOrTheLastCheckFails) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "x.gguf";
  const GgufTensor good = tensor("x", {1}, GgufType::f32, {0, 0, 0, 0});
  write_gguf(path, {}, {good});
  const std::string before = read_text(path, 1 << 20);
  GgufTensor bad = good;
  bad.name = "y", bad.read = [](int64_t, int64_t, uint8_t*) { fail("no such rows"); };
  expect_error([&] { write_gguf(path, {}, {good, bad}); }, "no such rows");
  expect_error([&] { write_gguf(path, {{"a", true}}, {good}, [] { fail("checksum"); }); }, "checksum");
  EXPECT_EQ(read_text(path, 1 << 20), before);
  EXPECT_FALSE(fs::exists(path.string() + ".tmp"));
}

TEST(GgufFile, RefusesWhatReadersCannotRead) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "x.gguf";
  const auto write = [&](const GgufTensor& t) { return [&, t] { write_gguf(path, {}, {t}); }; };
  const Bytes zeros(256);
  expect_error(write(tensor(std::string(64, 'n'), {1}, GgufType::f32, zeros)), "has 64 bytes, expected at most 63");
  expect_error([&] { gguf_row_bytes(GgufType::mxfp4, 48); }, "48 elements does not divide into the 32 that share a scale in mxfp4");
  expect_error(write({.name = "x", .shape = {1, 1, 1, 1, 1}}), "5 dimensions");
  expect_error(write({.name = "x", .shape = {2, 0}}), "none of them empty");
  const GgufTensor twice = tensor("x", {1}, GgufType::f32, zeros);
  expect_error([&] { write_gguf(path, {}, {twice, twice}); }, "the tensor x appears twice");
  expect_error([&] { write_gguf(path, {{"k", true}, {"k", true}}, {}); }, "the metadata entry k appears twice");
  EXPECT_FALSE(fs::exists(path));
}

// Codes 0, 1, 2, ... of a block.
Bytes counted(size_t n, int first, int mask) {
  Bytes codes(n);
  for (size_t i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>((static_cast<int>(i) + first) & mask);
  return codes;
}

TEST(GgufBlocks, HaveTheOrderOfGgml) {
  Bytes out(18);
  const uint16_t one = fp16_bits(1);
  gguf_pack(GgufType::q4_0, counted(32, -8, 0xFF).data(), &one, 32, out.data());
  // Elements 0 and 16 share the first byte after the scale; code -8 is stored as 0, and the codes repeat after 16.
  EXPECT_EQ(out, (Bytes{0x00, 0x3C, 0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xAA, 0xBB, 0xCC, 0xDD, 0xEE, 0xFF}));
  out.assign(17, 0);
  const uint16_t exponent = 130;
  gguf_pack(GgufType::mxfp4, counted(32, 0, 7).data(), &exponent, 32, out.data());
  EXPECT_EQ(out, (Bytes{130, 0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77}));
  out.assign(36, 0);
  const std::array<uint16_t, 4> scales{0x38, 0x40, 0x48, 0x7E};
  gguf_pack(GgufType::nvfp4, counted(64, 0, 15).data(), scales.data(), 64, out.data());
  Bytes expected{0x38, 0x40, 0x48, 0x7E};
  for (int block = 0; block < 4; ++block)
    for (int i = 0; i < 8; ++i) expected.push_back(static_cast<uint8_t>(i | (i + 8) << 4));
  EXPECT_EQ(out, expected);
  out.assign(34, 0);
  const uint16_t half = fp16_bits(0.5f);
  gguf_pack(GgufType::q8_0, counted(32, -16, 0xFF).data(), &half, 32, out.data());
  EXPECT_EQ(out[0], 0x00);
  EXPECT_EQ(out[1], 0x38);
  for (size_t i = 0; i < 32; ++i) EXPECT_EQ(static_cast<int8_t>(out[2 + i]), static_cast<int>(i) - 16);
}

TEST(GgufBlocks, DecodeToCodeTimesScale) {
  const auto decoded = [](GgufType type, const Bytes& codes, const std::vector<uint16_t>& scales) {
    Bytes bytes(static_cast<size_t>(gguf_row_bytes(type, static_cast<int64_t>(codes.size()))));
    gguf_pack(type, codes.data(), scales.data(), static_cast<int64_t>(codes.size()), bytes.data());
    std::vector<float> out(codes.size());
    gguf_decode(type, bytes.data(), static_cast<int64_t>(codes.size()), out.data());
    return out;
  };
  const Bytes codes = counted(128, 0, 15);
  const std::vector<float> q4 = decoded(GgufType::q4_0, codes, std::vector<uint16_t>(4, fp16_bits(0.75f)));
  const std::vector<float> q8 = decoded(GgufType::q8_0, counted(128, -64, 0xFF), {fp16_bits(1), fp16_bits(2), fp16_bits(-3), fp16_bits(4)});
  const std::vector<float> mx = decoded(GgufType::mxfp4, codes, {127, 0, 1, 254});
  const std::vector<float> nv = decoded(GgufType::nvfp4, codes, {0x38, 0x01, 0x7E, 0x40, 0x38, 0x38, 0x38, 0x30});
  const std::array<float, 4> powers{1, 0x1p-127f, 0x1p-126f, 0x1p127f}, numbers{1, 2, -3, 4};
  const std::array<float, 8> e4m3{1, 0x1p-9f, 448, 2, 1, 1, 1, 0.5f};
  for (size_t i = 0; i < 128; ++i) {
    const float code = decode(Float::e2m1, codes[i]);
    EXPECT_EQ(q4[i], static_cast<float>(codes[i] < 8 ? codes[i] : codes[i] - 16) * 0.75f) << i;
    EXPECT_EQ(q8[i], static_cast<float>(static_cast<int>(i) - 64) * numbers[i / 32]) << i;
    EXPECT_EQ(mx[i], code * powers[i / 32]) << i;
    EXPECT_EQ(nv[i], code * e4m3[i / 16]) << i;
  }
}

TEST(GgufBlocks, QuantiseAsGgmlDoes) {
  std::array<float, 32> x{};
  x[0] = 127, x[1] = -2.5f, x[2] = 2.5f, x[3] = 0.49f;
  Bytes q8(34), q4(18);
  EXPECT_TRUE(gguf_quantize(GgufType::q8_0, x.data(), 32, q8.data()));
  EXPECT_EQ(Bytes(q8.begin(), q8.begin() + 6), (Bytes{0x00, 0x3C, 127, 0xFD, 3, 0}));  // scale 1, halves away from 0
  x = {};
  x[0] = 16, x[1] = -16, x[2] = 3;  // of equal magnitudes the first one gets -8: scale -2
  EXPECT_TRUE(gguf_quantize(GgufType::q4_0, x.data(), 32, q4.data()));
  EXPECT_EQ(Bytes(q4.begin(), q4.begin() + 5), (Bytes{0x00, 0xC0, 0x80, 0x8F, 0x87}));  // 0, 15 (not 16), -1.5 + 8.5 = 7
  EXPECT_TRUE(gguf_quantize(GgufType::q4_0, std::array<float, 32>{}.data(), 32, q4.data()));
  EXPECT_EQ(Bytes(q4.begin(), q4.begin() + 3), (Bytes{0x00, 0x80, 0x88}));
  // Scales so small that their inverse overflows: all codes are those of 0.
  x = {}, x[0] = 1e-41f;
  EXPECT_TRUE(gguf_quantize(GgufType::q8_0, x.data(), 32, q8.data()) && gguf_quantize(GgufType::q4_0, x.data(), 32, q4.data()));
  EXPECT_EQ(q8, Bytes(34));
  EXPECT_EQ(Bytes(q4.begin() + 2, q4.end()), Bytes(16, 0x88));
  x[0] = 1e9f;
  EXPECT_FALSE(gguf_quantize(GgufType::q8_0, x.data(), 32, q8.data()));
}

}  // namespace
}  // namespace halftone::gguf_file_test
