#include <algorithm>
#include <cmath>

#include "halftone/config/names.h"
#include "halftone/config/quantize_options.h"
#include "halftone/config/rules.h"
#include "halftone/config/value.h"
#include "halftone/formats/recipe.h"

namespace halftone {
namespace {

void check_options(const QuantizeConfig& q, const RuleContext& c) {
  const std::vector<std::string_view> schemes = schemes_of(q.scheme);
  for (const Refusal& r : refusals(q, schemes)) rule(c, false, {r.option.c_str(), r.other.c_str()}, "{}", r.text);
  for (const std::string_view scheme : schemes) {
    const std::optional<Scheme> row = find_linear_recipe(scheme);
    if (!row || !row->find_option("output")) continue;
    const auto hp = [&](const char* name, const std::optional<bool>& set) { return row->find_option(name) && set.value_or(false); };
    const bool x = !hp("x_hp", q.x_hp), w = !hp("w_hp", q.w_hp), dy = !hp("dy_hp", q.dy_hp);
    rule(c, (q.output && (x || w)) || (q.grad_input && (dy || w)) || (q.grad_weight && !hp("wgrad_hp", q.wgrad_hp) && (dy || x)),
         {"quantize.output", "quantize.grad_input", "quantize.grad_weight", "quantize.x_hp", "quantize.w_hp"},
         "quantize.output, grad_input, grad_weight{} leave every operand in the compute dtype, so that {} quantizes nothing; use "
         "quantize.scheme = none",
         row->find_option("x_hp") ? ", wgrad_hp, x_hp, w_hp and dy_hp" : "", scheme);
  }
}

bool converter_emulates(const JobConfig& j) {
  return std::any_of(j.model.converters.begin(), j.model.converters.end(), [&](const std::string& name) {
    const std::optional<Converter> converter = find_converter(j.quantize, name);
    return converter && converter->options.emulate;
  });
}

// A recipe file or converters bring their own options. An option of [quantize] beside them is refused even at its default, which would
// contradict the source.
void check_options_beside(const JobConfig& config, std::string_view source, const RuleContext& c) {
  JobConfig copy = config;
  for (const FieldEntry& field : index_config(copy).fields) {
    if (section_of(field.name) != "quantize" || field.name == "quantize.recipe" || field.name == "quantize.scheme") continue;
    const std::string_view option = leaf_of(field.name);
    const bool unavailable = field.info.mark == Mark::A || field.info.mark == Mark::N;  // said by check_mark
    if (unavailable || field.info.scope == Scope::run || (!c.is_set(field.name) && get_value(field) == default_value(field.name))) continue;
    const std::string advice = source == "quantize.recipe" ? fmt::format("write it in {}", config.quantize.recipe)
                               : option == "ignore"        ? "use filter_fqns"
                                                           : "name a quantize.scheme instead of the converter";
    rule(c, false, {field.name.c_str()}, "{} has no effect beside {}, which brings its own options; {}", field.name, source, advice);
  }
  rule(c, source == "quantize.recipe" || config.quantize.emulate || !c.is_set("quantize.emulate") || !converter_emulates(config),
       {"quantize.emulate"},
       "quantize.emulate = false has no effect beside model.converters, whose section asks for emulation; change that");
}

void check_converters(const JobConfig& j, const RuleContext& c) {
  const auto uses = [&](std::string_view name) { return contains(j.model.converters, name); };
  const bool float8 = uses("quantize.linear.float8") || uses("quantize.grouped_mm.float8");
  const bool mx = uses("quantize.linear.mx") || uses("quantize.grouped_mm.mx");
  rule(c, !(float8 && mx), {"model.converters"},
       "model.converters must be all float8 or all mx; write a mixture as a table in quantize.scheme");
  StringList sorted = j.model.converters;
  std::sort(sorted.begin(), sorted.end());
  rule(c, std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(), {"model.converters"},
       "model.converters names one converter twice");
  for (const std::string& name : j.model.converters) {
    const std::optional<Converter> converter = find_converter(j.quantize, name);
    if (!converter) continue;
    for (const Refusal& r : refusals(converter->options, {converter->scheme}))
      rule(c, false, {converter->filter.c_str()}, "{}: {}", converter->filter, r.text);
  }
  if (!uses("quantize.linear.float8")) return;
  const LinearFloat8Config& f = j.quantize.linear.float8;
  const std::string recipe = f.recipe_name.value_or("tensorwise");
  rule(c, recipe == "tensorwise" || !f.enable_fsdp_float8_all_gather,
       {"quantize.linear.float8.enable_fsdp_float8_all_gather", "quantize.linear.float8.recipe_name"},
       "quantize.linear.float8.enable_fsdp_float8_all_gather needs quantize.linear.float8.recipe_name = tensorwise, found {}", recipe);
}

// Options of a quantized run without a scheme, or with bf16, which quantizes nothing.
void check_idle(const JobConfig& config, const RuleContext& c, bool none) {
  JobConfig copy = config;
  for (const FieldEntry& field : index_config(copy).fields) {
    const Json value = get_value(field);
    const bool idle = field.info.scope == Scope::run || (none && field.info.scope == Scope::rule);
    rule(c, !idle || value == default_value(field.name), {field.name.c_str()}, "{} = {} has no effect with{}", field.name,
         to_toml_text(value),
         none ? "out quantize.scheme; set that, or leave this unset" : " quantize.scheme = bf16, which quantizes nothing; leave it unset");
  }
}

// torchtitan's own files have sections of converters that they do not use.
void report_idle_sections(const JobConfig& config, const RuleContext& c) {
  JobConfig copy = config;
  for (const FieldEntry& field : index_config(copy).fields) {
    if (!field.name.starts_with("quantize.linear.") && !field.name.starts_with("quantize.grouped_mm.")) continue;
    if (field.info.mark == Mark::A) continue;  // said by check_mark
    const std::string section(section_of(field.name));
    const StringList& converters = config.model.converters;
    const Json value = get_value(field);
    if (value == default_value(field.name) || contains(converters, section)) continue;
    c.compat.push_back(
        fmt::format("[compat] {}={}: unused, because model.converters does not name {}", field.name, to_toml_text(value), section));
  }
}

}  // namespace

void drop_options_of_no_scheme(JobConfig& config, const RuleContext& c) {
  const auto scheme = c.origin.find("quantize.scheme");
  if (!config.quantize.scheme.is_none() || scheme == c.origin.end() || scheme->second != "command line") return;
  const ConfigIndex index = index_config(config);
  const auto from_file = [&](const std::string& name) {
    const auto found = c.origin.find(name);
    return found != c.origin.end() && found->second != "command line";
  };
  const auto say = [&](const FieldEntry& field) {
    c.compat.push_back(fmt::format("[compat] {}={}: unused, because quantize.scheme is none", field.name, to_toml_text(get_value(field))));
  };
  const auto drop = [&](const FieldEntry& field) {
    say(field);
    set_value(field, default_value(field.name));
    c.origin.erase(field.name);
  };
  for (const char* name : {"quantize.recipe", "model.converters"}) {
    const FieldEntry& field = *index.find_field(name);
    if (from_file(name) && get_value(field) != default_value(name)) drop(field);
  }
  const bool elsewhere = has_rules_elsewhere(config);  // on the command line as well
  for (const FieldEntry& field : index.fields) {
    if (section_of(field.name) != "quantize" || field.name == "quantize.scheme" || !from_file(field.name)) continue;
    if (get_value(field) == default_value(field.name)) {
      // It was the default, but the targets of the new source may differ.
      if (elsewhere && field.info.scope == Scope::rule) say(field);
      c.origin.erase(field.name);
    } else if (field.info.scope != Scope::run || !elsewhere) {
      drop(field);
    }
  }
}

bool has_rules_elsewhere(const JobConfig& j) {
  return j.quantize.scheme.is_none() && (!j.quantize.recipe.empty() || !j.model.converters.empty());
}

void check_beside_recipe(const JobConfig& j, const std::vector<RecipeModifier>& modifiers, const RuleContext& c) {
  const QuantizeConfig& q = j.quantize;
  bool emulate = false, first = false, last = false;  // one line each, for the first modifier
  for (const RecipeModifier& m : modifiers) {
    const auto refuse = [&](bool& said, bool idle, const char* name, const char* value, const char* advice) {
      if (said || !idle || !c.is_set(name)) return;
      said = true;
      rule(c, false, {name}, "{} = {} has no effect beside quantize.recipe: {} {}; change that", name, value, m.place, advice);
    };
    refuse(emulate, !q.emulate && m.options.emulate, "quantize.emulate", "false", "asks for emulation");
    refuse(first, q.skip_first_layers == 0 && m.options.skip_first_layers > 0, "quantize.skip_first_layers", "0", "skips layers");
    refuse(last, q.skip_last_layers == 0 && m.options.skip_last_layers > 0, "quantize.skip_last_layers", "0", "skips layers");
  }
}

void check_quantize(const JobConfig& j, const RuleContext& c) {
  const QuantizeConfig& q = j.quantize;
  std::vector<std::string_view> sources;
  if (!q.scheme.is_none()) sources.push_back("quantize.scheme");
  if (!q.recipe.empty()) sources.push_back("quantize.recipe");
  if (!j.model.converters.empty()) sources.push_back("model.converters");
  rule(c, sources.size() <= 1, {"model.converters", "quantize.recipe", "quantize.scheme"}, "{} are set; keep one source of quantization{}",
       join(sources, " and "), q.scheme.is_none() ? "" : " (--quantize.scheme none removes the scheme of a file)");

  bool known = !c.refused.contains("quantize.scheme");
  const std::vector<std::string_view> schemes = schemes_of(q.scheme);
  for (const std::string_view scheme : schemes) {
    std::vector<std::string_view> valid_names = quantize_schemes();
    const bool valid = contains(valid_names, scheme);
    if (!q.scheme.table.empty() || c.in_recipe_file) std::erase(valid_names, "none");
    rule(c, valid, {"quantize.scheme"}, "quantize.scheme: unknown scheme {}; expected one of {}{}", shown(std::string(scheme)),
         join(valid_names), nearest_word(scheme, valid_names));
    const bool idle = scheme == "none" && !q.scheme.table.empty();
    rule(c, !idle, {"quantize.scheme"},
         "quantize.scheme: expected schemes for the layers of a table, found none; write bf16 for layers that stay unquantized");
    known = known && valid && !idle;
  }
  const bool no_targets = q.targets == QuantizeConfig{}.targets && !c.is_set("quantize.targets");
  rule(c, q.scheme.table.empty() || no_targets, {"quantize.targets", "quantize.scheme"},
       "quantize.targets does not go with a table in quantize.scheme, which names its own targets");
  if (sources.size() <= 1 && known) {
    const std::string_view source = sources.empty() ? "quantize.scheme" : sources[0];
    if (sources.empty() && q.phases.empty()) check_idle(j, c, true);
    if (source == "quantize.scheme") {
      const bool idle = std::all_of(schemes.begin(), schemes.end(), [](std::string_view s) { return s == "bf16"; });
      if (idle && q.phases.empty()) check_idle(j, c, false);
      check_options(q, c);
    } else {
      check_options_beside(j, source, c);
    }
  }
  check_converters(j, c);
  report_idle_sections(j, c);

  for (const auto& [name, value] :
       {std::pair{"quantize.skip_first_layers", q.skip_first_layers}, {"quantize.skip_last_layers", q.skip_last_layers}}) {
    constexpr double kMost = 1e6;  // deeper than any model, and an int64
    rule(c, value < 1 || (value == std::floor(value) && value <= kMost), {name},
         "{} must be a count of blocks up to {:.0f} or a fraction below 1, found {}", name, kMost, value);
  }
}

}  // namespace halftone
