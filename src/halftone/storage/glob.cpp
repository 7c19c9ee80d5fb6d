#include "halftone/storage/glob.h"

#include <fnmatch.h>

#include <algorithm>

namespace halftone {

bool has_wildcard(std::string_view text) { return text.find_first_of("*?[") != std::string_view::npos; }

std::vector<std::string> pattern_parts(std::string_view pattern) {
  std::vector<std::string> parts;
  while (!pattern.empty()) {
    const size_t slash = std::min(pattern.find('/'), pattern.size());
    const std::string_view part = pattern.substr(0, slash);
    if (!part.empty() && !(part == "**" && !parts.empty() && parts.back() == "**")) parts.emplace_back(part);
    pattern.remove_prefix(std::min(slash + 1, pattern.size()));
  }
  return parts;
}

bool matches_component(const std::string& pattern, const std::string& name) {
  return has_wildcard(pattern) ? ::fnmatch(pattern.c_str(), name.c_str(), FNM_PERIOD) == 0 : pattern == name;
}

bool matches(const std::vector<std::string>& pattern, const std::vector<std::string>& path) {
  const size_t n = path.size();
  // rest[j]: the pattern's components behind the current one match path[j..]; row by row from the last, so that "**" costs no search.
  std::vector<char> rest(n + 1, 0), here(n + 1, 0);
  rest[n] = 1;
  for (size_t i = pattern.size(); i-- > 0;) {
    const bool any = pattern[i] == "**", last = i + 1 == pattern.size();
    here[n] = 0;
    for (size_t j = n; j-- > 0;) {
      const bool visible = !path[j].starts_with('.');
      here[j] = any ? (!last && rest[j]) || (visible && (here[j + 1] || (last && j + 1 == n)))
                    : rest[j + 1] && matches_component(pattern[i], path[j]);
    }
    std::swap(rest, here);
  }
  return rest[0];
}

}  // namespace halftone
