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
// Names of all recipe files; empty if the folder is missing, so that a test fails instead of the code before main.
inline std::vector<std::string> recipe_names() {
  std::vector<std::string> names;
  std::error_code absent;
  for (const auto& entry : std::filesystem::directory_iterator(recipe_file("").parent_path(), absent)) names.push_back(entry.path().stem());
  std::sort(names.begin(), names.end());
  return names;
}
// It names expert layers and is therefore rejected for a model without them.
inline bool needs_experts(const std::string& recipe) { return recipe == "mixed_gpt_oss"; }

}  // namespace halftone
