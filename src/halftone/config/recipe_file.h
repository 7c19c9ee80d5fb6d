#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "halftone/config/quantize_config.h"

namespace halftone {

// One LowPrecisionTrainingModifier of a recipe file: the options of [quantize] as one modifier says them, with preset
// "alto" unless it names another. `place` is "FILE:LINE" for messages.
struct RecipeModifier {
  QuantizeConfig options;
  std::string place;
};

// Recipe files in llm-compressor's style, YAML or JSON (platform.md 3.4): stages (keys ending in _stage), in them groups
// (_modifiers), in them LowPrecisionTrainingModifier with the fields of [quantize]. Returns the modifiers in file order, at
// least one. Throws Error that lists all problems, one "FILE:LINE: ..." per line: unknown keys (naming the nearest), types,
// values, illegal combinations. The file is untrusted (limits: config/yaml_reader.h).
std::vector<RecipeModifier> read_recipe(std::string_view text, std::string_view name);
std::vector<RecipeModifier> read_recipe_file(const std::string& path);

}  // namespace halftone
