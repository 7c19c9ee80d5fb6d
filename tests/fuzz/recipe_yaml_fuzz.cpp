// links: config base
// seeds: tests/fuzz/seeds/recipe_yaml
// dict: a_stage: b_modifiers: LowPrecisionTrainingModifier: scheme: mxfp4 targets: re:.* ignore: use_hadamard: true 0.15 from: 90%
// dict: last_layers: & * ! | > - ? [ ] { } , # " ' \n \t << --- ...
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "halftone/base/error.h"
#include "halftone/config/load.h"
#include "halftone/config/recipe_file.h"

// A recipe file: yields an Error of at most a page, or modifiers and phases with options that a configuration could have.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halftone;
  std::vector<RecipeModifier> modifiers;
  try {
    modifiers = read_recipe({reinterpret_cast<const char*>(data), size}, "X.yaml");
  } catch (const Error& error) {
    if (std::string_view(error.what()).size() > 200'000) std::abort();
    return 0;
  }
  if (modifiers.empty()) std::abort();
  for (const RecipeModifier& m : modifiers) {
    if (!m.place.starts_with("X.yaml:")) std::abort();
    if (size % 4 != 0) continue;  // what follows costs ten times as much; mutation changes the size often enough
    JobConfig config;
    config.quantize = m.options;
    config.quantize.recipe.clear();
    if (m.phase) config.quantize.phases = {*m.phase};
    const std::string json = to_json(config);
    if (to_json(config_from_json(json)) != json) std::abort();
  }
  return 0;
}
