#include "halftone/models/hf_reader.h"

#include <algorithm>
#include <cmath>

#include "halftone/base/error.h"

namespace halftone {

void refuse_unless(const Json& value, const Json& neutral, const std::string& name, const std::string& what) {
  const auto allowed = [&](const Json& v) { return std::find(neutral.begin(), neutral.end(), v) != neutral.end(); };
  if (value.is_null() || allowed(value) || (value.is_array() && std::all_of(value.begin(), value.end(), allowed))) return;
  std::string expected;
  for (const Json& v : neutral) expected += (expected.empty() ? "" : " or ") + v.dump();
  fail("{}: {} = {} is not supported, expected {}", what, name, short_text(value), expected.empty() ? "null or no such entry" : expected);
}

void refuse_entries(const Json& config, std::span<const NeutralEntry> entries, const std::string& what) {
  for (const auto& [key, values] : entries)
    if (is_set(config, key)) refuse_unless(config[key], Json::parse(values), key, what);
}

double positive_member(const Json& object, const char* key, const std::string& what) {
  const double value = number_member(object, key, what);
  check(std::isfinite(value) && value > 0, "{}: \"{}\" expects a positive number, found {}", what, key, value);
  return value;
}

int64_t size_member(const Json& object, const char* key, const std::string& what) {
  const int64_t value = integer_member(object, key, what);
  check(value >= 1 && value <= (int64_t{1} << 31), "{}: \"{}\" expects 1 to 2^31, found {}", what, key, value);
  return value;
}

}  // namespace halftone
