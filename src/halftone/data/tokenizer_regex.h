#pragma once
#include <string>
#include <string_view>

namespace halftone {

// A Split pattern of tokenizer.json, which the `tokenizers` package gives to Oniguruma (Ruby's syntax), as one of PCRE2 with
// PCRE2_UTF | PCRE2_UCP that matches the same. Error, one line, that names what has another meaning there and is not translated.
std::string pcre2_pattern(std::string_view pattern);

}  // namespace halftone
