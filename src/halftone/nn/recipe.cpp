#include "halftone/nn/recipe.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <regex>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/nn/bitnet.h"
#include "halftone/ops/cuda_module.h"
#include "halftone/ops/hardware.h"

namespace halftone::nn {
namespace {

bool matches_any(const Module& module, const std::vector<std::string>& patterns, bool substrings) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& p) {
    return substrings ? module.fqn().find(p) != std::string::npos : matches_target(module, p);
  });
}

// Dense layers where quantising costs more than the product saves: torchao's thresholds, measured on an H100 (numerics.md
// section 12).
bool too_small(const std::string& scheme, int64_t k, int64_t n) {
  if (scheme == "fp8_tensorwise") return k <= 4096 && n <= 1024;
  return n <= 2048 || k <= 1024 || (n <= 4096 && k <= 2048);
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
    check(pattern.size() <= 500, "quantize target 're:{} ...': expected a pattern of at most 500 characters, found {}",
          pattern.substr(0, 40),
          pattern.size());  // the compiler of std::regex recurses
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

namespace {

// The layers that a rule does not quantise, by reason.
struct Left {
  std::vector<std::string> ignored, by_shape, small, by_block;
};

std::string start_line(const RecipeRule& rule, int64_t quantized, const Left& left, int dim_multiple) {
  const bool all = rule.targets_are_substrings || std::find(rule.targets.begin(), rule.targets.end(), "Linear") != rule.targets.end();
  std::string line = fmt::format("quantize: {} on {} Linear{}, 0 GroupedExperts; unquantised: {} ignored", rule.scheme, quantized,
                                 all ? "" : fmt::format(" ({})", fmt::join(rule.targets, ", ")), left.ignored.size());
  if (!left.ignored.empty()) line += fmt::format(" ({})", fmt::join(left.ignored, ", "));
  line += fmt::format(", {} by shape", left.by_shape.size());
  if (!left.by_shape.empty()) line += fmt::format(" ({}: sizes must be multiples of {})", fmt::join(left.by_shape, ", "), dim_multiple);
  if (!left.small.empty()) line += fmt::format(", {} small ({})", left.small.size(), fmt::join(left.small, ", "));
  if (!left.by_block.empty()) line += fmt::format(", {} in skipped blocks", left.by_block.size());
  return line;
}

// How the three products run: "quantize: int8 on cpu-amx: forward, dgrad, wgrad native (int8 units, ...)".
std::string support_line(const RecipeRule& rule, const RecipeSupport& support, Hardware hardware) {
  std::string line = fmt::format("quantize: {} on {}: ", rule.scheme, name(hardware)), products;
  if (!is_cpu(hardware) && cuda::module() == nullptr) {
    return line + "LibTorch's own operations on the quantised operands, because " + cuda::missing_module();
  }
  const std::array<std::pair<const char*, const Support*>, 3> all = {
      {{"forward", &support.forward}, {"dgrad", &support.dgrad}, {"wgrad", &support.wgrad}}};
  for (size_t i = 0; i < all.size(); ++i) {
    const auto& [product, s] = all[i];
    products += (products.empty() ? "" : ", ") + std::string(product);
    if (i + 1 < all.size() && all[i + 1].second->reason == s->reason) continue;
    const std::string_view how = s->how == How::rewrite ? "by an exact rewrite" : name(s->how);
    line += fmt::format("{} {} ({}){}", products, how, s->reason, i + 1 < all.size() ? "; " : "");
    products.clear();
  }
  return line;
}

void check_matches(const RecipeRule& rule, const std::vector<Module*>& modules) {
  const auto matched = [&](const std::string& name, bool linears_only) {
    return std::any_of(modules.begin(), modules.end(), [&](const Module* m) {
      return (!linears_only || dynamic_cast<const Linear*>(m)) && matches_any(*m, {name}, rule.targets_are_substrings);
    });
  };
  // A model without experts may share its recipe with one that has some.
  static constexpr std::array<std::string_view, 2> kOtherClasses = {"GroupedExperts", "GptOssGroupedExperts"};
  const bool any = std::any_of(rule.targets.begin(), rule.targets.end(), [&](const std::string& t) { return matched(t, true); });
  for (const std::string& target : rule.targets) {
    const bool absent_class = any && std::find(kOtherClasses.begin(), kOtherClasses.end(), target) != kOtherClasses.end();
    check(absent_class || matched(target, true), "{}quantize.targets: '{}' ({}) matches {}; use Linear, a layer's full name or re:PATTERN",
          rule.place, target, rule.scheme, matched(target, false) ? "no Linear, only other modules" : "no module");
  }
  for (const std::string& name : rule.ignore) {
    if (!matched(name, false)) log_warning("{}quantize.ignore: '{}' matches no module", rule.place, name);
  }
}

bool named_in_full(const RecipeRule& rule, const std::string& fqn) {
  return !rule.targets_are_substrings && std::any_of(rule.targets.begin(), rule.targets.end(),
                                                     [&](const std::string& t) { return t == fqn || (t == "lm_head" && fqn == "output"); });
}

}  // namespace

int64_t block_count(double value, int64_t layers) {
  return static_cast<int64_t>(value < 1 ? std::ceil(value * static_cast<double>(layers)) : value);
}

std::vector<std::string> apply_recipes(Module& model, const RecipePlan& plan, int64_t layers, c10::DeviceType device) {
  std::vector<Module*> modules;
  model.for_each_module([&](Module& m) { modules.push_back(&m); });
  std::vector<std::string> lines;
  std::map<const Module*, std::string> taken;
  std::vector<Linear*> bitnet;
  const Hardware hardware = hardware_of(device);
  for (const RecipeRule& rule : plan.rules) {
    if (rule.scheme == "none") continue;
    check_matches(rule, modules);
    const int64_t first = std::max(plan.skip_first_layers, block_count(rule.skip_first_layers, layers));
    const int64_t last = layers - std::max(plan.skip_last_layers, block_count(rule.skip_last_layers, layers));
    int64_t quantized = 0;
    Left left;
    std::optional<LayerRecipe> recipe;
    RecipeSupport support;
    for (Module* m : modules) {
      auto* linear = dynamic_cast<Linear*>(m);
      if (!linear || !matches_any(*m, rule.targets, rule.targets_are_substrings)) continue;
      if (!recipe) {
        recipe = layer_recipe(rule.scheme, rule, m->fqn());
        const std::string reason = unsupported_reason(recipe->linear, device);
        check(reason.empty(), "{}quantize.scheme: {} on {} cannot run here: {}", rule.place, rule.scheme, m->fqn(), reason);
        for (const std::string& warning : recipe->warnings) log_warning("{}{}", rule.place, warning);
        support = recipe_support(recipe->linear, hardware);
        if (support.worst().how == How::emulated && !rule.emulate) {
          log_warning("{}quantize: {} is emulated on {}, which is slow: {}", rule.place, rule.scheme, name(hardware),
                      support.worst().reason);
          recipe->linear.emulate = true;
          support.forward = support.dgrad = support.wgrad = support.worst();  // all three, as the line at the start then says
        }
      }
      if (matches_any(*m, rule.ignore, rule.targets_are_substrings)) {
        left.ignored.push_back(m->fqn());
        continue;
      }
      const int64_t block = block_of(m->fqn());
      if (block >= 0 && (block < first || block >= last)) {
        left.by_block.push_back(m->fqn());
        continue;
      }
      const auto [it, fresh] = taken.emplace(m, rule.scheme);
      check(fresh, "{}quantize: {} is matched by two schemes, {} and {}; put it into the ignore list of one", rule.place, m->fqn(),
            it->second, rule.scheme);
      const int64_t k = linear->in_features(), n = linear->out_features();
      if (k % recipe->linear.dim_multiple != 0 || n % recipe->linear.dim_multiple != 0) {
        check(!named_in_full(rule, m->fqn()), "{}quantize.targets: {} has {} inputs and {} outputs, {} takes multiples of {} only",
              rule.place, m->fqn(), k, n, rule.scheme, recipe->linear.dim_multiple);
        left.by_shape.push_back(m->fqn());
        continue;
      }
      if (rule.auto_filter_small_kn && too_small(rule.scheme, k, n)) {
        left.small.push_back(m->fqn());
        continue;
      }
      linear->set_recipe(*recipe);
      if (rule.scheme == "bitnet") bitnet.push_back(linear);
      ++quantized;
    }
    lines.push_back(start_line(rule, quantized, left, recipe ? recipe->linear.dim_multiple : 1));
    if (recipe && recipe->linear.quantized() && quantized > 0) lines.push_back(support_line(rule, support, hardware));
  }
  if (!bitnet.empty()) add_bitnet_norms(model, bitnet);
  return lines;
}

std::vector<std::string> layer_formats(Module& model) {
  std::vector<std::string> lines;
  model.for_each_module([&](Module& m) {
    const auto* linear = dynamic_cast<const Linear*>(&m);
    if (!linear) return;
    const LinearRecipe& r = linear->recipe();
    lines.push_back(fmt::format("{:<32} Linear {:>6} -> {:<6} {}", m.fqn(), linear->in_features(), linear->out_features(),
                                r.quantized() ? r.name : "unquantised"));
  });
  return lines;
}

}  // namespace halftone::nn
