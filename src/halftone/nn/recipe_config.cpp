#include "halftone/nn/recipe_config.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/config/quantize_options.h"
#include "halftone/config/recipe_file.h"

namespace halftone::nn {
namespace {

using Strings = std::vector<std::string>;

// With a table of schemes an option applies to the schemes that have it; with one scheme it always applies, so that layer_recipe rejects
// one without effect.
RecipeRule rule_of(const QuantizeConfig& q, const std::string& scheme, const Strings& targets, const std::string& place) {
  RecipeRule r;
  static_cast<RecipeOptions&>(r) = q;
  r.scheme = scheme, r.targets = targets, r.ignore = q.ignore, r.place = place;
  if (!q.scheme.table.empty()) r.targets_field = "quantize.scheme";
  for (const FieldEntry& option : index_options(r).fields) {
    if (q.scheme.table.size() > 1 && !scheme_takes(scheme, option, get_value(option))) set_value(option, default_value(option.name));
  }
  return r;
}

void add_rules(RecipeRules& recipes, const QuantizeConfig& q, const std::string& place) {
  if (q.scheme.table.empty() && !q.scheme.is_none()) recipes.rules.push_back(rule_of(q, q.scheme.name, q.targets, place));
  for (const auto& [scheme, targets] : q.scheme.table) recipes.rules.push_back(rule_of(q, scheme, targets, place));
}

void add_modifiers(RecipeRules& recipes, const QuantizeConfig& q) {
  for (const RecipeModifier& modifier : recipe_modifiers(q)) {
    const size_t first = recipes.rules.size();
    if (modifier.options.group_align != 0)
      log_info("[compat] {}: quantize.group_align: each expert's rows are padded to a multiple of 128, which changes no result",
               modifier.place);
    add_rules(recipes, modifier.options, modifier.place + ": ");
    for (size_t i = first; i < recipes.rules.size(); ++i) {
      recipes.rules[i].emulate = recipes.rules[i].emulate || q.emulate;
      recipes.rules[i].skip_first_layers = modifier.options.skip_first_layers;
      recipes.rules[i].skip_last_layers = modifier.options.skip_last_layers;
    }
  }
}

void add_converter(RecipeRules& recipes, const QuantizeConfig& q, const std::string& name) {
  const std::optional<Converter> converter = find_converter(q, name);
  check(converter.has_value(), "model.converters: unknown converter '{}'", name);
  if (converter->targets.empty())
    return log_warning("model.converters: {} converts nothing, because its list fqns is empty; remove it", name);
  RecipeRule& rule = recipes.rules.emplace_back();
  static_cast<RecipeOptions&>(rule) = converter->options;
  rule.scheme = converter->scheme, rule.kind = converter->kind, rule.targets_are_substrings = true;  // rule T
  rule.targets = converter->targets, rule.ignore = converter->ignore;
  rule.targets_field = rule.ignore_field = converter->filter;
}

}  // namespace

RecipeRules recipe_rules(const QuantizeConfig& q, const ModelConfig& model, int64_t layers) {
  const int sources = (q.scheme.is_none() ? 0 : 1) + (q.recipe.empty() ? 0 : 1) + (model.converters.empty() ? 0 : 1);
  check(sources <= 1, "two of quantize.scheme, quantize.recipe and model.converters are set; keep one source of quantisation");
  RecipeRules recipes;
  recipes.skip_first_layers = block_count(q.skip_first_layers, layers);
  recipes.skip_last_layers = block_count(q.skip_last_layers, layers);
  if (!q.recipe.empty()) {
    add_modifiers(recipes, q);
  } else {
    add_rules(recipes, q, "");
  }
  for (const std::string& converter : model.converters) add_converter(recipes, q, converter);
  return recipes;
}

}  // namespace halftone::nn
