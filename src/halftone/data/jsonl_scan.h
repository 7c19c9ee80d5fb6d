#pragma once
#include <string>
#include <string_view>

namespace halftone {

// The usual case of parse_jsonl_line, at several GB/s: true if `line` is a JSON object (RFC 8259) in UTF-8 with a string under `text_key`,
// then unescaped in `text`. False for lines that are not, and for some that are (keys with escapes, surrogates, input_ids, a key
// that occurs twice, more than 64 levels): these are for a complete parser, which also says what is wrong.
bool scan_jsonl_text(std::string_view line, std::string_view text_key, std::string& text);

}  // namespace halftone
