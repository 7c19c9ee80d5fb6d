#include "halftone/data/digest.h"

#include <fmt/format.h>
#include <xxhash.h>

namespace halftone {

uint64_t hash_bytes(const void* data, size_t size) { return XXH3_64bits(data, size); }

std::string digest_hex(std::string_view bytes) {
  const XXH128_hash_t h = XXH3_128bits(bytes.data(), bytes.size());
  return fmt::format("{:016x}{:016x}", h.high64, h.low64);
}

}  // namespace halftone
