#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace halftone {

// XXH3 64-bit of `size` bytes; not cryptographic: it detects changed and damaged files, but does not resist an attacker.
uint64_t hash_bytes(const void* data, size_t size);

// XXH3 128-bit as 32 hexadecimal digits.
std::string digest_hex(std::string_view bytes);

}  // namespace halftone
