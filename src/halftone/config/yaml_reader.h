#pragma once
#include <map>
#include <string>
#include <string_view>

#include "halftone/config/value.h"

namespace halftone {

inline constexpr size_t kMaxYamlBytes = 64 << 10;

// A YAML (or JSON) text as values, with the line of each: keys of `line_of` are "" for the root, "/key" and "/0" below it.
struct YamlDocument {
  Json root;
  std::map<std::string, int64_t> line_of;
};

// Reads one document of untrusted text: maps with unique plain keys, lists and scalars. A quoted scalar is a string, any other null (~,
// null, empty), true, false, a number or a string. Error "NAME:LINE: ..." for anything else: aliases, anchors, tags, several documents,
// more than 64 KiB, 4096 values or 16 levels, text that is not UTF-8.
YamlDocument read_yaml(std::string_view text, std::string_view name);

}  // namespace halftone
