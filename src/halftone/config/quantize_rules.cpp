#include <algorithm>
#include <array>
#include <cmath>

#include "halftone/config/names.h"
#include "halftone/config/rules.h"
#include "halftone/config/value.h"

namespace halftone {
namespace {

const std::vector<std::string_view> kSchemes = {"none",          "bf16",       "fp8_tensorwise", "fp8_rowwise", "fp8_rowwise_with_gw_hp",
                                                "fp8_blockwise", "mxfp8_e4m3", "mxfp8_e5m2",     "mxfp4",       "nvfp4",
                                                "amdfp4",        "int8",       "int4",           "int8_weight", "int4_weight",
                                                "bitnet"};

// Options that only some schemes have; a trailing * stands for any ending.
struct Column {
  const char* option;
  std::vector<std::string_view> schemes;
};
const std::vector<Column> kColumns = {
    {"use_2dblock_x", {"mx*", "nvfp4", "amdfp4"}},
    {"use_2dblock_w", {"mx*", "nvfp4", "amdfp4"}},
    {"use_hadamard", {"mxfp4", "nvfp4", "amdfp4"}},
    {"use_sr_grad", {"fp8_blockwise", "mx*", "nvfp4", "amdfp4", "int8", "int4"}},
    {"use_dge", {"mxfp4", "nvfp4", "amdfp4"}},
    {"two_level_scaling", {"mxfp4", "nvfp4", "amdfp4"}},
    {"clip_mode", {"mxfp4"}},
    {"use_uos", {"mxfp4"}},
    {"lora_rank", {"mx*", "nvfp4", "amdfp4"}},
    {"deosc_step", {"mxfp4", "nvfp4", "amdfp4"}},
    {"deosc_period", {"mxfp4", "nvfp4", "amdfp4"}},
    {"deosc_ratio", {"mxfp4", "nvfp4", "amdfp4"}},
    {"deosc_log_freq", {"mxfp4", "nvfp4", "amdfp4"}},
    {"scale_mode", {"mx*"}},
    {"style", {"nvfp4"}},
    {"wgrad_hp", {"mxfp8_*", "mxfp4", "nvfp4", "amdfp4", "fp8_rowwise"}},
    {"output", {"int8", "int4"}},
    {"grad_input", {"int8", "int4"}},
    {"grad_weight", {"int8", "int4"}},
    {"stochastic_rounding", {"int8", "int4"}},
    {"activation", {"int8_weight"}},
    {"fast_accum", {"fp8_*"}},
    {"round_scales_to_power_of_2", {"fp8_*"}},
    {"attention", {"fp8_blockwise", "mxfp4"}},
    {"attn_bwd", {"fp8_blockwise", "mxfp4"}},
    {"pnq", {"fp8_blockwise", "mxfp4"}},
};

bool in_column(std::string_view scheme, const Column& column) {
  return std::any_of(column.schemes.begin(), column.schemes.end(),
                     [&](std::string_view s) { return s.ends_with('*') ? scheme.starts_with(s.substr(0, s.size() - 1)) : scheme == s; });
}

std::vector<std::string_view> schemes_of(const QuantizeScheme& scheme) {
  std::vector<std::string_view> names;
  for (const auto& [name, targets] : scheme.table) names.push_back(name);
  if (names.empty()) names.push_back(scheme.name);
  return names;
}

// Values that ask for nothing may stand beside any scheme.
bool asks_for_nothing(const Json& value, const Json& standard) {
  return value == standard || value.is_null() || value == false || value == "none" || value == 0;
}

// Calls f(column, field, value, default) for every option that asks for something which no active scheme has.
template <class F>
void for_each_misplaced(JobConfig& config, F&& f) {
  const ConfigIndex index = index_config(config);
  const std::vector<std::string_view> schemes = schemes_of(config.quantize.scheme);
  for (const Column& column : kColumns) {
    const std::string name = std::string("quantize.") + column.option;
    const FieldEntry& field = *index.find_field(name);
    const Json value = get_value(field);
    const Json& usual = default_value(name);
    // `output = false` and its like ask for something; elsewhere false asks for nothing.
    const bool idle = usual == true ? value == usual : asks_for_nothing(value, usual);
    const bool placed = std::any_of(schemes.begin(), schemes.end(), [&](std::string_view s) { return in_column(s, column); });
    if (!idle && !placed) f(column, field, value, usual);
  }
}

void check_columns(const JobConfig& config, const RuleContext& c) {
  JobConfig copy = config;
  for_each_misplaced(copy, [&](const Column& column, const FieldEntry& field, const Json& value, const Json&) {
    rule(c, false, {field.name.c_str()}, "{} = {} has no effect with quantize.scheme = {}; it is for {}", field.name, to_toml_text(value),
         join(schemes_of(config.quantize.scheme)), join(column.schemes));
  });
}

void check_pairs(const QuantizeConfig& q, const RuleContext& c) {
  const std::vector<std::string_view> schemes = schemes_of(q.scheme);
  const auto has = [&](std::string_view prefix) {
    return std::any_of(schemes.begin(), schemes.end(), [&](std::string_view s) { return s.starts_with(prefix); });
  };
  const bool x_2d = q.use_2dblock_x.value_or(false), hadamard = q.use_hadamard.value_or(false), hp = q.wgrad_hp.value_or(false);
  rule(c, !(hadamard && x_2d), {"quantize.use_hadamard", "quantize.use_2dblock_x"},
       "quantize.use_hadamard does not go with quantize.use_2dblock_x: no 1-D operand of the weight gradient is left to rotate");
  rule(c, !(hadamard && hp), {"quantize.use_hadamard", "quantize.wgrad_hp"},
       "quantize.use_hadamard does not go with quantize.wgrad_hp: the operands of the weight gradient are not quantised");
  const std::string two_level = q.two_level_scaling.value_or("none"), clip = q.clip_mode.value_or("none");
  rule(c, two_level != "tensorwise" || has("nvfp4") || has("amdfp4"), {"quantize.two_level_scaling"},
       "quantize.two_level_scaling = tensorwise is for nvfp4 and amdfp4, found quantize.scheme = {}", join(schemes));
  rule(c, two_level != "blockwise" || has("mxfp4"), {"quantize.two_level_scaling"},
       "quantize.two_level_scaling = blockwise is for mxfp4, found quantize.scheme = {}", join(schemes));
  if (clip != "none") {
    rule(c, !x_2d && !hp && !q.use_uos.value_or(false), {"quantize.clip_mode"},
         "quantize.clip_mode does not go with quantize.use_2dblock_x, quantize.wgrad_hp or quantize.use_uos");
    rule(c, clip != "dynamic" || q.use_hadamard.value_or(q.preset == "recommended"), {"quantize.clip_mode"},
         "quantize.clip_mode = dynamic needs quantize.use_hadamard");
  }
  rule(c, !(q.use_uos.value_or(false) && q.scale_mode), {"quantize.use_uos", "quantize.scale_mode"},
       "quantize.use_uos is a scale rule of its own and does not go with quantize.scale_mode");
  if (q.style == "torchao") {
    rule(c, !x_2d && !q.use_dge.value_or(false), {"quantize.style"},
         "quantize.style = torchao does not go with quantize.use_2dblock_x or quantize.use_dge");
  }
  const int64_t rank = q.lora_rank.value_or(0), step = has("mx") ? 32 : 16;
  rule(c, rank % step == 0, {"quantize.lora_rank"}, "quantize.lora_rank must be a multiple of {} with quantize.scheme = {}, found {}", step,
       join(schemes), rank);
  rule(c, q.deosc_ratio.value_or(1) > 0, {"quantize.deosc_ratio"}, "quantize.deosc_ratio must be above 0, found 0");
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
  if (!uses("quantize.linear.float8")) return;
  const LinearFloat8Config& f = j.quantize.linear.float8;
  const std::string recipe = f.recipe_name.value_or("tensorwise");
  rule(c, recipe == "tensorwise" || !f.enable_fsdp_float8_all_gather,
       {"quantize.linear.float8.enable_fsdp_float8_all_gather", "quantize.linear.float8.recipe_name"},
       "quantize.linear.float8.enable_fsdp_float8_all_gather needs quantize.linear.float8.recipe_name = tensorwise, found {}", recipe);
  const bool filters_small = std::find(f.filter_fqns.begin(), f.filter_fqns.end(), "auto_filter_small_kn") != f.filter_fqns.end();
  rule(c, recipe != "rowwise_with_gw_hp" || !filters_small, {"quantize.linear.float8.filter_fqns"},
       "quantize.linear.float8.filter_fqns = auto_filter_small_kn has no thresholds for recipe_name = rowwise_with_gw_hp");
}

}  // namespace

void drop_options_of_no_scheme(JobConfig& config, const RuleContext& c) {
  const auto scheme = c.origin.find("quantize.scheme");
  if (!config.quantize.scheme.is_none() || scheme == c.origin.end() || scheme->second != "command line") return;
  for_each_misplaced(config, [&](const Column&, const FieldEntry& field, const Json& value, const Json& usual) {
    if (c.origin[field.name] == "command line") return;
    c.compat.push_back(fmt::format("[compat] {}={}: unused, because quantize.scheme is none", field.name, to_toml_text(value)));
    set_value(field, usual);
    c.origin.erase(field.name);
  });
}

void check_quantize(const JobConfig& j, const RuleContext& c) {
  const QuantizeConfig& q = j.quantize;
  std::vector<std::string_view> sources;
  if (!q.scheme.is_none()) sources.push_back("quantize.scheme");
  if (!q.recipe.empty()) sources.push_back("quantize.recipe");
  if (!j.model.converters.empty()) sources.push_back("model.converters");
  rule(c, sources.size() <= 1, {"model.converters", "quantize.recipe", "quantize.scheme"}, "{} are set; keep one source of quantisation",
       join(sources, " and "));

  bool known = true;
  for (const std::string_view scheme : schemes_of(q.scheme)) {
    const bool valid = std::find(kSchemes.begin(), kSchemes.end(), scheme) != kSchemes.end();
    rule(c, valid, {"quantize.scheme"}, "quantize.scheme: unknown scheme {}; expected one of {}{}", shown(std::string(scheme)),
         join(kSchemes), nearest_word(scheme, kSchemes));
    known = known && valid;
  }
  rule(c, q.scheme.table.empty() || q.targets == QuantizeConfig{}.targets, {"quantize.targets", "quantize.scheme"},
       "quantize.targets does not go with a table in quantize.scheme, which names its own targets");
  if (known && q.recipe.empty()) {
    check_columns(j, c);
    check_pairs(q, c);
  }
  check_converters(j, c);

  for (const auto& [name, value] :
       {std::pair{"quantize.skip_first_layers", q.skip_first_layers}, {"quantize.skip_last_layers", q.skip_last_layers}}) {
    rule(c, value < 1 || value == std::floor(value), {name}, "{} must be a count or a fraction below 1, found {}", name, value);
  }
}

}  // namespace halftone
