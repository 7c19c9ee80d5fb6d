#include "halftone/nn/recipe.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <regex>

#include "halftone/base/error.h"
#include "halftone/base/log.h"

namespace halftone::nn {
namespace {

std::string scheme_names() {
  std::vector<std::string_view> names;
  for (const LinearRecipe& r : kLinearRecipes) names.push_back(r.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

bool matches_any(const Module& module, const std::vector<std::string>& patterns, bool substrings) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& p) {
    return substrings ? module.fqn().find(p) != std::string::npos : matches_target(module, p);
  });
}

LinearRecipe recipe_of(const RecipeRule& rule) {
  const std::optional<LinearRecipe> found = find_linear_recipe(rule.scheme == "bf16" ? "none" : rule.scheme);
  check(found.has_value(), "quantize.scheme: unknown scheme '{}'; choose one of {}", rule.scheme, scheme_names());
  LinearRecipe r = *found;
  const bool integer = r.name == "int8" || r.name == "int4";
  check(integer || !rule.stochastic_rounding, "quantize.stochastic_rounding: it rounds every operand of int8 and int4, the scheme is {}",
        r.name);
  check(integer || (rule.output && rule.grad_input && rule.grad_weight),
        "quantize.output, grad_input, grad_weight: they switch the products of int8 and int4, the scheme is {}", r.name);
  const bool sr_legal = integer || r.name == "fp8_blockwise" || r.dim_multiple == 32 || r.name == "nvfp4" || r.name == "amdfp4";
  check(sr_legal || !rule.use_sr_grad, "quantize.use_sr_grad: not legal with {}; block schemes, int8 and int4 take it", r.name);
  if (rule.use_sr_grad || rule.stochastic_rounding) r.dy_dgrad.stochastic = r.dy_wgrad.stochastic = true;
  if (rule.stochastic_rounding) r.x_forward.stochastic = r.w_forward.stochastic = r.w_dgrad.stochastic = r.x_wgrad.stochastic = true;
  if (!rule.output) r.x_forward = r.w_forward = {};
  if (!rule.grad_input) r.dy_dgrad = r.w_dgrad = {};
  if (!rule.grad_weight) r.dy_wgrad = r.x_wgrad = {};
  return r;
}

// Index of the block that a module belongs to, -1 outside the blocks.
int64_t block_of(const std::string& fqn) {
  if (!fqn.starts_with("layers.")) return -1;
  return std::stoll(fqn.substr(7, fqn.find('.', 7) - 7));
}

}  // namespace

bool matches_target(const Module& module, const std::string& target) {
  const std::string& fqn = module.fqn();
  if (target.starts_with("re:")) {
    const std::string pattern = target.substr(3);
    try {
      return std::regex_search(fqn, std::regex(pattern, std::regex::ECMAScript), std::regex_constants::match_continuous);
    } catch (const std::regex_error& e) {
      fail("quantize target '{}': not a valid ECMAScript pattern ({})", target, e.what());
    }
  }
  if (target == fqn || (target == "lm_head" && fqn == "output")) return true;
  const auto names = module.class_names();
  return std::find(names.begin(), names.end(), target) != names.end();
}

std::vector<std::string> apply_recipes(Module& model, const RecipePlan& plan, int64_t layers, c10::DeviceType device) {
  std::vector<Module*> modules;
  model.for_each_module([&](Module& m) { modules.push_back(&m); });
  std::vector<std::string> lines;
  std::map<const Module*, std::string> taken;
  for (const RecipeRule& rule : plan.rules) {
    const LinearRecipe recipe = recipe_of(rule);
    if (recipe.name == "none" && rule.scheme == "none") continue;
    const std::string reason = unsupported_reason(recipe, device);
    check(reason.empty(), "quantize.scheme: {} cannot run here: {}", rule.scheme, reason);
    for (const std::string& target : rule.targets) {
      check(std::any_of(modules.begin(), modules.end(),
                        [&](const Module* m) { return matches_any(*m, {target}, rule.targets_are_substrings); }),
            "quantize.targets: '{}' matches no module; use a class name (Linear), a module's name or re:PATTERN", target);
    }
    for (const std::string& name : rule.ignore) {
      if (std::none_of(modules.begin(), modules.end(),
                       [&](const Module* m) { return matches_any(*m, {name}, rule.targets_are_substrings); })) {
        log_warning("quantize.ignore: '{}' matches no module", name);
      }
    }
    int64_t quantized = 0;
    std::vector<std::string> ignored, by_shape, by_layer;
    for (Module* m : modules) {
      auto* linear = dynamic_cast<Linear*>(m);
      if (!linear || !matches_any(*m, rule.targets, rule.targets_are_substrings)) continue;
      if (matches_any(*m, rule.ignore, rule.targets_are_substrings)) {
        ignored.push_back(m->fqn());
        continue;
      }
      const int64_t block = block_of(m->fqn());
      if (block >= 0 && (block < plan.skip_first_layers || block >= layers - plan.skip_last_layers)) {
        by_layer.push_back(m->fqn());
        continue;
      }
      const auto [it, fresh] = taken.emplace(m, rule.scheme);
      check(fresh, "quantize: {} is matched by two schemes, {} and {}", m->fqn(), it->second, rule.scheme);
      if (linear->in_features() % recipe.dim_multiple != 0 || linear->out_features() % recipe.dim_multiple != 0) {
        by_shape.push_back(m->fqn());
        continue;
      }
      linear->set_recipe(recipe);
      ++quantized;
    }
    std::string line =
        fmt::format("quantize: {} on {} Linear, 0 GroupedExperts; unquantised: {} ignored", rule.scheme, quantized, ignored.size());
    if (!ignored.empty()) line += fmt::format(" ({})", fmt::join(ignored, ", "));
    line += fmt::format(", {} by shape", by_shape.size());
    if (!by_shape.empty()) line += fmt::format(" ({}: sizes must be multiples of {})", fmt::join(by_shape, ", "), recipe.dim_multiple);
    if (!by_layer.empty()) line += fmt::format(", {} in skipped blocks", by_layer.size());
    lines.push_back(line);
  }
  return lines;
}

}  // namespace halftone::nn
