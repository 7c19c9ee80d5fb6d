#pragma once
#include <string>
#include <string_view>

namespace halftone {

// Translates a Split pattern of tokenizer.json, which the `tokenizers` package runs in Oniguruma (Ruby syntax), to a PCRE2 pattern that
// matches the same with PCRE2_UTF | PCRE2_UCP. Error, one line, for a construct that differs there and is not translated.
std::string pcre2_pattern(std::string_view pattern);

}  // namespace halftone
