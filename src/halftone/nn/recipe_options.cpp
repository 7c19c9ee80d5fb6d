#include "halftone/nn/recipe_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "halftone/base/error.h"
#include "halftone/config/quantize_options.h"

namespace halftone::nn {
namespace {

using Operand = OperandSpec LinearRecipe::*;
constexpr std::array<Operand, 6> kOperands = {&LinearRecipe::x_forward, &LinearRecipe::w_forward, &LinearRecipe::dy_dgrad,
                                              &LinearRecipe::w_dgrad,   &LinearRecipe::dy_wgrad,  &LinearRecipe::x_wgrad};

constexpr int64_t kRecommendedDeoscStep = 2000;  // numerics.md 7.3, last column

bool has_blocks(const LinearRecipe& r) { return r.name.starts_with("mx") || r.name == "nvfp4" || r.name == "amdfp4"; }
bool is_fp4(const LinearRecipe& r) { return has_blocks(r) && r.w_forward.element == Element::e2m1; }

// The options, with the preset's values where the user set none. Preset options that a set option excludes are omitted.
RecipeOptions resolved(RecipeOptions o, const LinearRecipe& r) {
  const bool torchao = o.style == "torchao", recommended = is_fp4(r) && (o.preset == "recommended" || torchao);
  const auto fill = [](auto& option, const auto& value) {
    if (!option) option = value;
  };
  fill(o.use_2dblock_x, false), fill(o.use_2dblock_w, has_blocks(r)), fill(o.wgrad_hp, false);
  fill(o.use_hadamard, recommended && !*o.use_2dblock_x && !*o.wgrad_hp);
  fill(o.use_sr_grad, recommended);
  fill(o.two_level_scaling, recommended && r.name != "mxfp4" ? "tensorwise" : "none");
  fill(o.clip_mode, "none");
  fill(o.deosc_step, recommended && !torchao ? kRecommendedDeoscStep : 0);  // torchao's chain has none
  return o;
}

void apply_blocks(const RecipeOptions& o, LinearRecipe& r) {
  const OperandSpec element = r.w_forward;
  const int n = element.block;
  OperandSpec block = detail::block(element.element, n, element.scale), tile = detail::tile(element.element, n, element.scale);
  for (OperandSpec* s : {&block, &tile}) {
    s->two_level = *find_named(kTwoLevelNames, *o.two_level_scaling);
    s->chain = *find_named(kChainNames, o.style);
    if (o.use_uos.value_or(false)) s->mode = ScaleMode::uos;
    if (o.scale_mode) s->mode = *find_named(kScaleModeNames, *o.scale_mode);
  }
  const bool x_2d = *o.use_2dblock_x, w_2d = *o.use_2dblock_w;
  r.x_forward = r.dy_dgrad = x_2d ? tile : block;
  r.w_forward = w_2d ? tile : block;
  r.w_dgrad = w_2d ? detail::again(tile) : block;
  OperandSpec wgrad = x_2d ? detail::again(tile) : block;
  wgrad.clip = *find_named(kClipNames, *o.clip_mode);
  wgrad.hadamard = !*o.use_hadamard ? 0 : o.style == "torchao" ? 16 : 32;
  r.x_wgrad = r.dy_wgrad = wgrad;
}

void apply(const RecipeOptions& o, LinearRecipe& r) {
  if (has_blocks(r)) apply_blocks(o, r);
  if (*o.use_sr_grad || o.stochastic_rounding) r.dy_dgrad.stochastic = r.dy_wgrad.stochastic = true;
  if (o.stochastic_rounding) r.x_forward.stochastic = r.w_forward.stochastic = r.w_dgrad.stochastic = r.x_wgrad.stochastic = true;
  if (!o.output) r.x_forward = r.w_forward = {};
  if (!o.grad_input) r.dy_dgrad = r.w_dgrad = {};
  if (!o.grad_weight || *o.wgrad_hp) r.dy_wgrad = r.x_wgrad = {};
  if (o.activation != "none") {
    r.x_forward = detail::rows(Element::int8);
    r.x_forward.stochastic = o.activation == "int8_sr";
  }
  for (const Operand operand : kOperands) {
    OperandSpec& s = r.*operand;
    if (o.round_scales_to_power_of_2 && s.quantized() && r.name.starts_with("fp8_"))
      s.scale = *o.round_scales_to_power_of_2 ? ScaleFormat::fp32_pow2 : ScaleFormat::fp32;
  }
  if (o.fast_accum) {
    const auto fast = [&](const char* product) {
      return std::find(o.fast_accum->begin(), o.fast_accum->end(), product) != o.fast_accum->end();
    };
    r.fast_accum = {fast("forward"), fast("dgrad"), fast("wgrad")};
  }
  r.dge = o.use_dge.value_or(false), r.emulate = o.emulate;
}

// LayerRecipe::options.
std::vector<std::string> in_effect(RecipeOptions o, const LinearRecipe& r) {
  if (has_blocks(r) && r.w_forward.mode != ScaleMode::none && r.w_forward.mode != ScaleMode::uos)
    o.scale_mode = name_of(kScaleModeNames, r.w_forward.mode);
  std::vector<std::string> lines;
  for (const FieldEntry& f : index_options(o).fields) {
    const Json value = get_value(f);
    // Without a value in preset "alto" the scheme's own default may be on, so that false and empty are reported too.
    const bool on = f.info.alto.empty() ? value != default_value(f.name) : asks(f, value);
    if (!on || f.info.scope == Scope::rule || !scheme_takes(r.name, f, value)) continue;
    lines.push_back(value == true ? std::string(leaf_of(f.name)) : fmt::format("{} = {}", leaf_of(f.name), plain_text(value)));
  }
  return lines;
}

}  // namespace

LayerRecipe layer_recipe(const std::string& scheme, const RecipeOptions& options, const std::string& module) {
  const std::optional<LinearRecipe> found = find_linear_recipe(scheme == "bf16" ? "none" : scheme);
  check(found.has_value(), "quantize.scheme: unknown scheme '{}' for {}; choose one of {}", scheme, module, join(quantize_schemes()));
  const std::vector<Refusal> refused = refusals(options, {scheme});
  if (!refused.empty()) fail("{} (scheme {}, {})", refused[0].text, scheme, module);
  const RecipeOptions o = resolved(options, *found);
  LayerRecipe result;
  result.linear = *found, result.lora_rank = o.lora_rank.value_or(0);
  apply(o, result.linear);
  result.deosc_asked = options.deosc_step.has_value();
  result.deosc = {*o.deosc_step, o.deosc_period.value_or(200), o.deosc_log_freq.value_or(1), o.deosc_ratio.value_or(4.0)};
  result.options = in_effect(o, result.linear);
  if (is_fp4(*found) && scheme != "mxfp4" && o.two_level_scaling == "none") {
    // Block scales between the floor of ALTO's chain and the format's largest number (numerics.md 3.4, 3.6); a quarter of the floor is
    // the midpoint between codes 0 and 1.
    const bool wide = scheme == "amdfp4";
    result.warnings.push_back(fmt::format(
        "quantize: {} without two_level_scaling = tensorwise (from {}): elements below {} become zero, those above {} saturate; gradients "
        "are often smaller",
        scheme, module, wide ? "2^-19 (1.9e-6)" : "2^-8 (0.004)", wide ? "688128" : "2688"));
  }
  return result;
}

}  // namespace halftone::nn
