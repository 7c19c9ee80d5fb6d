// links: base compression
// sources: src/halftone/storage/byte_stream.cpp
// seeds: tests/fuzz/seeds/compressed_stream
// dict: \x1F\x8B\x08 \x28\xB5\x2F\xFD \x50\x2A\x4D\x18 \xFD7zXZ\x00 \x00\x00\x00\x00
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "fuzz/bytes.h"
#include "halftone/base/error.h"
#include "halftone/storage/byte_stream.h"

namespace halftone {
std::shared_ptr<const ByteFile> open_bytes(const std::string&) { std::abort(); }
}  // namespace halftone

// gzip, zstd, xz or plain: any bytes end in an Error or at the end; at most 64 MiB are decompressed.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto stream = halftone::open_stream(std::make_shared<Bytes>(data, size));
    static std::string out(size_t{1} << 20, '\0');
    for (int block = 0; block < 64 && stream->read(out.data(), out.size()) > 0; ++block) {}
  } catch (const halftone::Error&) {}
  return 0;
}
