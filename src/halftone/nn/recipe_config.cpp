#include "halftone/nn/recipe_config.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/config/quantize_options.h"
#include "halftone/config/recipe_file.h"

namespace halftone::nn {
namespace {

using Strings = std::vector<std::string>;

// Copies what is set. With a table of schemes an option goes to those that have it; with one scheme it always goes, so that
// layer_recipe refuses what has no effect.
class OptionsOf {
 public:
  OptionsOf(const QuantizeConfig& q, const std::string& scheme) : q_(q), scheme_(scheme) {}

  RecipeRule rule(const Strings& targets) {
    RecipeRule r;
    r.scheme = scheme_, r.targets = targets, r.ignore = q_.ignore, r.preset = q_.preset, r.emulate = q_.emulate;
    take(r.use_2dblock_x, "use_2dblock_x", q_.use_2dblock_x);
    take(r.use_2dblock_w, "use_2dblock_w", q_.use_2dblock_w);
    take(r.use_hadamard, "use_hadamard", q_.use_hadamard);
    take(r.use_sr_grad, "use_sr_grad", q_.use_sr_grad);
    take(r.use_dge, "use_dge", q_.use_dge);
    take(r.use_uos, "use_uos", q_.use_uos);
    take(r.wgrad_hp, "wgrad_hp", q_.wgrad_hp);
    take_two_level(r);
    take(r.clip_mode, "clip_mode", q_.clip_mode);
    take(r.scale_mode, "scale_mode", q_.scale_mode);
    take(r.style, "style", unless(q_.style, "alto"));
    take(r.output, "output", unless(q_.output, true));
    take(r.grad_input, "grad_input", unless(q_.grad_input, true));
    take(r.grad_weight, "grad_weight", unless(q_.grad_weight, true));
    take(r.stochastic_rounding, "stochastic_rounding", unless(q_.stochastic_rounding, false));
    take(r.activation, "activation", unless(q_.activation, "none"));
    take(r.fast_accum, "fast_accum", q_.fast_accum);
    take(r.round_scales_to_power_of_2, "round_scales_to_power_of_2", q_.round_scales_to_power_of_2);
    take(r.lora_rank, "lora_rank", q_.lora_rank);
    take(r.deosc_step, "deosc_step", q_.deosc_step);
    take(r.deosc_period, "deosc_period", q_.deosc_period);
    take(r.deosc_ratio, "deosc_ratio", q_.deosc_ratio);
    take(r.deosc_log_freq, "deosc_log_freq", q_.deosc_log_freq);
    return r;
  }

 private:
  bool belongs(const char* option) const { return q_.scheme.table.size() < 2 || option_belongs(option, scheme_); }

  template <class T>
  void take(std::optional<T>& out, const char* option, const std::optional<T>& value) const {
    if (value && belongs(option)) out = value;
  }

  // Its two kinds belong to different schemes.
  void take_two_level(RecipeRule& r) const {
    const bool mx = scheme_ == "mxfp4";
    const bool fits = !q_.two_level_scaling || *q_.two_level_scaling == "none" || (*q_.two_level_scaling == "blockwise") == mx;
    if (q_.scheme.table.size() < 2 || fits) take(r.two_level_scaling, "two_level_scaling", q_.two_level_scaling);
  }

  template <class T, class U>
  static std::optional<T> unless(const T& value, const U& standard) {
    return value == standard ? std::nullopt : std::optional<T>(value);
  }

