#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "halftone/formats/recipe.h"

namespace halftone::nn {

// Options of a scheme, named and spelt as in the configuration (platform.md 3.1, numerics.md 7.3). One that is not set takes
// the preset's value; one that is set and could have no effect is an error (numerics.md 7.4).
struct RecipeOptions {
  std::string preset = "recommended";  // recommended: last column of numerics.md 7.3; alto: the column of defaults
  std::optional<bool> use_2dblock_x, use_2dblock_w, use_hadamard, use_sr_grad, use_dge, use_uos, wgrad_hp;
  std::optional<std::string> two_level_scaling;  // none, tensorwise, blockwise
  std::optional<std::string> clip_mode;          // none, static, dynamic
  std::optional<std::string> scale_mode;         // floor, ceil, rceil, even, adaptive
  std::optional<std::string> style;              // alto, torchao (nvfp4)
  std::optional<bool> output, grad_input, grad_weight;  // which of the three products is quantised (int8, int4)
  std::optional<bool> stochastic_rounding;              // of every quantised operand (int8, int4)
  std::optional<std::string> activation;                // none, int8, int8_sr (int8_weight)
  std::optional<std::vector<std::string>> fast_accum;   // of forward, dgrad, wgrad (fp8_*)
  std::optional<bool> round_scales_to_power_of_2;       // fp8_*
  std::optional<int64_t> lora_rank;
  std::optional<int64_t> deosc_step, deosc_period, deosc_log_freq;
  std::optional<double> deosc_ratio;
  bool emulate = false;               // reference arithmetic on the dequantised operands
  bool auto_filter_small_kn = false;  // leave small layers alone (numerics.md section 12; fp8_tensorwise, fp8_rowwise)
};

// Weight de-oscillation (numerics.md 10.1); step 0: off.
struct Deoscillation {
  static constexpr double kLeastRatio = 4, kMostRatio = 32;
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

// The scheme's row of numerics.md section 7 with the options applied. Error naming option, recipe and `module` for every
// combination that 7.4 does not allow and for unknown names.
LayerRecipe layer_recipe(const std::string& scheme, const RecipeOptions& options, const std::string& module);

}  // namespace halftone::nn
