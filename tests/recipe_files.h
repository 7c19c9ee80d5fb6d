#pragma once
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "source_dir.h"

namespace halftone {

// recipes/precision/NAME.yaml
inline std::filesystem::path recipe_file(const std::string& name) {
  return std::filesystem::path(source_dir()) / "recipes" / "precision" / (name + ".yaml");
}
// Names of all of them, which have all schemes; none where the folder is absent, so that a test fails and not what runs before main.
inline std::vector<std::string> recipe_names() {
  std::vector<std::string> names;
  std::error_code absent;
  for (const auto& entry : std::filesystem::directory_iterator(recipe_file("").parent_path(), absent)) names.push_back(entry.path().stem());
  std::sort(names.begin(), names.end());
  return names;
}
// It names layers of experts, and so is refused for a model without.
inline bool needs_experts(const std::string& recipe) { return recipe == "mixed_gpt_oss"; }

}  // namespace halftone