  const QuantizeConfig& q_;
  const std::string scheme_;
};

void add_rules(RecipePlan& plan, const QuantizeConfig& q, const std::string& place) {
  const std::string refusal = attention_refusal(q.attention);
  check(refusal.empty(), "{}{}", place, refusal);
  const auto add = [&](const std::string& scheme, const Strings& targets) {
    RecipeRule rule = OptionsOf(q, scheme).rule(targets);
    rule.place = place;
    if (!q.scheme.table.empty()) rule.targets_field = "quantize.scheme";
    plan.rules.push_back(std::move(rule));
  };
  if (q.scheme.table.empty()) {
    if (!q.scheme.is_none()) add(q.scheme.name, q.targets);
    return;
  }
  check(q.targets == Strings{"Linear"}, "{}quantize.targets must be unset when quantize.scheme is a table of targets", place);
  for (const auto& [scheme, targets] : q.scheme.table) add(scheme, targets);
}

// Settings of sharded or grouped weights say nothing to one process with dense layers, so that files for many GPUs load.
void report_idle(const QuantizeConfig& q, const std::string& place) {
  const auto idle = [&](bool set, const char* option, const char* why) {
    if (set) log_info("[compat] {}{}: {}", place, option, why);
  };
  constexpr const char* kGather = "one process gathers no weights";
  idle(q.fsdp_all_gather != "bf16", "quantize.fsdp_all_gather", kGather);
  idle(q.fsdp_precompute_scales, "quantize.fsdp_precompute_scales", kGather);
  idle(q.linear.float8.enable_fsdp_float8_all_gather, "quantize.linear.float8.enable_fsdp_float8_all_gather", kGather);
  idle(q.linear.float8.precompute_float8_dynamic_scale_for_fsdp, "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp",
       kGather);
  idle(q.group_align != 0, "quantize.group_align", "no model of this build has experts");
}

void add_modifiers(RecipePlan& plan, const QuantizeConfig& q) {
  for (const RecipeModifier& modifier : recipe_modifiers(q)) {
    const size_t first = plan.rules.size();
    report_idle(modifier.options, modifier.place + ": ");
    add_rules(plan, modifier.options, modifier.place + ": ");
    for (size_t i = first; i < plan.rules.size(); ++i) {
      plan.rules[i].emulate = plan.rules[i].emulate || q.emulate;
      plan.rules[i].skip_first_layers = modifier.options.skip_first_layers;
      plan.rules[i].skip_last_layers = modifier.options.skip_last_layers;
    }
  }
}

// filter_fqns holds substrings, and one word that is none.
void set_filter(RecipeRule& rule, const Strings& filter_fqns, const char* field) {
  rule.ignore_field = field;
  rule.ignore = filter_fqns;
  rule.auto_filter_small_kn = std::erase(rule.ignore, "auto_filter_small_kn") > 0;
  rule.targets = {""};  // rule T: every name contains it
  rule.targets_are_substrings = true;
}

void add_converter(RecipePlan& plan, const QuantizeConfig& q, const std::string& converter) {
  RecipeRule rule;
  rule.preset = "alto";  // no option that the converter does not set
  if (converter == "quantize.linear.float8" || converter == "float8") {
    rule.scheme = "fp8_" + q.linear.float8.recipe_name.value_or("tensorwise");
    rule.emulate = q.linear.float8.emulate || q.emulate;
    set_filter(rule, q.linear.float8.filter_fqns, "quantize.linear.float8.filter_fqns");
  } else if (converter == "quantize.linear.mx" || converter == "mx") {
    const std::string& recipe = q.linear.mx.recipe_name;
    rule.scheme = "mxfp8_e4m3";
    rule.use_2dblock_w = false;
    rule.scale_mode = recipe == "mxfp8_cublas_rceil" ? "rceil" : "floor";
    rule.emulate = recipe == "mxfp8_emulated" || q.emulate;
    set_filter(rule, q.linear.mx.filter_fqns, "quantize.linear.mx.filter_fqns");
  } else {
    const bool float8 = converter == "quantize.grouped_mm.float8";
    check(float8 || converter == "quantize.grouped_mm.mx", "model.converters: unknown converter '{}'", converter);
    const Strings& fqns = float8 ? q.grouped_mm.float8.fqns : q.grouped_mm.mx.fqns;
    check(fqns.empty(), "model.converters: {} converts experts whose names contain '{}', and no model of this build has experts", converter,
          fqns.empty() ? "" : fqns[0]);
    log_warning("model.converters: {} converts nothing, because its list fqns is empty; remove it", converter);
    return;
  }
  plan.rules.push_back(std::move(rule));
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
  if (sources > 0) report_idle(q, "");
  return plan;
}

}  // namespace halftone::nn
