#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace halftone {

enum class Compression { none, gzip, zstd, xz };
// By the file's first bytes (RFC 1952, RFC 8878, the xz specification), not by its name.
Compression compression_of(const std::string& path);

// The bytes of a file from the first to the last, decompressed. Several gzip members, zstd frames or xz streams follow each other as one.
// Errors name the file and the position: a file cut short, a wrong checksum, bytes behind the end.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Up to `size` bytes; 0 only at the end.
  virtual size_t read(char* out, size_t size) = 0;
};
std::unique_ptr<ByteStream> open_stream(const std::string& path);

}  // namespace halftone
