#include "halftone/nn/recipe_schedule.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "halftone/base/error.h"
#include "halftone/nn/quantizable.h"
#include "halftone/nn/recipe_config.h"

namespace halftone::nn {
namespace {

LayerRecipe without_recipe() {
  LayerRecipe none;
  none.linear = none.scheme = kLinearRecipes[0];
  return none;
}

const LayerRecipe& recipe_of(const LayerRecipes& recipes, QuantizableLayer* layer) {
  static const LayerRecipe none = without_recipe();
  const auto found = recipes.find(layer);
  return found == recipes.end() ? none : found->second;
}

// "nvfp4", or with products in the compute dtype "nvfp4 (forward unquantised)".
std::string text_of(const LinearRecipe& r) {
  if (!r.quantized()) return "";
  std::vector<std::string_view> plain;
  for (const auto& [name, left, right] :
       {std::tuple{"forward", &r.x_forward, &r.w_forward}, {"dgrad", &r.dy_dgrad, &r.w_dgrad}, {"wgrad", &r.dy_wgrad, &r.x_wgrad}}) {
    if (!left->quantized() && !right->quantized()) plain.emplace_back(name);
  }
  return plain.empty() ? std::string(r.name) : fmt::format("{} ({} unquantised)", r.name, fmt::join(plain, ", "));
}

std::string summary(const LayerRecipes& recipes, const std::vector<QuantizableLayer*>& layers) {
  std::vector<std::pair<std::string, int64_t>> counts;
  int64_t plain = 0;
  for (QuantizableLayer* layer : layers) {
    const std::string text = text_of(recipe_of(recipes, layer).linear);
    const auto found = std::ranges::find(counts, text, &std::pair<std::string, int64_t>::first);
    if (text.empty()) {
      ++plain;
    } else if (found == counts.end()) {
      counts.emplace_back(text, 1);
    } else {
      ++found->second;
    }
  }
  std::vector<std::string> parts;
  for (const auto& [text, count] : counts) parts.push_back(fmt::format("{} on {} layer{}", text, count, count == 1 ? "" : "s"));
  if (plain > 0) parts.push_back(fmt::format("{} unquantised", plain));
  return fmt::format("{}", fmt::join(parts, ", "));
}

bool same(const LayerRecipes& a, const LayerRecipes& b, QuantizableLayer* layer) {
  const LayerRecipe &x = recipe_of(a, layer), &y = recipe_of(b, layer);
  return x.linear == y.linear && x.deosc == y.deosc && x.lora_rank == y.lora_rank;
}

}  // namespace

RecipeSchedule::RecipeSchedule(Module& model, const QuantizeConfig& quantize, const ModelConfig& config, Hardware hardware, int64_t layers,
                               int64_t steps)
    : steps_(steps) {
  const std::vector<PhaseStart> starts = phase_starts(quantize);
  for (size_t i = 0; i < starts.size(); ++i) {
    for (QuantizableLayer* layer : layers_) {
      layer->set_recipe(without_recipe());
      layer->leave_unquantised("");
    }
    Phase& phase = phases_.emplace_back();
    phase.index = static_cast<int64_t>(i), phase.start = starts[i];
    phase.lines = apply_recipes(model, recipe_rules(quantize, config, layers, i), layers, hardware, &phase.recipes);
    layers_.clear();
    model.for_each_module([&](Module& m) {
      if (auto* layer = dynamic_cast<QuantizableLayer*>(&m)) layers_.push_back(layer);
    });
    phase.what = summary(phase.recipes, layers_);
    if (i == 0) continue;
    const LayerRecipes& before = phases_[i - 1].recipes;
    check(!std::ranges::all_of(layers_, [&](QuantizableLayer* layer) { return same(before, phase.recipes, layer); }),
          "quantize.phases: the phase that begins at {} changes no layer: {} as before; leave it out",
          starts[i].fraction > 0 ? start_text(starts[i]) : fmt::format("step {}", starts[i].step), phase.what);
  }
  if (phases_.size() == 1) return;
  for (QuantizableLayer* layer : layers_) {
    for (Parameter* p : layer->weights()) {
      Shape shape{p, 1, true};
      for (const Phase& phase : phases_) {
        layer->set_recipe(recipe_of(phase.recipes, layer));
        shape.row_block = std::lcm(shape.row_block, p->row_block), shape.codes_alone = shape.codes_alone && p->codes_alone;
      }
      shapes_.push_back(shape);
    }
  }
  if (quantize.phase) phases_ = {phases_.at(*quantize.phase)};
  now_ = phases_.size();  // none yet
  enter(0);
}

void RecipeSchedule::set_steps(int64_t steps) {
  steps_ = steps;
  for (size_t i = 1; i < phases_.size(); ++i) {
    check(first_step(i) > first_step(i - 1),
          "quantize.phases: in {} steps phase {} begins at step {}, expected one behind step {}, where phase {} begins; write `from` as "
          "shares of the run",
          steps, i + 1, first_step(i), first_step(i - 1), i);
  }
}

size_t RecipeSchedule::phase_of(int64_t step) const {
  size_t phase = 0;
  while (phase + 1 < phases_.size() && step >= first_step(phase + 1)) ++phase;
  return phase;
}

bool RecipeSchedule::enter(size_t phase) {
  if (phase == now_) return false;
  now_ = phase;
  for (QuantizableLayer* layer : layers_) layer->set_recipe(recipe_of(phases_[phase].recipes, layer));
  for (const Shape& s : shapes_) s.parameter->row_block = s.row_block, s.parameter->codes_alone = s.codes_alone;
  return true;
}

void RecipeSchedule::check_split() const {
  for (const Phase& phase : phases_) {
    for (QuantizableLayer* layer : layers_) {
      const LinearRecipe& r = recipe_of(phase.recipes, layer).linear;
      for (const Parameter* p : layer->weights()) {
        const int64_t k = p->shape.back(), n = p->shape[p->shape.size() - 2];
        check(!r.quantized() || (k % r.dim_multiple == 0 && n % r.dim_multiple == 0),
              "parallelism.tensor_parallel_degree: this rank holds {} x {} of {}; {} of a later phase needs multiples of {}", n, k,
              layer->fqn(), r.name, r.dim_multiple);
      }
    }
  }
}

std::pair<int64_t, int64_t> RecipeSchedule::steps_of(size_t phase, int64_t last_step) const {
  return {first_step(phase), phase + 1 < phases_.size() ? std::min(first_step(phase + 1) - 1, last_step) : last_step};
}

std::vector<std::string> RecipeSchedule::plan_lines(int64_t last_step) const {
  std::vector<std::string> lines;
  if (phases_.size() == 1) return lines;
  for (size_t i = 0; i < phases_.size(); ++i) {
    const auto [first, last] = steps_of(i, last_step);
    const std::string from = start_text(phases_[i].start);
    lines.push_back(fmt::format("quantize: phase {} of {}, {}: {}", i + 1, phases_.size(),
                                first > last ? fmt::format("from step {}, beyond this run", first)
                                             : fmt::format("steps {} to {}{}", first, last, from.empty() ? "" : " (from " + from + ")"),
                                phases_[i].what));
  }
  return lines;
}

}  // namespace halftone::nn
