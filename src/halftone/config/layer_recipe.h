#pragma once
#include "halftone/config/quantize_config.h"
#include "halftone/formats/recipe.h"

namespace halftone {

// Weight de-oscillation (numerics.md 10.1); step 0: off.
struct Deoscillation {
  int64_t step = 0, period = 0, log_freq = 0;
  double ratio = 0;
  bool operator==(const Deoscillation&) const = default;
};

// A scheme with its options, resolved for one layer.
struct LayerRecipe {
  LinearRecipe linear;
  Scheme scheme{};
  int64_t lora_rank = 0;
  Deoscillation deosc;
  bool deosc_asked = false;  // by the user; a preset's value is dropped for layers that do not support it
  std::vector<std::string> warnings;
  std::vector<std::string> options;  // options in effect, from the user or the preset, in configuration syntax: "scale_mode = adaptive"
};

// The scheme's row of numerics.md section 7 with the options applied; unset options take the preset's value. Error naming option, scheme
// and `module` for unknown schemes and for combinations that config/quantize_options.h rejects.
LayerRecipe layer_recipe(const std::string& scheme, const RecipeOptions& options, const std::string& module);
LayerRecipe layer_recipe(const Scheme& scheme, const RecipeOptions& options, const std::string& module);

}  // namespace halftone
