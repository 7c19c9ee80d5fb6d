#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "halftone/config/quantize_config.h"

namespace halftone::nn {

using halftone::RecipeOptions;

// Weight de-oscillation (numerics.md 10.1); step 0: off.
struct Deoscillation {
  int64_t step = 0, period = 200, log_freq = 1;
  double ratio = 4.0;
  bool operator==(const Deoscillation&) const = default;
};

// What a scheme with its options comes to for one layer.
struct LayerRecipe {
  LinearRecipe linear;
  int64_t lora_rank = 0;
  Deoscillation deosc;
  bool deosc_asked = false;  // by the user; the preset's yields where a layer cannot have it
  std::vector<std::string> warnings;
  std::vector<std::string> options;  // what is in effect, set or by the preset, as the configuration spells it: "scale_mode = adaptive"
};

// The scheme's row of numerics.md section 7 with the options applied; one that is not set takes the preset's value. Error naming option,
// scheme and `module` for what config/quantize_options.h refuses and for unknown schemes.
LayerRecipe layer_recipe(const std::string& scheme, const RecipeOptions& options, const std::string& module);

}  // namespace halftone::nn
