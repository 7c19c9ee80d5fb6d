#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "halftone/config/quantize_config.h"

namespace halftone {

// One LowPrecisionTrainingModifier of a recipe file: its options of [quantize], with preset "alto" unless it names another. `place` is
// "FILE:LINE" for messages. With from, first_layers or last_layers it is a phase, and `options` are the defaults of a modifier.
struct RecipeModifier {
  QuantizeConfig options;
  std::string place;
  std::optional<QuantizePhase> phase{};
};

// Recipe files in llm-compressor's style, YAML or JSON (platform.md 3.4): stages (keys ending in _stage) hold groups (_modifiers), which
// hold LowPrecisionTrainingModifier with fields of [quantize]. Returns the modifiers in file order, at least one. Throws Error that lists
// all problems, one "FILE:LINE: ..." a line: unknown keys (with the nearest), types, values, invalid combinations. The file is untrusted
// (limits: config/yaml_reader.h).
std::vector<RecipeModifier> read_recipe(std::string_view text, std::string_view name);

// Reads the file of `quantize.recipe` into `quantize.recipe_text` once: a run uses one text from its checks to its checkpoints, even if the
// file changes. Does nothing without a recipe. Error when the file cannot be read.
void read_recipe_text(QuantizeConfig& quantize);
// The modifiers of `quantize.recipe`: of its text if that was read, else of the file.
std::vector<RecipeModifier> recipe_modifiers(const QuantizeConfig& quantize);

}  // namespace halftone
