#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/config/value.h"

namespace halftone {

// One assignment of a TOML text.
struct TomlItem {
  std::string name;  // dotted
  Json value;
  int64_t line = 0;
};

// All assignments in the order of the text. Tables with `is_section(dotted name)` are entered, others are values. Throws Error
// "NAME:LINE: ..." when the text is not TOML 1.0, too large or nested too deeply.
std::vector<TomlItem> read_toml(std::string_view text, std::string_view name, const std::function<bool(std::string_view)>& is_section);

}  // namespace halftone
