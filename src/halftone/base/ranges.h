#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

namespace halftone {

// Formats increasing numbers as ranges: "1-3, 7".
inline std::string ranges_text(const std::vector<int64_t>& sorted) {
  std::string text;
  for (size_t i = 0, last = 0; i < sorted.size(); i = last + 1) {
    for (last = i; last + 1 < sorted.size() && sorted[last + 1] == sorted[last] + 1;) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", sorted[i]);
    if (last > i) text += fmt::format("-{}", sorted[last]);
  }
  return text;
}

}  // namespace halftone
