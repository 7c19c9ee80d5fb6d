#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace halftone {

// Patterns of files: `*`, `?`, `[...]` inside a path component, and `**` for any number of folders; as the last component `**` matches
// every file below. Wildcards match no leading dot.
bool has_wildcard(std::string_view text);
// Components of a path or pattern; "**" once where it is repeated, since "a/**/**/b" means the same as "a/**/b".
std::vector<std::string> pattern_parts(std::string_view pattern);
bool matches_component(const std::string& pattern, const std::string& name);
// Whether a file's path, split at slashes, matches the pattern's components from the first to the last.
bool matches(const std::vector<std::string>& pattern, const std::vector<std::string>& path);

}  // namespace halftone
