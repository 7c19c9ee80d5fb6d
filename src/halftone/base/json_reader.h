#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace halftone {

using Json = nlohmann::json;

// Parses untrusted JSON: duplicate keys, nesting deeper than 32, invalid UTF-8 and trailing text are errors that start with `what` (usually
// the path).
Json parse_json(std::string_view text, const std::string& what);

// JSON text of a value for messages, truncated to 40 bytes.
std::string short_text(const Json& value);

bool is_set(const Json& object, const char* key);  // present and not null

// Checked members of an object; the Error names `what`, the key, the expected and the found value.
const Json& member(const Json& object, const char* key, const std::string& what);
std::string string_member(const Json& object, const char* key, const std::string& what);
int64_t integer_member(const Json& object, const char* key, const std::string& what);  // 0 .. 2^63-1
double number_member(const Json& object, const char* key, const std::string& what);
bool bool_member(const Json& object, const char* key, const std::string& what);
// List of at most `max_length` integers 0 .. 2^63-1.
std::vector<int64_t> integer_list(const Json& value, size_t max_length, const std::string& what);

}  // namespace halftone
