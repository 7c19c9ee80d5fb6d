#include "halftone/storage/byte_stream.h"

#include <lzma.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <utility>

#include "halftone/base/error.h"

namespace halftone {
namespace {

using namespace std::string_view_literals;

constexpr size_t kInput = size_t{1} << 20;
constexpr int kZstdWindowLog = 27;
constexpr uint64_t kXzMemory = uint64_t{256} << 20;

// A file read in blocks from its start.
class PlainStream : public ByteStream {
 public:
  explicit PlainStream(std::shared_ptr<const ByteFile> file) : file_(std::move(file)) {}
  size_t read(char* out, size_t size) override {
    const size_t n = file_->read(at_, out, size);
    at_ += static_cast<int64_t>(n);
    return n;
  }

 private:
  std::shared_ptr<const ByteFile> file_;
  int64_t at_ = 0;
};

// Feeds a decoder with blocks of the file. decode() consumes input and returns how much it wrote; at the end of a member, frame or stream
// it sets ended_, and is called again only if more bytes follow.
class Decompressor : public ByteStream {
 public:
  size_t read(char* out, size_t size) override {
    size_t done = 0;
    while (done == 0 && size > 0) {
      if (used_ == filled_ && !last_) fill();
      const bool empty = used_ == filled_;
      if (empty && ended_) return 0;
      const int64_t before = offset();
      done = decode(out, size);
      if (done > 0 || offset() != before || ended_) continue;
      check(!empty, "{}: the {} file is cut short: it ends at byte {} inside compressed data; copy it again", file_->path(), name_,
            offset());
      fail("{}: damaged {} data at byte {}: the decoder does not advance", file_->path(), name_, offset());
    }
    return done;
  }

 protected:
  Decompressor(std::shared_ptr<const ByteFile> file, const char* name) : file_(std::move(file)), name_(name), input_(kInput, '\0') {}
  virtual size_t decode(char* out, size_t size) = 0;

  const char* input() const { return input_.data() + used_; }
  size_t available() const { return filled_ - used_; }
  void consumed(size_t n) { used_ += n; }
  // Position in the file of the next byte to decode.
  int64_t offset() const { return block_at_ + static_cast<int64_t>(used_); }
  [[noreturn]] void damaged(std::string_view what) const {
    fail("{}: damaged {} data at byte {}: {}; copy or write the file again", file_->path(), name_, offset(), what);
  }
  [[noreturn]] void trailing() const {
    fail("{}: expected the end of the file or another {} {} at byte {}, found other bytes; copy or write the file again", file_->path(),
         name_,
         name_ == "gzip"sv   ? "member"
         : name_ == "zstd"sv ? "frame"
                             : "stream",
         offset());
  }
  // Whether the next bytes to decode are these.
  bool begins_with(std::string_view bytes) {
    if (available() < bytes.size() && !last_) refill();
    return std::string_view(input(), available()).substr(0, bytes.size()) == bytes;
  }
  const std::string& path() const { return file_->path(); }

  bool ended_ = false;  // between members, frames or streams

 private:
  void fill() {
    block_at_ += static_cast<int64_t>(filled_);
    filled_ = file_->read(block_at_, input_.data(), input_.size());
    used_ = 0;
    last_ = filled_ < input_.size();
  }
  // Keeps what is left of the block in front of the next one.
  void refill() {
    std::copy(input_.begin() + static_cast<std::ptrdiff_t>(used_), input_.begin() + static_cast<std::ptrdiff_t>(filled_), input_.begin());
    block_at_ += static_cast<int64_t>(used_);
    filled_ -= used_, used_ = 0;
    const size_t want = input_.size() - filled_;
    const size_t n = file_->read(block_at_ + static_cast<int64_t>(filled_), input_.data() + filled_, want);
    filled_ += n;
    last_ = n < want;
  }

  std::shared_ptr<const ByteFile> file_;
  const char* name_;
  std::string input_;
  size_t used_ = 0, filled_ = 0;
  int64_t block_at_ = 0;
  bool last_ = false;
};

class GzipStream : public Decompressor {
 public:
  explicit GzipStream(std::shared_ptr<const ByteFile> file) : Decompressor(std::move(file), "gzip") {
    check(inflateInit2(&z_, MAX_WBITS + 16) == Z_OK, "{}: cannot start the gzip decoder: out of memory", path());
  }
  ~GzipStream() override { inflateEnd(&z_); }

 private:
  size_t decode(char* out, size_t size) override {
    if (ended_) {
      if (!begins_with("\x1F\x8B"sv)) trailing();
      inflateReset(&z_);
      ended_ = false;
    }
    z_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input()));
    z_.avail_in = static_cast<uInt>(available());
    z_.next_out = reinterpret_cast<Bytef*>(out);
    const auto room = static_cast<uInt>(std::min<size_t>(size, size_t{1} << 30));
    z_.avail_out = room;
    const int status = inflate(&z_, Z_NO_FLUSH);
    consumed(available() - z_.avail_in);
    ended_ = status == Z_STREAM_END;
    if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR) damaged(z_.msg != nullptr ? z_.msg : "invalid");
    return room - z_.avail_out;
  }
  z_stream z_{};
};

