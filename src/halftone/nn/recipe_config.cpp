#include "halftone/nn/recipe_config.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/config/quantize_options.h"
#include "halftone/config/quantize_phases.h"

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

void add_source(RecipeRules& recipes, const QuantizeConfig& q, const RecipeSource& source) {
  const QuantizeConfig& o = source.options;
  const size_t first = recipes.rules.size();
  if (!q.recipe.empty() && o.group_align != 0)
    log_info("[compat] {}quantize.group_align: each expert's rows are padded to a multiple of 128, which changes no result", source.place);
  if (o.scheme.table.empty()) recipes.rules.push_back(rule_of(o, o.scheme.name, o.targets, source.place));
  for (const auto& [scheme, targets] : o.scheme.table) recipes.rules.push_back(rule_of(o, scheme, targets, source.place));
  for (size_t i = first; i < recipes.rules.size(); ++i) {
    RecipeRule& rule = recipes.rules[i];
    rule.order = source.order, rule.within = source.within;
    rule.emulate = rule.emulate || q.emulate;
    rule.skip_first_layers = o.skip_first_layers, rule.skip_last_layers = o.skip_last_layers;
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

RecipeRules recipe_rules(const QuantizeConfig& q, const ModelConfig& model, int64_t layers, size_t phase) {
  const int sources = (q.scheme.is_none() ? 0 : 1) + (q.recipe.empty() ? 0 : 1) + (model.converters.empty() ? 0 : 1);
  check(sources <= 1, "two of quantize.scheme, quantize.recipe and model.converters are set; keep one source of quantisation");
  RecipeRules recipes;
  recipes.skip_first_layers = block_count(q.skip_first_layers, layers);
  recipes.skip_last_layers = block_count(q.skip_last_layers, layers);
  for (const RecipeSource& source : phase_sources(q, phase)) add_source(recipes, q, source);
  for (const std::string& converter : model.converters) add_converter(recipes, q, converter);
  return recipes;
}

}  // namespace halftone::nn
