#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "halftone/base/error.h"
#include "halftone/base/zero_byte.h"

// Reads fields of a tokenizer.json; errors name the location. `where` is the dotted name of the object.
namespace halftone::tokenizer_fields {

using Json = nlohmann::json;

// Text from a file as quoted in a one-line message: JSON string syntax, truncated to 60 bytes.
inline std::string shown(std::string_view text) {
  const std::string part(text.substr(0, 60));
  return Json(part).dump(-1, ' ', true, Json::error_handler_t::replace) + (text.size() > 60 ? "..." : "");
}

// Parses after checking the nesting depth, because consumers recurse over the result.
inline Json parse(std::string_view text, const char* file) {
  constexpr int kMaxDepth = 64;
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      check(++depth <= kMaxDepth, "{}: nested deeper than {} levels at byte {}", file, kMaxDepth, i);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  check(zero_byte(text) == std::string_view::npos, "{} is not valid JSON: byte {} of {} is zero", file, zero_byte(text) + 1, text.size());
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::parse_error& e) {
    fail("{} is not valid JSON at byte {} of {}: the file may be truncated or damaged", file, e.byte, text.size());
  } catch (const Json::exception& e) {  // a number out of range
    fail("{} is not valid JSON: {}", file, e.what());
  }
}

inline const Json& member(const Json& object, const char* key, const char* where) {
  check(object.is_object(), "{}: expected an object, found {}", where, object.type_name());
  const auto found = object.find(key);
  check(found != object.end(), "{}: the field {} is missing", where, key);
  return *found;
}

inline const Json& list(const Json& object, const char* key, const char* where) {
  const Json& value = member(object, key, where);
  check(value.is_array(), "{}.{}: expected an array, found {}", where, key, value.type_name());
  return value;
}

inline std::string string_of(const Json& object, const char* key, const char* where) {
  const Json& value = member(object, key, where);
  check(value.is_string(), "{}.{}: expected a string, found {}", where, key, value.type_name());
  return value.get<std::string>();
}

inline std::string type_of(const Json& object, const char* where) { return string_of(object, "type", where); }

// Absent and null return the fallback.
inline std::string string_or(const Json& object, const char* key, const char* fallback, const char* where) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? fallback : string_of(object, key, where);
}

inline bool flag_or(const Json& object, const char* key, bool fallback, const char* where) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return fallback;
  check(found->is_boolean(), "{}.{}: expected true or false, found {}", where, key, found->type_name());
  return found->get<bool>();
}

inline int64_t integer(const Json& value, const std::string& where) {
  check(value.is_number_integer(), "{}: expected an integer, found {}", where, value.type_name());
  check(!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{INT64_MAX}, "{}: the number {} is out of range", where,
        value.dump());
  return value.get<int64_t>();
}

}  // namespace halftone::tokenizer_fields
