#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "halftone/storage/byte_file.h"

namespace halftone {

enum class Compression { none, gzip, zstd, xz };
// By the first bytes of a file (RFC 1952, RFC 8878 with its skippable frames, the xz specification), not by its name. Six bytes suffice.
Compression compression_of_bytes(std::string_view first_bytes);
Compression compression_of(const ByteFile& file);
Compression compression_of(const std::string& path);

// The bytes of a file from the first to the last, decompressed. Several gzip members, zstd frames or xz streams follow each other as one.
// Errors name the file and the position: a file cut short, a wrong checksum, bytes behind the end. Memory: 1 MiB of input, and a zstd
// window of up to 128 MiB (zstd -22 or --long=27) or an xz decoder of up to 256 MiB (xz -9 needs 65); a file that needs more is an error.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Up to `size` bytes; 0 only at the end (or when size is 0).
  virtual size_t read(char* out, size_t size) = 0;
};
std::unique_ptr<ByteStream> open_stream(const std::string& path);
std::unique_ptr<ByteStream> open_stream(std::shared_ptr<const ByteFile> file);

}  // namespace halftone
