#pragma once
#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

#include <string>

#include "halftone/base/error.h"

namespace halftone::compress {

// Text as one gzip member, zstd frame or xz stream.
inline std::string gzip(const std::string& text) {
  z_stream z{};
  check(deflateInit2(&z, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK, "gzip does not start");
  std::string out(deflateBound(&z, text.size()) + 32, '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data())), z.avail_in = static_cast<uInt>(text.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data()), z.avail_out = static_cast<uInt>(out.size());
  check(deflate(&z, Z_FINISH) == Z_STREAM_END, "gzip does not end");
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

inline std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

inline std::string xz(const std::string& text, uint32_t preset = 0, lzma_check checksum = LZMA_CHECK_CRC32) {
  std::string out(lzma_stream_buffer_bound(text.size()), '\0');
  size_t size = 0;
  check(lzma_easy_buffer_encode(preset, checksum, nullptr, reinterpret_cast<const uint8_t*>(text.data()), text.size(),
                                reinterpret_cast<uint8_t*>(out.data()), &size, out.size()) == LZMA_OK,
        "xz fails");
  out.resize(size);
  return out;
}

}  // namespace halftone::compress
