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

void add_rules(RecipePlan& plan, const QuantizeConfig& q, const std::string& place) {
  if (q.scheme.table.empty() && !q.scheme.is_none()) plan.rules.push_back(rule_of(q, q.scheme.name, q.targets, place));
  for (const auto& [scheme, targets] : q.scheme.table) plan.rules.push_back(rule_of(q, scheme, targets, place));
}

void add_modifiers(RecipePlan& plan, const QuantizeConfig& q) {
  for (const RecipeModifier& modifier : recipe_modifiers(q)) {
    const size_t first = plan.rules.size();
    if (modifier.options.group_align != 0)
      log_info("[compat] {}: quantize.group_align: each expert's rows are padded to a multiple of 128, which changes no result",
               modifier.place);
    add_rules(plan, modifier.options, modifier.place + ": ");
    for (size_t i = first; i < plan.rules.size(); ++i) {
      plan.rules[i].emulate = plan.rules[i].emulate || q.emulate;
      plan.rules[i].skip_first_layers = modifier.options.skip_first_layers;
      plan.rules[i].skip_last_layers = modifier.options.skip_last_layers;
    }
  }
}

void add_converter(RecipePlan& plan, const QuantizeConfig& q, const std::string& name) {
  if (const std::optional<Converter> asked = linear_converter(q, name)) {
    RecipeRule& rule = plan.rules.emplace_back();
    static_cast<RecipeOptions&>(rule) = asked->options;
    rule.scheme = asked->scheme, rule.ignore = asked->ignore, rule.ignore_field = asked->filter;
    rule.kind = "Linear", rule.targets = {""}, rule.targets_are_substrings = true;  // rule T: every name contains it
    return;
  }
  const bool float8 = name == "quantize.grouped_mm.float8";
  check(float8 || name == "quantize.grouped_mm.mx", "model.converters: unknown converter '{}'", name);
  const Strings& fqns = float8 ? q.grouped_mm.float8.fqns : q.grouped_mm.mx.fqns;
  if (fqns.empty()) return log_warning("model.converters: {} converts nothing, because its list fqns is empty; remove it", name);
  RecipeRule& rule = plan.rules.emplace_back();
  rule.scheme = float8 ? "fp8_rowwise" : "mxfp8_e4m3", rule.kind = "GroupedExperts";
  rule.targets = fqns, rule.targets_are_substrings = true, rule.targets_field = name + ".fqns";
  rule.ignore.clear();
}

}  // namespace

RecipePlan recipe_plan(const QuantizeConfig& q, const ModelConfig& model, int64_t layers) {
  const int sources = (q.scheme.is_none() ? 0 : 1) + (q.recipe.empty() ? 0 : 1) + (model.converters.empty() ? 0 : 1);
  check(sources <= 1, "two of quantize.scheme, quantize.recipe and model.converters are set; keep one source of quantisation");
  RecipePlan plan;
  plan.skip_first_layers = block_count(q.skip_first_layers, layers);
  plan.skip_last_layers = block_count(q.skip_last_layers, layers);
  if (!q.recipe.empty()) {
    add_modifiers(plan, q);
  } else {
    add_rules(plan, q, "");
  }
  for (const std::string& converter : model.converters) add_converter(plan, q, converter);
  return plan;
}

}  // namespace halftone::nn
