#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace halftone {

// Length in bytes of the longest well-formed UTF-8 prefix (RFC 3629: no surrogates, no overlong forms, at most U+10FFFF).
size_t valid_utf8_prefix(std::string_view text);
inline bool is_valid_utf8(std::string_view text) { return valid_utf8_prefix(text) == text.size(); }

// Decodes the code point at text[position] of well-formed UTF-8 and advances position.
char32_t next_code_point(std::string_view text, size_t& position);
void append_utf8(std::string& out, char32_t code_point);

}  // namespace halftone
