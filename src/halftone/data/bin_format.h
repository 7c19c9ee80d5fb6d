#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

namespace halftone {

// The EOS id that ends a document among ids. If BOS is the same id, one in front begins the document.
struct DocumentEnd {
  int64_t eos = -1;  // below 0: none
  bool is_bos = false;
  // Length of the document at the start of the ids at(0) to at(n - 1).
  template <class At>
  size_t length(size_t n, At&& at) const {
    for (size_t i = 0; i < n; ++i)
      if (static_cast<int64_t>(at(i)) == eos && (i > 0 || n == 1 || !is_bos)) return i + 1;
    return n;
  }
};
inline DocumentEnd document_end(std::optional<int32_t> bos, std::optional<int32_t> eos) { return {eos.value_or(-1), bos == eos}; }

// Pre-tokenised files: raw little-endian uint16 or uint32 ids; a document ends with its EOS, or with the file. A header of llm.c may
// precede them: 256 int32, of which the first three are 20240520 and 1 for uint16 or 20240801 and 7 for uint32, then the number of ids.

// 2 for "uint16", 4 for "uint32"; otherwise an Error.
int token_bytes_of(const std::string& token_dtype);

// Id number i of `bytes` at the given width.
inline uint32_t stored_id(std::span<const std::byte> bytes, size_t i, int width) {
  const auto* p = reinterpret_cast<const unsigned char*>(bytes.data()) + i * static_cast<size_t>(width);
  const uint32_t low = static_cast<uint32_t>(p[0]) | static_cast<uint32_t>(p[1]) << 8;
  return width == 2 ? low : low | static_cast<uint32_t>(p[2]) << 16 | static_cast<uint32_t>(p[3]) << 24;
}

// Where the ids of a file lie, and their width.
struct BinLayout {
  int64_t first = 0, bytes = 0;
  int width = 2;
};
// By the first bytes of a file (12 suffice) and its size: `width` is that of a file without a header. Error for a header of another version
// or one whose number of ids does not match the size.
BinLayout bin_layout(std::span<const std::byte> first, int64_t size, int width, const std::string& path);

// Calls visit(first, count) in ids for every document of a file's `bytes`. Errors name `path`: a size that is
// not a whole number of ids, ids of the other width, an id not below `vocab_size` (with its byte offset, counted from `bytes`).
void scan_bin(std::span<const std::byte> bytes, int width, int64_t vocab_size, DocumentEnd end, const std::string& path,
              const std::function<void(size_t first, size_t count)>& visit);

}  // namespace halftone
