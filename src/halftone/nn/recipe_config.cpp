#include "halftone/nn/recipe_config.h"

#include <algorithm>
#include <cmath>

#include "halftone/base/error.h"

namespace halftone::nn {
namespace {

int block_count(double value, int64_t layers) {
  return static_cast<int>(value < 1 ? std::ceil(value * static_cast<double>(layers)) : value);
}

RecipeRule base_rule(const QuantizeConfig& q) {
  RecipeRule rule;
  rule.ignore = q.ignore;
  rule.stochastic_rounding = q.stochastic_rounding;
  rule.use_sr_grad = q.use_sr_grad;
  rule.output = q.output, rule.grad_input = q.grad_input, rule.grad_weight = q.grad_weight;
  return rule;
}

// Options of schemes whose products this build has not: set, they would be without effect, which is an error.
void refuse_unused(const QuantizeConfig& q) {
  const auto refuse = [](bool set, const char* name, const char* where) {
    check(!set, "quantize.{}: it belongs to {}, and no product of those schemes is in this build; leave it unset", name, where);
  };
  refuse(q.use_2dblock_x.has_value(), "use_2dblock_x", "mx*, nvfp4 and amdfp4");
  refuse(q.use_2dblock_w.has_value(), "use_2dblock_w", "mx*, nvfp4 and amdfp4");
  refuse(q.use_hadamard.has_value(), "use_hadamard", "mxfp4, nvfp4 and amdfp4");
  refuse(q.use_dge.has_value(), "use_dge", "mxfp4, nvfp4 and amdfp4");
  refuse(q.two_level_scaling.has_value(), "two_level_scaling", "mxfp4, nvfp4 and amdfp4");
  refuse(q.clip_mode.has_value(), "clip_mode", "mxfp4");
  refuse(q.use_uos.has_value(), "use_uos", "mxfp4");
  refuse(q.lora_rank.value_or(0) > 0, "lora_rank", "mx*, nvfp4 and amdfp4");
  refuse(q.deosc_step.value_or(0) > 0, "deosc_step", "mxfp4, nvfp4 and amdfp4");
  refuse(q.scale_mode.has_value(), "scale_mode", "mx*");
  refuse(q.activation != "none", "activation", "int8_weight");
  refuse(q.attention != "bf16", "attention", "low-precision attention");
  refuse(!q.recipe.empty(), "recipe", "recipe files");
}

}  // namespace

RecipePlan recipe_plan(const QuantizeConfig& q, const ModelConfig& model, int64_t layers) {
  RecipePlan plan;
  refuse_unused(q);
  plan.skip_first_layers = block_count(q.skip_first_layers, layers);
  plan.skip_last_layers = block_count(q.skip_last_layers, layers);
  check(q.scheme.is_none() || model.converters.empty(), "quantize.scheme and model.converters are both set; choose one");
  if (!q.scheme.table.empty()) {
    check(q.targets == std::vector<std::string>{"Linear"}, "quantize.targets must be unset when quantize.scheme is a table of targets");
    for (const auto& [scheme, targets] : q.scheme.table) {
      RecipeRule rule = base_rule(q);
      rule.scheme = scheme, rule.targets = targets;
      plan.rules.push_back(rule);
    }
  } else if (!q.scheme.is_none()) {
    RecipeRule rule = base_rule(q);
    rule.scheme = q.scheme.name, rule.targets = q.targets;
    plan.rules.push_back(rule);
  }
  for (const std::string& converter : model.converters) {
    RecipeRule rule;
    if (converter == "quantize.linear.float8" || converter == "float8") {
      const std::string recipe = q.linear.float8.recipe_name.value_or("tensorwise");
      rule.scheme = "fp8_" + recipe;
      rule.ignore = q.linear.float8.filter_fqns;
    } else if (converter == "quantize.linear.mx" || converter == "mx") {
      rule.scheme = "mxfp8_e4m3";
      rule.ignore = q.linear.mx.filter_fqns;
    } else {
      continue;  // grouped products: a dense model has none
    }
    rule.targets = {""};  // rule T: every name contains it
    rule.targets_are_substrings = true;
    plan.rules.push_back(rule);
  }
  return plan;
}

}  // namespace halftone::nn
