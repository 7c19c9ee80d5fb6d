#include "halftone/storage/byte_stream.h"

#include <gtest/gtest.h>
#include <lzma.h>
#include <unistd.h>
#include <zstd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "compress.h"
#include "halftone/base/error.h"

namespace halftone::byte_stream_test {
namespace {

using compress::gzip;

std::string zstd(const std::string& text, int window_log = 0) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  if (window_log > 0) ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log);
  if (window_log > 0) ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
  std::string out(ZSTD_compressBound(text.size()), '\0');
  ZSTD_inBuffer in{text.data(), text.size(), 0};
  ZSTD_outBuffer to{out.data(), out.size(), 0};
  // In two calls: with one the encoder knows the size and narrows the window.
  ZSTD_compressStream2(context, &to, &in, ZSTD_e_flush);
  EXPECT_EQ(ZSTD_compressStream2(context, &to, &in, ZSTD_e_end), 0u);
  ZSTD_freeCCtx(context);
  out.resize(to.pos);
  return out;
}

std::string xz(const std::string& text, uint32_t dictionary = 1 << 20) {
  lzma_options_lzma options;
  lzma_lzma_preset(&options, 1);
  options.dict_size = dictionary;
  lzma_filter filters[] = {{LZMA_FILTER_LZMA2, &options}, {LZMA_VLI_UNKNOWN, nullptr}};
  std::string out(lzma_stream_buffer_bound(text.size()), '\0');
  size_t size = 0;
  EXPECT_EQ(lzma_stream_buffer_encode(filters, LZMA_CHECK_CRC64, nullptr, reinterpret_cast<const uint8_t*>(text.data()), text.size(),
                                      reinterpret_cast<uint8_t*>(out.data()), &size, out.size()),
            LZMA_OK);
  out.resize(size);
  return out;
}

class ByteStreams : public testing::Test {
 protected:
  ByteStreams() : path_((std::filesystem::temp_directory_path() / ("halftone_byte_stream_" + std::to_string(::getpid()))).string()) {
    std::mt19937 random(3);
    while (text_.size() < 3'000'000) text_ += "line " + std::to_string(random() % 100'000) + "\n";
  }
  ~ByteStreams() override { std::filesystem::remove(path_); }

  const std::string& file(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
    return path_;
  }
  std::string read(const std::string& bytes, size_t block = 100'000) const {
    const auto stream = open_stream(file(bytes));
    std::string out, buffer(block, '\0');
    while (const size_t n = stream->read(buffer.data(), buffer.size())) out.append(buffer, 0, n);
    EXPECT_EQ(stream->read(buffer.data(), 1), 0u);
    return out;
  }
  std::string error(const std::string& bytes) const {
    try {
      read(bytes);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }

  std::string path_, text_;
};

#define EXPECT_SAYS(text, part) EXPECT_PRED_FORMAT2(testing::IsSubstring, part, text)

TEST_F(ByteStreams, ReadWhatWasCompressed) {
  const std::string parts[] = {text_, "", text_.substr(0, 10), text_.substr(7, 2'000'000)};
  for (auto* pack : {+[](const std::string& t) { return gzip(t); }, +[](const std::string& t) { return zstd(t); },
                     +[](const std::string& t) { return xz(t); }, +[](const std::string& t) { return t; }}) {
    std::string packed, expected;
    for (const std::string& part : parts) packed += pack(part), expected += part;
    EXPECT_EQ(read(packed), expected);
    EXPECT_EQ(read(packed, 5'000'000), expected);
    EXPECT_EQ(read(pack("abc"), 1), "abc");
    EXPECT_EQ(read(pack("")), "");
  }
}

TEST_F(ByteStreams, MembersMayEndAtTheEndsOfBlocks) {
  // Input is read in blocks of 1 MiB: a second member is put at every distance around the end of the first block.
  std::mt19937 random(5);
  std::string noise(1'000'000, '\0');
  for (char& c : noise) c = static_cast<char>(random());
  for (auto* pack : {+[](const std::string& t) { return gzip(t); }, +[](const std::string& t) { return zstd(t); },
                     +[](const std::string& t) { return xz(t); }}) {
    const std::string first = pack(noise);
    for (size_t left = 0; left < 20; ++left) {
      // Stored almost as it is: a second member of noise fills the block up to `left` bytes.
      const size_t fixed = pack(noise.substr(0, 40'000)).size() - 40'000;
      const std::string second = pack(noise.substr(0, (size_t{1} << 20) - first.size() - fixed - left));
      const std::string packed = first + second + pack("end");
      std::string out = read(packed);
      EXPECT_EQ(out.substr(out.size() - 3), "end");
    }
  }
}

TEST_F(ByteStreams, FormatIsFoundByContent) {
  EXPECT_EQ(compression_of(file(gzip("a"))), Compression::gzip);
  EXPECT_EQ(compression_of(file(zstd("a"))), Compression::zstd);
  EXPECT_EQ(compression_of(file(xz("a"))), Compression::xz);
  EXPECT_EQ(compression_of(file("")), Compression::none);
  EXPECT_EQ(compression_of(file("P*M text")), Compression::none);
  // A skippable frame in front, as pzstd writes it.
  const std::string skippable("\x50\x2A\x4D\x18\x03\x00\x00\x00xyz", 11);
  EXPECT_EQ(compression_of(file(skippable + zstd("a"))), Compression::zstd);
  EXPECT_EQ(read(skippable + zstd("a") + skippable), "a");
}

TEST_F(ByteStreams, CutFilesSayWhere) {
  for (auto* pack : {+[](const std::string& t) { return gzip(t); }, +[](const std::string& t) { return zstd(t); },
                     +[](const std::string& t) { return xz(t); }}) {
    const std::string packed = pack(text_);
    for (const size_t size : {packed.size() - 1, packed.size() / 2, size_t{7}}) {
      const std::string message = error(packed.substr(0, size));
      EXPECT_SAYS(message, path_);
      EXPECT_SAYS(message, "cut short: it ends at byte " + std::to_string(size));
    }
    EXPECT_SAYS(error(packed + pack("more").substr(0, 8)), "cut short");
  }
}

TEST_F(ByteStreams, DamageAndTrailingBytesSayWhere) {
  const std::pair<const char*, std::string> all[] = {{"gzip", gzip(text_)}, {"zstd", zstd(text_)}, {"xz", xz(text_)}};
  for (const auto& [name, packed] : all) {
    std::string wrong = packed;
    // Checksums: in front of the size (gzip), at the end (zstd), in front of the index (xz: anywhere in the last block's data).
    wrong[wrong.size() - (*name == 'g' ? 6 : *name == 'z' ? 2 : 40)] ^= 1;
    EXPECT_SAYS(error(wrong), std::string("damaged ") + name + " data at byte ");
    EXPECT_SAYS(error(packed + "garbage"), "at byte " + std::to_string(packed.size()) + ", found other bytes");
    EXPECT_SAYS(error(packed + "x"), "found other bytes");
  }
  EXPECT_EQ(read(xz("a") + std::string(8, '\0') + xz("b") + std::string(4, '\0')), "ab");  // stream padding
  EXPECT_SAYS(error(xz("a") + std::string(5, '\0')), "found other bytes");
}

TEST_F(ByteStreams, MemoryIsLimited) {
  EXPECT_SAYS(error(zstd(text_, 28)), "zstd window is larger than 128 MiB");
  EXPECT_EQ(read(zstd("small", 27)), "small");
  EXPECT_SAYS(error(xz("x", 1u << 30)), "xz dictionary needs 1025 MiB of memory, the limit is 256");
}

}  // namespace
}  // namespace halftone::byte_stream_test
