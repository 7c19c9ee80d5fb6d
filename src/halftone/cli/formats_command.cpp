#include <fmt/format.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/cli/commands.h"
#include "halftone/cli/format_example.h"
#include "halftone/cli/format_tables.h"
#include "halftone/config/load.h"
#include "halftone/config/names.h"
#include "halftone/config/value.h"
#include "halftone/nn/recipe_config.h"
#include "halftone/ops/hardware.h"

namespace halftone {
namespace {

constexpr const char* kHelp =
    "halftone formats                               every element format, scale format, scale rule and recipe\n"
    "halftone formats --show NAME [--quantize.X Y]  one of these, with a worked example; a recipe with these options\n"
    "halftone formats --support                     how each recipe runs on which hardware: native, rewritten or emulated, and why\n";

// The scheme's configuration with the options after the name.
QuantizeConfig options_of(const std::string& scheme, Arguments options) {
  const LoadedConfig loaded = load_config_text(fmt::format("quantize.scheme = \"{}\"", scheme), "formats", options);
  JobConfig config = loaded.config;
  const ConfigIndex index = index_config(config), changing = index_options(config.quantize);
  for (const auto& [field, origin] : loaded.origin) {
    const bool same = field == "quantize.scheme" && config.quantize.scheme == QuantizeScheme{scheme, {}};
    const FieldEntry* option = changing.find_field(field);  // options of a layer do not change the operands
    check(same || (option != nullptr && option->info.scope != Scope::layer),
          "formats --show {}: expected options of [quantize] that change how operands are quantized, found --{} {}; remove it", scheme,
          field, shown(get_value(*index.find_field(field))));
  }
  return loaded.config.quantize;
}

int show(Arguments args) {
  check(args.size() >= 2, "formats --show: expected a name; `halftone formats` lists them");
  const std::string& wanted = args[1];
  check(std::find(args.begin(), args.end(), "--support") == args.end(), "formats: use either --show or --support");
  const bool is_recipe = find_linear_recipe(wanted).has_value();
  const std::string format = show_format(wanted);
  check(is_recipe || !format.empty(), "formats --show: there is no '{}'{}; `halftone formats` lists all names", wanted,
        nearest_word(wanted, shown_names()));
  if (!is_recipe) {
    check(args.size() == 2, "formats --show {}: only a recipe takes options, found '{}'", wanted, args[2]);
    print(format);
    return 0;
  }
  const nn::RecipeRules recipes = nn::recipe_rules(options_of(wanted, args.subspan(2)), {}, 1);
  const std::string element = format.empty() ? "" : format + "\nRecipe ";  // with the same name
  if (recipes.rules.empty()) {
    print(element + show_recipe(*find_linear_recipe(wanted), {}));
  } else {
    const LayerRecipe recipe = layer_recipe(wanted, recipes.rules[0], "every Linear");
    print(element + show_recipe(recipe.linear, recipe.warnings));
  }
  return 0;
}

}  // namespace

int formats_command(Arguments args) {
  if (args.empty()) {
    print("Element formats\n" + element_table() + "\nScale formats\n" + scale_format_table() + "\nScale rules\n" + scale_rule_table() +
          "\nRecipes\n" + recipe_table() + "\n" + kHelp);
    return 0;
  }
  if (args[0] == "--show") return show(args);
  const bool help = args[0] == "--help" || args[0] == "-h";
  check(help || args[0] == "--support", "formats: unknown option '{}'; expected --show NAME or --support", args[0]);
  check(args.size() == 1, "formats {}: expected nothing after it, found '{}'", args[0], args.size() > 1 ? args[1] : "");
  if (help) return print(kHelp), 0;
  print(support_table(name(this_machine())) +
        "\nGPUs run the kernels of halftone_cuda.so, next to the program. It is built for sm_90; other architectures can be added\n"
        "(HALFTONE_CUDA_ARCHITECTURES) and have not been run. Without it a GPU has none, int8 and fp8_rowwise, through LibTorch's own\n"
        "operations; a run says so at its start.\n");
  return 0;
}

}  // namespace halftone
