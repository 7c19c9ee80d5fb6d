#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "halftone/config/names.h"
#include "halftone/config/quantize_options.h"
#include "halftone/config/rules.h"
#include "halftone/config/value.h"
#include "halftone/formats/recipe.h"

namespace halftone {
namespace {

// Values that ask for nothing may stand beside any scheme.
bool asks_for_nothing(const Json& value, const Json& standard) {
  return value == standard || value.is_null() || value == false || value == "none" || value == 0;
}

// Options that ask for something which no active scheme has.
void check_columns(const JobConfig& config, const RuleContext& c) {
  JobConfig copy = config;
  const ConfigIndex index = index_config(copy);
  const std::vector<std::string_view> schemes = schemes_of(config.quantize.scheme);
  for (const std::string_view option : placed_options()) {
    const std::string name = "quantize." + std::string(option);
    const FieldEntry& field = *index.find_field(name);
    const Json value = get_value(field);
    const Json& usual = default_value(name);
    // `output = false` and its like ask for something; elsewhere false asks for nothing.
    const bool idle = usual == true ? value == usual : asks_for_nothing(value, usual);
    const bool placed = std::any_of(schemes.begin(), schemes.end(), [&](std::string_view s) { return option_belongs(option, s); });
    rule(c, idle || placed, {field.name.c_str()}, "{} = {} has no effect with quantize.scheme = {}; it is for {}", field.name,
         to_toml_text(value), join(schemes), join(schemes_with(option)));
  }
}

void check_attention(const QuantizeConfig& q, const RuleContext& c) {
  const std::string refusal = attention_refusal(q.attention);
  rule(c, refusal.empty(), {"quantize.attention"}, "{}", refusal);
  if (!refusal.empty()) return;
  constexpr const char* kIdle = "has no effect with quantize.attention = bf16; leave it unset";
  rule(c, q.attn_bwd == "bf16", {"quantize.attn_bwd", "quantize.attention"}, "quantize.attn_bwd = {} {}", q.attn_bwd, kIdle);
  rule(c, q.pnq, {"quantize.pnq", "quantize.attention"}, "quantize.pnq = false {}", kIdle);
}

// numerics.md 7.4 for one scheme; options that it has not are those of other schemes of the table.
void check_scheme(const QuantizeConfig& q, std::string_view scheme, const RuleContext& c) {
  const auto on = [&](const char* option, const std::optional<bool>& value) {
    return option_belongs(option, scheme) && value.value_or(false);
  };
  const bool fp4 = option_belongs("use_hadamard", scheme), recommended = q.preset == "recommended";
  const bool x_2d = on("use_2dblock_x", q.use_2dblock_x), hadamard = on("use_hadamard", q.use_hadamard);
  const bool hp = on("wgrad_hp", q.wgrad_hp), uos = on("use_uos", q.use_uos);
  rule(c, !(hadamard && x_2d), {"quantize.use_hadamard", "quantize.use_2dblock_x"},
       "quantize.use_hadamard does not go with quantize.use_2dblock_x: no 1-D operand of the weight gradient is left to rotate");
  rule(c, !(hadamard && hp), {"quantize.use_hadamard", "quantize.wgrad_hp"},
       "quantize.use_hadamard does not go with quantize.wgrad_hp: the operands of the weight gradient are not quantised");
  const std::string clip = scheme == "mxfp4" ? q.clip_mode.value_or("none") : "none";
  if (clip != "none") {
    rule(c, !x_2d && !hp && !uos, {"quantize.clip_mode"},
         "quantize.clip_mode does not go with quantize.use_2dblock_x, quantize.wgrad_hp or quantize.use_uos");
    rule(c, q.two_level_scaling.value_or("none") != "blockwise", {"quantize.clip_mode", "quantize.two_level_scaling"},
         "quantize.clip_mode does not go with quantize.two_level_scaling, which already brings each block to the largest code");
    rule(c, clip != "dynamic" || q.use_hadamard.value_or(recommended), {"quantize.clip_mode"},
         "quantize.clip_mode = dynamic needs quantize.use_hadamard");
  }
  if (option_belongs("output", scheme)) {
    rule(c, q.output || q.grad_input || q.grad_weight, {"quantize.output", "quantize.grad_input", "quantize.grad_weight"},
         "quantize.output, quantize.grad_input and quantize.grad_weight are all false, so that {} quantises nothing; use quantize.scheme = "
         "none",
         scheme);
    rule(c, !on("use_sr_grad", q.use_sr_grad) || q.grad_input || q.grad_weight, {"quantize.use_sr_grad"},
         "quantize.use_sr_grad has no effect with quantize.grad_input = false and quantize.grad_weight = false: no gradient is quantised");
  }
  if (option_belongs("stochastic_rounding", scheme)) {
    rule(c, !q.stochastic_rounding || !q.use_sr_grad, {"quantize.use_sr_grad", "quantize.stochastic_rounding"},
         "quantize.use_sr_grad has no effect beside quantize.stochastic_rounding, which rounds every quantised operand so; leave it unset");
  }
  rule(c, !(uos && q.scale_mode), {"quantize.use_uos", "quantize.scale_mode"},
       "quantize.use_uos is a scale rule of its own and does not go with quantize.scale_mode");
  if (scheme == "nvfp4" && q.style == "torchao") {
    rule(c,
         !x_2d && !hp && !q.use_dge.value_or(false) && q.use_2dblock_w.value_or(true) && q.use_hadamard.value_or(true) &&
             q.use_sr_grad.value_or(true) && q.two_level_scaling.value_or("tensorwise") == "tensorwise",
         {"quantize.style"},
         "quantize.style = torchao fixes 2-D weights, Hadamard, stochastic gradients and tensorwise outer scales of nvfp4; leave "
         "use_2dblock_x, "
         "use_2dblock_w, use_hadamard, use_sr_grad, use_dge, wgrad_hp and two_level_scaling unset");
  }
  if (option_belongs("lora_rank", scheme)) {
    const int64_t rank = q.lora_rank.value_or(0), step = scheme.starts_with("mx") ? 32 : 16;
    rule(c, rank % step == 0, {"quantize.lora_rank"}, "quantize.lora_rank must be a multiple of {} with quantize.scheme = {}, found {}",
         step, scheme, rank);
  }
  const bool deosc = q.preset == "recommended" && q.style != "torchao";  // numerics.md 7.3: from step 2000
  if (fp4 && q.deosc_step.value_or(deosc ? 1 : 0) == 0) {
    const bool idle = q.deosc_period.value_or(200) == 200 && q.deosc_ratio.value_or(4) == 4 && q.deosc_log_freq.value_or(1) == 1;
    rule(c, idle, {"quantize.deosc_period", "quantize.deosc_ratio", "quantize.deosc_log_freq", "quantize.deosc_step"},
         "quantize.deosc_period, deosc_ratio and deosc_log_freq have no effect while quantize.deosc_step is 0");
  }
}

void check_pairs(const QuantizeConfig& q, const RuleContext& c) {
  const std::vector<std::string_view> schemes = schemes_of(q.scheme);
  const auto names = [&](std::initializer_list<std::string_view> wanted) {
    return std::any_of(wanted.begin(), wanted.end(),
                       [&](std::string_view s) { return std::find(schemes.begin(), schemes.end(), s) != schemes.end(); });
  };
  const std::string two_level = q.two_level_scaling.value_or("none");
  // Of a scheme that has the option at all; check_columns names the others.
  const bool has_two_levels = names({"mxfp4", "nvfp4", "amdfp4"});
  rule(c, !has_two_levels || two_level != "tensorwise" || names({"nvfp4", "amdfp4"}), {"quantize.two_level_scaling"},
       "quantize.two_level_scaling = tensorwise is for nvfp4 and amdfp4, found quantize.scheme = {}", join(schemes));
  rule(c, !has_two_levels || two_level != "blockwise" || names({"mxfp4"}), {"quantize.two_level_scaling"},
       "quantize.two_level_scaling = blockwise is for mxfp4, found quantize.scheme = {}", join(schemes));
  const bool stored = std::all_of(schemes.begin(), schemes.end(), [](std::string_view s) {
    const std::optional<LinearRecipe> recipe = find_linear_recipe(s);
    return recipe && recipe->w_forward.stored;
  });
  rule(c, q.fsdp_all_gather == "bf16" || !stored, {"quantize.fsdp_all_gather"},
       "quantize.fsdp_all_gather = {} has no effect with quantize.scheme = {}, whose weights are codes alone; leave it unset",
       q.fsdp_all_gather, join(schemes));
  rule(c, !q.fsdp_precompute_scales || q.fsdp_all_gather == "scheme", {"quantize.fsdp_precompute_scales", "quantize.fsdp_all_gather"},
       "quantize.fsdp_precompute_scales has no effect unless quantize.fsdp_all_gather = scheme, found {}", q.fsdp_all_gather);
  const double ratio = q.deosc_ratio.value_or(4);
  rule(c, ratio >= 4 && ratio <= 32, {"quantize.deosc_ratio"}, "quantize.deosc_ratio must be a number from 4 to 32, found {}", ratio);
  const size_t before = c.problems.size();
  for (const std::string_view scheme : schemes) check_scheme(q, scheme, c);
  std::sort(c.problems.begin() + static_cast<std::ptrdiff_t>(before), c.problems.end());  // one line for several schemes
  c.problems.erase(std::unique(c.problems.begin() + static_cast<std::ptrdiff_t>(before), c.problems.end()), c.problems.end());
}

bool converter_emulates(const JobConfig& j) {
  const auto uses = [&](const char* name) {
    return std::find(j.model.converters.begin(), j.model.converters.end(), name) != j.model.converters.end();
  };
  const QuantizeLinearConfig& linear = j.quantize.linear;
  return (uses("quantize.linear.float8") && linear.float8.emulate) ||
         (uses("quantize.linear.mx") && linear.mx.recipe_name == "mxfp8_emulated");
}

// Rules that come from a file or from converters take no options from [quantize]. One that is given is refused at its default, too: it
// says something else than the source, whose own value would count.
void check_options_beside(const JobConfig& config, std::string_view source, const RuleContext& c) {
  JobConfig copy = config;
  for (const FieldEntry& field : index_config(copy).fields) {
    if (section_of(field.name) != "quantize" || field.name == "quantize.recipe" || field.name == "quantize.scheme") continue;
    const std::string_view option = leaf_of(field.name);
    if (is_run_option(option) || (!c.is_set(field.name) && get_value(field) == default_value(field.name))) continue;
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
  const auto uses = [&](std::string_view name) {
    return std::find(j.model.converters.begin(), j.model.converters.end(), name) != j.model.converters.end();
  };
  const bool float8 = uses("quantize.linear.float8") || uses("quantize.grouped_mm.float8");
  const bool mx = uses("quantize.linear.mx") || uses("quantize.grouped_mm.mx");
  rule(c, !(float8 && mx), {"model.converters"},
       "model.converters must be all float8 or all mx; write a mixture as a table in quantize.scheme");
  StringList sorted = j.model.converters;
  std::sort(sorted.begin(), sorted.end());
  rule(c, std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(), {"model.converters"},
       "model.converters names one converter twice");
  constexpr std::string_view kSmall = "auto_filter_small_kn";
  const auto filters_small = [&](const StringList& fqns) { return std::find(fqns.begin(), fqns.end(), kSmall) != fqns.end(); };
  rule(c, !uses("quantize.linear.mx") || !filters_small(j.quantize.linear.mx.filter_fqns), {"quantize.linear.mx.filter_fqns"},
       "quantize.linear.mx.filter_fqns = auto_filter_small_kn has thresholds for quantize.linear.float8 only; name the layers instead");
  if (!uses("quantize.linear.float8")) return;
  const LinearFloat8Config& f = j.quantize.linear.float8;
  const std::string recipe = f.recipe_name.value_or("tensorwise");
  rule(c, recipe == "tensorwise" || !f.enable_fsdp_float8_all_gather,
       {"quantize.linear.float8.enable_fsdp_float8_all_gather", "quantize.linear.float8.recipe_name"},
       "quantize.linear.float8.enable_fsdp_float8_all_gather needs quantize.linear.float8.recipe_name = tensorwise, found {}", recipe);
  rule(c, recipe != "rowwise_with_gw_hp" || !filters_small(f.filter_fqns), {"quantize.linear.float8.filter_fqns"},
       "quantize.linear.float8.filter_fqns = auto_filter_small_kn has no thresholds for recipe_name = rowwise_with_gw_hp");
}

// Fields of [quantize] that say what a scheme applies to, and how; of no use without one.
constexpr std::array<const char*, 3> kOfAnyScheme = {"quantize.targets", "quantize.ignore", "quantize.preset"};
// Likewise, and of use beside a recipe file and converters, too.
constexpr std::array<const char*, 6> kOfAnyRule = {
    "quantize.emulate",         "quantize.skip_first_layers",      "quantize.skip_last_layers",
    "quantize.fsdp_all_gather", "quantize.fsdp_precompute_scales", "quantize.group_align"};

// Calls f(name, value) for each of these fields whose value differs from its default.
template <class F>
void for_each_changed(const JobConfig& config, std::span<const char* const> names, F&& f) {
  JobConfig copy = config;
  const ConfigIndex index = index_config(copy);
  for (const char* name : names) {
    const Json value = get_value(*index.find_field(name));
    if (value != default_value(name)) f(name, value);
  }
}

void check_no_scheme(const JobConfig& config, const RuleContext& c) {
  const auto refuse = [&](const char* name, const Json& value) {
    rule(c, false, {name}, "{} = {} has no effect without quantize.scheme; set that, or leave this unset", name, to_toml_text(value));
  };
  for_each_changed(config, kOfAnyScheme, refuse);
  for_each_changed(config, kOfAnyRule, refuse);
}

// bf16 is a scheme that quantises nothing.
void check_bf16(const JobConfig& config, const RuleContext& c) {
  const std::vector<std::string_view> schemes = schemes_of(config.quantize.scheme);
  if (std::any_of(schemes.begin(), schemes.end(), [](std::string_view s) { return s != "bf16"; })) return;
  for_each_changed(config, kOfAnyRule, [&](const char* name, const Json& value) {
    rule(c, false, {name}, "{} = {} has no effect with quantize.scheme = bf16, which quantises nothing; leave it unset", name,
         to_toml_text(value));
  });
}

// Sections of converters that are not asked for stand in torchtitan's own files.
void report_idle_sections(const JobConfig& config, const RuleContext& c) {
  JobConfig copy = config;
  for (const FieldEntry& field : index_config(copy).fields) {
    if (!field.name.starts_with("quantize.linear.") && !field.name.starts_with("quantize.grouped_mm.")) continue;
    const std::string section(section_of(field.name));
    const StringList& converters = config.model.converters;
    const Json value = get_value(field);
    if (value == default_value(field.name) || std::find(converters.begin(), converters.end(), section) != converters.end()) continue;
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
    const bool of_any_rule = is_run_option(leaf_of(field.name));
    if (get_value(field) == default_value(field.name)) {
      // Asked for nothing then; what now brings its own targets may differ.
      if (elsewhere && std::find(kOfAnyScheme.begin(), kOfAnyScheme.end(), field.name) != kOfAnyScheme.end()) say(field);
      c.origin.erase(field.name);
    } else if (!of_any_rule || !elsewhere) {
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
  rule(c, sources.size() <= 1, {"model.converters", "quantize.recipe", "quantize.scheme"}, "{} are set; keep one source of quantisation{}",
       join(sources, " and "), q.scheme.is_none() ? "" : " (--quantize.scheme none takes back the scheme of a file)");

  bool known = !c.refused.contains("quantize.scheme");
  for (const std::string_view scheme : schemes_of(q.scheme)) {
    std::vector<std::string_view> valid_names = quantize_schemes();
    const bool valid = std::find(valid_names.begin(), valid_names.end(), scheme) != valid_names.end();
    if (!q.scheme.table.empty() || c.in_recipe_file) std::erase(valid_names, "none");
    rule(c, valid, {"quantize.scheme"}, "quantize.scheme: unknown scheme {}; expected one of {}{}", shown(std::string(scheme)),
         join(valid_names), nearest_word(scheme, valid_names));
    const bool idle = scheme == "none" && !q.scheme.table.empty();
    rule(c, !idle, {"quantize.scheme"},
         "quantize.scheme: expected schemes for the layers of a table, found none; write bf16 for layers that stay unquantised");
    known = known && valid && !idle;
  }
  const bool no_targets = q.targets == QuantizeConfig{}.targets && !c.is_set("quantize.targets");
  rule(c, q.scheme.table.empty() || no_targets, {"quantize.targets", "quantize.scheme"},
       "quantize.targets does not go with a table in quantize.scheme, which names its own targets");
  if (sources.size() <= 1 && known) {
    const std::string_view source = sources.empty() ? "quantize.scheme" : sources[0];
    if (sources.empty()) check_no_scheme(j, c);
    if (source == "quantize.scheme") {
      check_columns(j, c);
      check_bf16(j, c);
      check_attention(q, c);
      check_pairs(q, c);
    } else {
      check_options_beside(j, source, c);
    }
  }
  check_converters(j, c);
  report_idle_sections(j, c);

  for (const auto& [name, value] :
       {std::pair{"quantize.skip_first_layers", q.skip_first_layers}, {"quantize.skip_last_layers", q.skip_last_layers}}) {
    constexpr double kMost = 1e6;  // above all models' depths, and for sure an int64
    rule(c, value < 1 || (value == std::floor(value) && value <= kMost), {name},
         "{} must be a count of blocks up to {:.0f} or a fraction below 1, found {}", name, kMost, value);
  }
}

}  // namespace halftone
