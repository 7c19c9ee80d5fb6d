#include "halftone/nn/recipe.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/nn/bitnet.h"
#include "halftone/nn/quantizable.h"
#include "halftone/nn/target.h"
#include "halftone/ops/cuda_module.h"
#include "halftone/ops/hardware.h"

namespace halftone::nn {
namespace {

// The first of many names, and the number of others.
std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kMost = 8;
  if (names.size() <= kMost) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{} and {} more", fmt::join(names.begin(), names.begin() + kMost, ", "), names.size() - kMost);
}

// The layers that a rule leaves unquantised, by reason.
struct Left {
  std::vector<std::string> ignored, by_shape, small, by_block;
  int dim_multiple = 1;

  std::string text() const {
    std::vector<std::string> parts;
    if (!ignored.empty()) parts.push_back(fmt::format("{} ignored ({})", ignored.size(), listed(ignored)));
    if (!by_shape.empty())
      parts.push_back(fmt::format("{} by shape ({}: sizes must be multiples of {})", by_shape.size(), listed(by_shape), dim_multiple));
    if (!small.empty()) parts.push_back(fmt::format("{} small ({})", small.size(), listed(small)));
    if (!by_block.empty()) parts.push_back(fmt::format("{} in skipped blocks", by_block.size()));
    return parts.empty() ? "" : fmt::format("; unquantised: {}", fmt::join(parts, ", "));
  }
};

// Layers by kind, and "2 Linear, 1 GroupedExperts".
using Kinds = std::map<std::string_view, int64_t>;
std::string text(const Kinds& kinds) {
  std::vector<std::string> parts;
  for (const auto& [kind, count] : kinds) parts.insert(parts.begin(), fmt::format("{} {}", count, kind));
  return parts.empty() ? "0 Linear" : fmt::format("{}", fmt::join(parts, ", "));
}

std::string start_line(const RecipeRule& rule, const Kinds& quantized, const Left& left) {
  const bool all = rule.targets_are_substrings || std::find(rule.targets.begin(), rule.targets.end(), "Linear") != rule.targets.end();
  return fmt::format("quantize: {} on {}{}{}", rule.scheme, text(quantized), all ? "" : fmt::format(" ({})", fmt::join(rule.targets, ", ")),
                     left.text());
}

// How the three GEMMs run: "quantize: int8 on cpu-amx: forward, dgrad, wgrad native (int8 units, ...)".
std::string support_line(const RecipeRule& rule, const RecipeSupport& support, Hardware hardware) {
  std::string line = fmt::format("quantize: {} on {}: ", rule.scheme, name(hardware)), products;
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

// A rule's targets and ignore list, compiled.
struct Matching {
  std::vector<Target> targets, ignore;

  explicit Matching(const RecipeRule& rule)
      : targets(targets_of(rule.targets, how(rule), rule.place + rule.targets_field + ": ")),
        ignore(targets_of(rule.ignore, how(rule), rule.place + rule.ignore_field + ": ")) {}
  static Target::Rule how(const RecipeRule& rule) { return rule.targets_are_substrings ? Target::Rule::substring : Target::Rule::c; }
};

void check_matches(const RecipeRule& rule, const Matching& matching, const std::vector<Module*>& modules) {
  const auto matched = [&](const Target& target, bool layers_only) {
    return std::any_of(modules.begin(), modules.end(),
                       [&](const Module* m) { return (!layers_only || dynamic_cast<const QuantizableLayer*>(m)) && target.matches(*m); });
  };
  check(!rule.targets.empty(), "{}{}: the list for {} is empty; name what to quantise: Linear, a layer's full name or re:PATTERN",
        rule.place, rule.targets_field, rule.scheme);
  // A recipe may be shared between models with and without experts.
  static constexpr std::array<std::string_view, 2> kOtherClasses = {"GroupedExperts", "GptOssGroupedExperts"};
  const bool any = std::any_of(matching.targets.begin(), matching.targets.end(), [&](const Target& t) { return matched(t, true); });
  for (const Target& target : matching.targets) {
    const bool absent_class = any && std::find(kOtherClasses.begin(), kOtherClasses.end(), target.text()) != kOtherClasses.end();
    check(absent_class || matched(target, true), "{}{}: '{}' ({}) matches {}; use Linear, a layer's full name or re:PATTERN", rule.place,
          rule.targets_field, target.text(), rule.scheme, matched(target, false) ? "no Linear, only other modules" : "no module");
  }
  for (const Target& target : matching.ignore) {
    if (!matched(target, false))
      log_warning("{}{}: '{}' matches no module; expected {}", rule.place, rule.ignore_field, target.text(),
                  rule.targets_are_substrings ? "a part of a layer's name" : "a layer's full name, a class or re:PATTERN");
  }
}

// Whether the rule's depth ranges contain the module.
bool in_range(const Module& m, const RecipeRule& rule, int64_t layers) {
  return std::ranges::all_of(rule.within, [&](const DepthRange& r) {
    return m.block() >= 0 && (m.block() < block_count(r.first, layers) || m.block() >= layers - block_count(r.last, layers));
  });
}

// Two rules for one layer, as messages name them.
std::string both(const RecipeRule& a, const RecipeRule& b) {
  if (a.scheme != b.scheme) return fmt::format("two schemes, {} and {}", a.scheme, b.scheme);
  const auto line = [](const RecipeRule& r) { return r.place.substr(0, r.place.size() - std::min<size_t>(r.place.size(), 2)); };  // no ": "
  const bool known = !a.place.empty() && !b.place.empty();
  return fmt::format("scheme {} twice{}", a.scheme, known ? fmt::format(", at {} and {}", line(a), line(b)) : "");
}

}  // namespace

int64_t block_count(double value, int64_t layers) {
  return static_cast<int64_t>(std::min(value < 1 ? std::ceil(value * static_cast<double>(layers)) : value, static_cast<double>(layers)));
}

std::vector<std::string> apply_recipes(Module& model, const RecipeRules& recipes, int64_t layers, c10::DeviceType device) {
  return apply_recipes(model, recipes, layers, hardware_of(device));
}

std::vector<std::string> apply_recipes(Module& model, const RecipeRules& recipes, int64_t layers, Hardware hardware, LayerRecipes* given) {
  std::vector<Module*> modules;
  model.for_each_module([&](Module& m) { modules.push_back(&m); });
  std::vector<RecipeRule> rules = recipes.rules;
  std::ranges::stable_sort(rules, std::greater(), &RecipeRule::order);
  std::vector<std::string> lines;
  std::map<const Module*, const RecipeRule*> taken;
  std::set<const Module*> targeted;
  std::vector<Linear*> with_norms;
  const auto replaced = [&](const Module& m, const RecipeRule& rule) {
    const auto found = taken.find(&m);
    return found != taken.end() && found->second->order > rule.order;
  };
  bool any = false;
  for (const RecipeRule& rule : rules) {
    if (rule.scheme == "none") continue;
    any = true;
    const Matching matching(rule);
    check_matches(rule, matching, modules);
    const int64_t first = std::max(recipes.skip_first_layers, block_count(rule.skip_first_layers, layers));
    const int64_t last = layers - std::max(recipes.skip_last_layers, block_count(rule.skip_last_layers, layers));
    Kinds quantized;
    bool deoscillates = false, outranked = false;
    Left left;
    std::optional<LayerRecipe> recipe;
    RecipeSupport support;
    for (Module* m : modules) {
      auto* layer = dynamic_cast<QuantizableLayer*>(m);
      if (!layer || (!rule.kind.empty() && layer->kind() != rule.kind) || !matches_any(*m, matching.targets)) continue;
      if (!in_range(*m, rule, layers)) continue;
      if (replaced(*m, rule)) {
        outranked = true;
        continue;
      }
      targeted.insert(m);
      if (!recipe) {
        recipe = layer_recipe(rule.scheme, rule, m->fqn());
        left.dim_multiple = recipe->linear.dim_multiple;
        for (const std::string& warning : recipe->warnings) log_warning("{}{}", rule.place, warning);
        support = recipe_support(recipe->linear, hardware);
        if (support.worst().how == How::emulated && !rule.emulate) {
          log_warning("{}quantize: {} is emulated on {}, which is slow: {}", rule.place, rule.scheme, name(hardware),
                      support.worst().reason);
          recipe->linear.emulate = true;
          support.forward = support.dgrad = support.wgrad = support.worst();  // all three, as the start-up line then says
        }
      }
      const auto leave = [&](std::vector<std::string>& reason, const char* why) {
        reason.push_back(m->fqn());
        layer->leave_unquantised(fmt::format("{} for {}", why, rule.scheme));
      };
      if (matches_any(*m, matching.ignore)) {
        leave(left.ignored, "ignored");
        continue;
      }
      const int64_t block = m->block();
      if (block >= 0 && (block < first || block >= last)) {
        leave(left.by_block, "in a skipped block");
        continue;
      }
      const auto [it, fresh] = taken.emplace(m, &rule);
      check(fresh, "{}quantize: {} is matched by {}; put it into the ignore list of one", rule.place, m->fqn(), both(*it->second, rule));
      const int64_t k = layer->in_features(), n = layer->out_features();
      if (k % left.dim_multiple != 0 || n % left.dim_multiple != 0) {
        const bool named = std::any_of(matching.targets.begin(), matching.targets.end(), [&](const Target& t) { return t.names(*m); });
        check(!named, "{}{}: {} has {} inputs and {} outputs, {} needs multiples of {}", rule.place, rule.targets_field, m->fqn(), k, n,
              rule.scheme, left.dim_multiple);
        leave(left.by_shape, "its sizes do not fit");
        continue;
      }
      if (rule.auto_filter_small_kn && recipe->scheme.too_small(k, n)) {
        leave(left.small, "too small");
        continue;
      }
      check(recipe->lora_rank <= std::min(k, n),
            "{}quantize.lora_rank: {} has {} inputs and {} outputs, expected a rank of at most {}, found {}", rule.place, m->fqn(), k, n,
            std::min(k, n), recipe->lora_rank);
      layer->set_recipe(*recipe);
      if (given != nullptr) given->insert_or_assign(layer, *recipe);
      auto* linear = dynamic_cast<Linear*>(layer);
      deoscillates = deoscillates || (linear != nullptr && linear->deoscillation().step > 0);
      if (recipe->scheme.family->own_norms) with_norms.push_back(linear);
      ++quantized[layer->kind()];
    }
    if (quantized.empty() && outranked) continue;  // later entries have its layers
    check(rule.order == 0 || !quantized.empty(), "{}{} is for no layer{}; drop the phase, or widen its targets or depth", rule.place,
          rule.scheme, left.text());
    if (quantized.empty()) log_warning("{}quantize: {} quantises no layer; its targets are {}", rule.place, rule.scheme, left.text());
    lines.push_back(start_line(rule, quantized, left));
    if (!recipe || !recipe->linear.quantized() || quantized.empty()) continue;
    lines.push_back(support_line(rule, support, hardware));
    if (is_cpu(hardware) && rule.fast_accum && !rule.fast_accum->empty())
      log_info("[compat] {}quantize.fast_accum: a CPU sums in full precision", rule.place);
    if (!deoscillates) std::erase_if(recipe->options, [](const std::string& option) { return option.starts_with("deosc_"); });
    if (!recipe->options.empty()) lines.push_back(fmt::format("quantize: {} with {}", rule.scheme, fmt::join(recipe->options, ", ")));
  }
  std::vector<std::string> others;
  Kinds kinds;
  for (Module* m : modules) {
    auto* layer = dynamic_cast<QuantizableLayer*>(m);
    if (!any || !layer || targeted.contains(m)) continue;
    layer->leave_unquantised("no target names it");
    others.push_back(m->fqn()), ++kinds[layer->kind()];
  }
  if (!others.empty()) lines.push_back(fmt::format("quantize: {} that no target names stay unquantised ({})", text(kinds), listed(others)));
  if (!with_norms.empty()) add_bitnet_norms(model, with_norms);
  return lines;
}

std::vector<std::string> layer_formats(Module& model) {
  std::vector<std::string> lines;
  model.for_each_module([&](Module& m) {
    const auto* layer = dynamic_cast<const QuantizableLayer*>(&m);
    if (!layer) return;
    const LinearRecipe& r = layer->recipe();
    lines.push_back(fmt::format("{:<32} {} {:>6} -> {:<6} {}", m.fqn(), layer->kind(), layer->in_features(), layer->out_features(),
                                r.quantized()                      ? std::string(r.name)
                                : layer->why_unquantised().empty() ? "unquantised"
                                                                   : fmt::format("unquantised ({})", layer->why_unquantised())));
  });
  return lines;
}

}  // namespace halftone::nn
