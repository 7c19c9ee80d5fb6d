#pragma once
#include <array>
#include <map>
#include <string>
#include <vector>

#include "halftone/config/layer_recipe.h"
#include "halftone/config/quantize_phases.h"
#include "halftone/formats/support.h"
#include "halftone/nn/layers.h"

namespace halftone::nn {

// Which modules get which scheme with which options; the common form of quantize.scheme, recipe files and converters.
struct RecipeRule : RecipeOptions {
  std::string scheme = "none";
  std::vector<std::string> targets = {"Linear"}, ignore = {"output"};
  std::string_view kind{};                             // kind of layers (QuantizableLayer::kind) that it may name; empty: all
  bool targets_are_substrings = false;                 // torchtitan's filter_fqns and fqns (platform.md 3.2, rule T)
  double skip_first_layers = 0, skip_last_layers = 0;  // blocks kept in the compute dtype: a count, or a fraction < 1 rounded up
  int order = 0;                                       // of rules for one layer the one with the largest counts; above 0: of a phase
  std::vector<DepthRange> within{};                    // each has to contain the layer's block; none: any layer
  std::string place;                                   // "FILE:LINE: ", prefix of messages, if the rule comes from a file or a phase
  std::string targets_field = "quantize.targets", ignore_field = "quantize.ignore";  // names used in messages
};

struct RecipeRules {
  std::vector<RecipeRule> rules;
  int64_t skip_first_layers = 0, skip_last_layers = 0;  // blocks that no rule quantises
};

// Number of blocks that a setting names: a count, or a fraction < 1 of `layers`, rounded up.
int64_t block_count(double value, int64_t layers);

// Sets for every Linear of the model how the operands of its GEMMs are quantised (numerics.md section 12). Returns the lines to print at
// start: for each rule its layers, how their GEMMs run and with which options; then the layers that no rule names.
// Error: unknown scheme; a scheme without GEMMs on this device; an empty list of targets; a target that matches no Linear (except a known
// class that the model lacks, while another target matches); a module named in full whose sizes the scheme does not support; a module
// matched twice in one order; a rule of a phase for no layer. Warning: another rule that quantises nothing.
std::vector<std::string> apply_recipes(Module& model, const RecipeRules& recipes, int64_t layers, c10::DeviceType device);
// For hardware that need not be present. given: the recipes that layers get.
using LayerRecipes = std::map<QuantizableLayer*, LayerRecipe>;
std::vector<std::string> apply_recipes(Module& model, const RecipeRules& recipes, int64_t layers, Hardware hardware,
                                       LayerRecipes* given = nullptr);

// One line for every Linear: name, sizes, scheme or why it has none (model.print_after_conversion).
std::vector<std::string> layer_formats(Module& model);

}  // namespace halftone::nn
