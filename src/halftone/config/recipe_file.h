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

// Reads the file of `quantize.recipe` into `quantize.recipe_text`, once, so that a run means one text from its checks to its checkpoints
// whatever becomes of the file. Without a recipe it does nothing. Error when the file cannot be read.
void read_recipe_text(QuantizeConfig& quantize);
// The modifiers of `quantize.recipe`: of its text where that was read, of the file as it is now otherwise.
std::vector<RecipeModifier> recipe_modifiers(const QuantizeConfig& quantize);

}  // namespace halftone
