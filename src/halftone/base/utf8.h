#pragma once
#include <cstddef>
#include <string_view>

namespace halftone {

// Length in bytes of the longest well-formed UTF-8 prefix (RFC 3629: no surrogates, no overlong forms, at most U+10FFFF).
size_t valid_utf8_prefix(std::string_view text);
inline bool is_valid_utf8(std::string_view text) { return valid_utf8_prefix(text) == text.size(); }

}  // namespace halftone
