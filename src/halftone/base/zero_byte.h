#pragma once
#include <string_view>

namespace halftone {

// Position of a zero byte, or npos. nlohmann::json takes one for the end of the text and ignores what follows: its callers refuse it.
inline size_t zero_byte(std::string_view text) { return text.find('\0'); }

}  // namespace halftone
