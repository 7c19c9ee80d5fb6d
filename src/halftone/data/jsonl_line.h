#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace halftone {

// The training document in a JSONL line: the string under the text key, or otherwise the integers under "input_ids".
struct JsonlDocument {
  bool has_text = false, has_ids = false;
  bool whole_row = false;  // neither, or ids with a list that selects those with a loss: RowDocument reads the line
  std::string text;
  std::vector<int32_t> ids;
};

// Parses one line: a JSON object in valid UTF-8. Error (without file and line, which the caller knows) if it is not an object, one of the
// two fields has another type, or an id is negative or not below `vocab_size`.
JsonlDocument parse_jsonl_line(std::string_view line, const std::string& text_key, int64_t vocab_size);

}  // namespace halftone