class ZstdStream : public Decompressor {
 public:
  explicit ZstdStream(std::shared_ptr<const ByteFile> file)
      : Decompressor(std::move(file), "zstd"), z_(ZSTD_createDStream(), ZSTD_freeDStream) {
    check(z_ != nullptr, "{}: cannot start the zstd decoder: out of memory", path());
    ZSTD_DCtx_setParameter(z_.get(), ZSTD_d_windowLogMax, kZstdWindowLog);
  }

 private:
  size_t decode(char* out, size_t size) override {
    // A frame's magic number is checked here: the decoder calls anything else an unknown prefix, whatever came before.
    if (ended_ && available() > 0 && !frame_follows()) trailing();
    ZSTD_inBuffer in{input(), available(), 0};
    ZSTD_outBuffer to{out, size, 0};
    const size_t status = ZSTD_decompressStream(z_.get(), &to, &in);
    consumed(in.pos);
    if (ZSTD_isError(status)) {
      check(ZSTD_getErrorCode(status) != ZSTD_error_frameParameter_windowTooLarge,
            "{}: its zstd window is larger than {} MiB, the limit of memory for reading it; compress it again with zstd --long={} or less",
            path(), (1 << kZstdWindowLog) >> 20, kZstdWindowLog);
      damaged(ZSTD_getErrorName(status));
    }
    ended_ = status == 0;
    return to.pos;
  }
  bool frame_follows() {
    if (begins_with("\x28\xB5\x2F\xFD"sv)) return true;
    for (char first = 0x50; first < 0x60; ++first) {
      const char skippable[] = {first, '\x2A', '\x4D', '\x18'};
      if (begins_with({skippable, 4})) return true;
    }
    return false;
  }
  std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> z_;
};

class XzStream : public Decompressor {
 public:
  explicit XzStream(std::shared_ptr<const ByteFile> file) : Decompressor(std::move(file), "xz") { start(); }
  ~XzStream() override { lzma_end(&z_); }

 private:
  void start() {
    check(lzma_stream_decoder(&z_, kXzMemory, LZMA_TELL_UNSUPPORTED_CHECK) == LZMA_OK, "{}: cannot start the xz decoder: out of memory",
          path());
  }
  size_t decode(char* out, size_t size) override {
    if (ended_) {
      // Stream padding: a multiple of four zero bytes (xz specification, 2.2).
      if (begins_with("\0\0\0\0"sv)) return consumed(4), 0;
      if (!begins_with("\xFD"
                       "7zXZ\0"sv))
        trailing();
      start();
      ended_ = false;
    }
    z_.next_in = reinterpret_cast<const uint8_t*>(input());
    z_.avail_in = available();
    z_.next_out = reinterpret_cast<uint8_t*>(out);
    z_.avail_out = size;
    const lzma_ret status = lzma_code(&z_, LZMA_RUN);
    consumed(available() - z_.avail_in);
    ended_ = status == LZMA_STREAM_END;
    if (status == LZMA_MEMLIMIT_ERROR)
      fail("{}: its xz dictionary needs {} MiB of memory, the limit is {}; compress it again with xz -9 or less", path(),
           (lzma_memusage(&z_) >> 20) + 1, kXzMemory >> 20);
    if (status != LZMA_OK && status != LZMA_STREAM_END && status != LZMA_BUF_ERROR)
      damaged(status == LZMA_UNSUPPORTED_CHECK ? "a checksum of an unknown kind"
              : status == LZMA_MEM_ERROR       ? "out of memory"
              : status == LZMA_OPTIONS_ERROR   ? "an unknown filter or option"
                                               : "wrong checksum or corrupt block");
    return size - z_.avail_out;
  }
  lzma_stream z_ = LZMA_STREAM_INIT;
};

}  // namespace

Compression compression_of_bytes(std::string_view first) {
  if (first.starts_with("\x1F\x8B"sv)) return Compression::gzip;
  if (first.starts_with("\xFD"
                        "7zXZ\0"sv))
    return Compression::xz;
  const bool skippable = first.size() >= 4 && (first[0] & 0xF0) == 0x50 && first.substr(1, 3) == "\x2A\x4D\x18"sv;
  return first.starts_with("\x28\xB5\x2F\xFD"sv) || skippable ? Compression::zstd : Compression::none;
}

Compression compression_of(const ByteFile& file) {
  char first[6];
  return compression_of_bytes(std::string_view(first, file.read(0, first, sizeof first)));
}

Compression compression_of(const std::string& path) { return compression_of(*open_bytes(path)); }

std::unique_ptr<ByteStream> open_stream(std::shared_ptr<const ByteFile> file) {
  switch (compression_of(*file)) {
    case Compression::gzip:
      return std::make_unique<GzipStream>(std::move(file));
    case Compression::zstd:
      return std::make_unique<ZstdStream>(std::move(file));
    case Compression::xz:
      return std::make_unique<XzStream>(std::move(file));
    case Compression::none:
      break;
  }
  return std::make_unique<PlainStream>(std::move(file));
}

std::unique_ptr<ByteStream> open_stream(const std::string& path) { return open_stream(open_bytes(path)); }

}  // namespace halftone
