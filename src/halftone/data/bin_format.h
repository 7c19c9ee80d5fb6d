#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

namespace halftone {

// Pre-tokenised files: nothing but little-endian uint16 or uint32 ids; a document ends with the EOS id that belongs to it,
// or with the file.

// 2 for "uint16", 4 for "uint32"; otherwise an Error.
int token_bytes_of(const std::string& token_dtype);

// Id number i of `bytes` in the given width.
inline uint32_t stored_id(std::span<const std::byte> bytes, size_t i, int width) {
  const auto* p = reinterpret_cast<const unsigned char*>(bytes.data()) + i * static_cast<size_t>(width);
  const uint32_t low = static_cast<uint32_t>(p[0]) | static_cast<uint32_t>(p[1]) << 8;
  return width == 2 ? low : low | static_cast<uint32_t>(p[2]) << 16 | static_cast<uint32_t>(p[3]) << 24;
}

// Calls visit(first, count) in ids for every document of a file's `bytes`. Errors name `path`: a header of llm.c (magic
// 20240520), a size that is not a whole number of ids, ids of the other width, an id not below `vocab_size` (with its byte offset).
void scan_bin(std::span<const std::byte> bytes, int width, int64_t vocab_size, std::optional<int32_t> eos_id, const std::string& path,
              const std::function<void(size_t first, size_t count)>& visit);

}  // namespace halftone
