#include "halftone/base/json_reader.h"

#include <algorithm>
#include <set>

#include "halftone/base/error.h"
#include "halftone/base/zero_byte.h"

namespace halftone {
namespace {

constexpr int kMaxDepth = 32;

}  // namespace

bool is_set(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null();
}

std::string short_text(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 40) text = text.substr(0, 37) + "...";
  return text;
}

Json parse_json(std::string_view text, const std::string& what) {
  std::vector<std::set<std::string>> keys;
  const auto callback = [&](int depth, Json::parse_event_t event, Json& value) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        check(depth < kMaxDepth, "{}: nested deeper than {} levels", what, kMaxDepth);
        keys.emplace_back();
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        keys.pop_back();
        break;
      case Json::parse_event_t::key:
        check(keys.back().insert(value.get_ref<const std::string&>()).second, "{}: the key {} appears twice", what, short_text(value));
        break;
      default:
        break;
    }
    return true;
  };
  check(zero_byte(text) == std::string_view::npos, "{}: not valid JSON: byte {} is zero", what, zero_byte(text) + 1);
  try {
    return Json::parse(text.begin(), text.end(), callback);
  } catch (const Json::exception& error) {
    const auto* parse = dynamic_cast<const Json::parse_error*>(&error);
    fail("{}: not valid JSON near byte {}", what, parse ? parse->byte : 0);
  }
}

const Json& member(const Json& object, const char* key, const std::string& what) {
  check(object.is_object(), "{}: expected an object, found {}", what, short_text(object));
  const auto found = object.find(key);
  check(found != object.end(), "{}: the field \"{}\" is missing", what, key);
  return *found;
}

std::string string_member(const Json& object, const char* key, const std::string& what) {
  const Json& value = member(object, key, what);
  check(value.is_string(), "{}: \"{}\" expects a string, found {}", what, key, short_text(value));
  return value.get<std::string>();
}

static int64_t as_integer(const Json& value, const std::string& what, std::string_view key) {
  check(value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX),
        "{}: \"{}\" expects a non-negative integer, found {}", what, key, short_text(value));
  return value.get<int64_t>();
}

int64_t integer_member(const Json& object, const char* key, const std::string& what) {
  return as_integer(member(object, key, what), what, key);
}

double number_member(const Json& object, const char* key, const std::string& what) {
  const Json& value = member(object, key, what);
  check(value.is_number(), "{}: \"{}\" expects a number, found {}", what, key, short_text(value));
  return value.get<double>();
}

bool bool_member(const Json& object, const char* key, const std::string& what) {
  const Json& value = member(object, key, what);
  check(value.is_boolean(), "{}: \"{}\" expects true or false, found {}", what, key, short_text(value));
  return value.get<bool>();
}

std::vector<int64_t> integer_list(const Json& value, size_t max_length, const std::string& what) {
  check(value.is_array() && value.size() <= max_length, "{}: expected a list of at most {} integers, found {}", what, max_length,
        short_text(value));
  std::vector<int64_t> list;
  list.reserve(value.size());
  for (const Json& item : value) list.push_back(as_integer(item, what, "list"));
  return list;
}

}  // namespace halftone
