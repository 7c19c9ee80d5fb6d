#include "halftone/nn/recipe_options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "halftone/base/error.h"

namespace halftone::nn {
namespace {

using Operand = OperandSpec LinearRecipe::*;
constexpr std::array<Operand, 6> kOperands = {&LinearRecipe::x_forward, &LinearRecipe::w_forward, &LinearRecipe::dy_dgrad,
                                              &LinearRecipe::w_dgrad,   &LinearRecipe::dy_wgrad,  &LinearRecipe::x_wgrad};

constexpr int64_t kRecommendedDeoscStep = 2000;  // numerics.md 7.3, last column

bool matches(std::string_view scheme, std::string_view pattern) {
  return pattern.ends_with('*') ? scheme.starts_with(pattern.substr(0, pattern.size() - 1)) : scheme == pattern;
}

// The options as values, with the preset's where the user said nothing.
class Resolved {
 public:
  Resolved(const std::string& scheme, const RecipeOptions& o, const std::string& module) : o_(o), scheme_(scheme), module_(module) {
    const std::optional<LinearRecipe> found = find_linear_recipe(scheme == "bf16" ? "none" : scheme);
    if (!found) {
      std::vector<std::string_view> names;
      for (const LinearRecipe& r : kLinearRecipes) names.push_back(r.name);
      fail("quantize.scheme: unknown scheme '{}' for {}; choose one of {}", scheme, module, fmt::join(names, ", "));
    }
    result_.linear = *found;
    check(o.preset == "recommended" || o.preset == "alto", "quantize.preset: expected recommended or alto, found '{}' ({})", o.preset,
          module);
    fp4_ = matches_any({"mxfp4", "nvfp4", "amdfp4"});
    blocks_ = fp4_ || matches_any({"mxfp8_*"});
  }

  LayerRecipe run() {
    read();
    check_columns();
    check_pairs();
    apply();
    list_options();
    return std::move(result_);
  }

 private:
  bool matches_any(std::initializer_list<std::string_view> patterns) const {
    return std::any_of(patterns.begin(), patterns.end(), [&](std::string_view p) { return matches(scheme_, p); });
  }
  template <class... Args> [[noreturn]] void refuse(const char* option, fmt::format_string<Args...> format, Args&&... args) const {
    fail("quantize.{}: {} (scheme {}, {})", option, fmt::format(format, std::forward<Args>(args)...), scheme_, module_);
  }
  void only_for(bool asked, const char* option, std::initializer_list<std::string_view> patterns) const {
    if (asked && !matches_any(patterns)) refuse(option, "legal with {} only; leave it unset", fmt::join(patterns, ", "));
  }
  std::string choice(const char* option, const std::optional<std::string>& value, const std::string& standard,
                     std::initializer_list<std::string_view> choices) const {
    const std::string v = value.value_or(standard);
    if (std::find(choices.begin(), choices.end(), v) == choices.end()) {
      refuse(option, "expected one of {}, found '{}'", fmt::join(choices, ", "), v);
    }
    return v;
  }

  void read() {
    style_ = choice("style", o_.style, "alto", {"alto", "torchao"});
    torchao_ = style_ == "torchao" && scheme_ == "nvfp4";
    const bool recommended = fp4_ && (o_.preset == "recommended" || torchao_);
    x_2d_ = o_.use_2dblock_x.value_or(false);
    w_2d_ = o_.use_2dblock_w.value_or(true);
    wgrad_hp_ = o_.wgrad_hp.value_or(false);
    // What the preset would add but a set option excludes is left out; only what the user sets can contradict.
    hadamard_ = o_.use_hadamard.value_or(recommended && !x_2d_ && !wgrad_hp_);
    sr_grad_ = o_.use_sr_grad.value_or(recommended);
    dge_ = o_.use_dge.value_or(false), uos_ = o_.use_uos.value_or(false);
    two_level_ = choice("two_level_scaling", o_.two_level_scaling, recommended && scheme_ != "mxfp4" ? "tensorwise" : "none",
                        {"none", "tensorwise", "blockwise"});
    clip_ = choice("clip_mode", o_.clip_mode, "none", {"none", "static", "dynamic"});
    if (o_.scale_mode) choice("scale_mode", o_.scale_mode, "", {"floor", "ceil", "rceil", "even", "adaptive"});
    activation_ = choice("activation", o_.activation, "none", {"none", "int8", "int8_sr"});
    stochastic_ = o_.stochastic_rounding.value_or(false);
    lora_ = o_.lora_rank.value_or(0);
    // torchao's chain has none.
    const bool deosc = fp4_ && o_.preset == "recommended" && style_ != "torchao";
    result_.deosc_asked = o_.deosc_step.has_value();
    result_.deosc = {o_.deosc_step.value_or(deosc ? kRecommendedDeoscStep : 0), o_.deosc_period.value_or(200),
                     o_.deosc_log_freq.value_or(1), o_.deosc_ratio.value_or(4.0)};
  }

  void check_columns() const {
    only_for(x_2d_, "use_2dblock_x", {"mx*", "nvfp4", "amdfp4"});
    only_for(o_.use_2dblock_w.value_or(false), "use_2dblock_w", {"mx*", "nvfp4", "amdfp4"});
    only_for(sr_grad_, "use_sr_grad", {"fp8_blockwise", "mx*", "nvfp4", "amdfp4", "int8", "int4"});
    only_for(hadamard_, "use_hadamard", {"mxfp4", "nvfp4", "amdfp4"});
    only_for(dge_, "use_dge", {"mxfp4", "nvfp4", "amdfp4"});
    only_for(result_.deosc.step > 0, "deosc_step", {"mxfp4", "nvfp4", "amdfp4"});
    only_for(two_level_ == "tensorwise", "two_level_scaling", {"nvfp4", "amdfp4"});
    only_for(two_level_ == "blockwise", "two_level_scaling", {"mxfp4"});
    only_for(clip_ != "none", "clip_mode", {"mxfp4"});
    only_for(uos_, "use_uos", {"mxfp4"});
    only_for(o_.scale_mode.has_value(), "scale_mode", {"mxfp8_*", "mxfp4"});
    only_for(style_ == "torchao", "style", {"nvfp4"});
    only_for(lora_ > 0, "lora_rank", {"mx*", "nvfp4", "amdfp4"});
    if (wgrad_hp_ && matches_any({"int8", "int4"})) refuse("wgrad_hp", "the integer recipes say grad_weight = false instead");
    only_for(wgrad_hp_, "wgrad_hp", {"mxfp8_*", "mxfp4", "nvfp4", "amdfp4", "fp8_rowwise"});
    only_for(stochastic_, "stochastic_rounding", {"int8", "int4"});
    only_for(!o_.output.value_or(true), "output", {"int8", "int4"});
    only_for(!o_.grad_input.value_or(true), "grad_input", {"int8", "int4"});
    only_for(!o_.grad_weight.value_or(true), "grad_weight", {"int8", "int4"});
    only_for(activation_ != "none", "activation", {"int8_weight"});
    only_for(o_.fast_accum.has_value() && !o_.fast_accum->empty(), "fast_accum",
             {"fp8_tensorwise", "fp8_rowwise", "fp8_rowwise_with_gw_hp"});
    only_for(o_.round_scales_to_power_of_2.value_or(false), "round_scales_to_power_of_2", {"fp8_*"});
    only_for(o_.auto_filter_small_kn, "auto_filter_small_kn", {"fp8_tensorwise", "fp8_rowwise"});
  }

  void check_pairs() const {
    if (hadamard_ && x_2d_) refuse("use_hadamard", "not with use_2dblock_x: no 1-D operand of the weight gradient is left to rotate");
    if (hadamard_ && wgrad_hp_) refuse("use_hadamard", "not with wgrad_hp: the operands of the weight gradient are not quantised");
    if (clip_ != "none") {
      if (x_2d_) refuse("clip_mode", "not with use_2dblock_x: it clips 1-D operands of the weight gradient");
      if (uos_) refuse("clip_mode", "not with use_uos");
      if (wgrad_hp_) refuse("clip_mode", "not with wgrad_hp: the operands of the weight gradient are not quantised");
      if (two_level_ != "none") refuse("clip_mode", "not with two_level_scaling, which already brings each block to the largest code");
    }
    if (sr_grad_ && !o_.grad_input.value_or(true) && !o_.grad_weight.value_or(true)) {
      refuse("use_sr_grad", "has no effect with grad_input = false and grad_weight = false: no gradient is quantised");
    }
    if (stochastic_ && o_.use_sr_grad) {
      refuse("use_sr_grad", "has no effect beside stochastic_rounding, which rounds every quantised operand so; leave it unset");
    }
    if (clip_ == "dynamic" && !hadamard_) refuse("clip_mode", "dynamic needs use_hadamard: it assumes rotated data");
    if (uos_ && o_.scale_mode) refuse("use_uos", "it is a scale rule of its own and does not go with scale_mode");
    if (torchao_) {
      const auto contradicts = [&](bool bad, const char* option) {
        if (bad) refuse(option, "contradicts style = torchao, which fixes it");
      };
      contradicts(x_2d_, "use_2dblock_x"), contradicts(dge_, "use_dge"), contradicts(!w_2d_, "use_2dblock_w");
      contradicts(wgrad_hp_, "wgrad_hp"), contradicts(!hadamard_, "use_hadamard"), contradicts(!sr_grad_, "use_sr_grad");
      contradicts(two_level_ != "tensorwise", "two_level_scaling");
    }
    const int64_t unit = matches_any({"mx*"}) ? 32 : 16;
    if (lora_ < 0 || lora_ % unit != 0) refuse("lora_rank", "expected a multiple of {}, found {}", unit, lora_);
    const Deoscillation& d = result_.deosc;
    if (d.step < 0) refuse("deosc_step", "expected 0 (never) or a step, found {}", d.step);
    if (d.period < 1) refuse("deosc_period", "expected at least 1, found {}", d.period);
    if (!(d.ratio >= Deoscillation::kLeastRatio && d.ratio <= Deoscillation::kMostRatio)) {
      refuse("deosc_ratio", "expected a number from {} to {}, found {}", Deoscillation::kLeastRatio, Deoscillation::kMostRatio, d.ratio);
    }
    if (d.log_freq < 0) refuse("deosc_log_freq", "expected 0 (never) or more, found {}", d.log_freq);
    const Deoscillation idle{};
    if (d.step == 0 && d != idle) {
      refuse(d.period != idle.period ? "deosc_period" : d.ratio != idle.ratio ? "deosc_ratio" : "deosc_log_freq",
             "has no effect while deosc_step is 0");
    }
  }

  void apply() {
    LinearRecipe& r = result_.linear;
    if (blocks_) apply_blocks(r);
    if (sr_grad_ || stochastic_) r.dy_dgrad.stochastic = r.dy_wgrad.stochastic = true;
    if (fp4_ && !sr_grad_) r.dy_dgrad.stochastic = r.dy_wgrad.stochastic = false;
    if (stochastic_) r.x_forward.stochastic = r.w_forward.stochastic = r.w_dgrad.stochastic = r.x_wgrad.stochastic = true;
    if (!o_.output.value_or(true)) r.x_forward = r.w_forward = {};
    if (!o_.grad_input.value_or(true)) r.dy_dgrad = r.w_dgrad = {};
    if (!o_.grad_weight.value_or(true) || wgrad_hp_) r.dy_wgrad = r.x_wgrad = {};
    if (activation_ != "none") {
      r.x_forward = detail::rows(Element::int8);
      r.x_forward.stochastic = activation_ == "int8_sr";
    }
    if (o_.round_scales_to_power_of_2) {
      for (const Operand operand : kOperands) {
        OperandSpec& s = r.*operand;
        if (s.quantized() && matches_any({"fp8_*"})) s.scale = *o_.round_scales_to_power_of_2 ? ScaleFormat::fp32_pow2 : ScaleFormat::fp32;
      }
    }
    if (o_.fast_accum) apply_fast_accum(r);
    r.dge = dge_, r.emulate = o_.emulate;
    result_.lora_rank = lora_;
  }

  void apply_blocks(LinearRecipe& r) {
    const OperandSpec element = r.w_forward;
    const int n = element.block;
    OperandSpec block = detail::block(element.element, n, element.scale), tile = detail::tile(element.element, n, element.scale);
    for (OperandSpec* s : {&block, &tile}) {
      s->two_level = two_level_ == "tensorwise" ? TwoLevel::tensor : two_level_ == "blockwise" ? TwoLevel::macro : TwoLevel::none;
      s->chain = torchao_ ? Fp4Chain::torchao : Fp4Chain::alto;
      if (uos_) s->mode = ScaleMode::uos;
      if (o_.scale_mode) s->mode = scale_mode(*o_.scale_mode);
    }
    r.x_forward = x_2d_ ? tile : block;
    r.dy_dgrad = x_2d_ ? tile : block;
    r.w_forward = w_2d_ ? tile : block;
    r.w_dgrad = w_2d_ ? detail::again(tile) : block;
    OperandSpec wgrad = x_2d_ ? detail::again(tile) : block;
    wgrad.clip = clip_ == "static" ? Clip::fixed : clip_ == "dynamic" ? Clip::dynamic : Clip::none;
    wgrad.hadamard = !hadamard_ ? 0 : torchao_ ? 16 : 32;
    r.x_wgrad = r.dy_wgrad = wgrad;
    if (fp4_ && scheme_ != "mxfp4" && two_level_ == "none") {
      // Block scales between the floor of ALTO's chain and the format's largest number (numerics.md 3.4, 3.6); a quarter of the floor is
      // the middle between codes 0 and 1.
      const bool wide = element.scale == ScaleFormat::ue5m3;
      result_.warnings.push_back(
          fmt::format("quantize: {} without two_level_scaling = tensorwise (from {}): elements below {} become zero, those above {} "
                      "saturate; gradients "
                      "are often smaller",
                      scheme_, module_, wide ? "2^-19 (1.9e-6)" : "2^-8 (0.004)", wide ? "688128" : "2688"));
    }
  }

  static constexpr std::array<std::pair<std::string_view, ScaleMode>, 5> kScaleModes = {{{"floor", ScaleMode::floor},
                                                                                         {"ceil", ScaleMode::ceil},
                                                                                         {"rceil", ScaleMode::rceil},
                                                                                         {"even", ScaleMode::even},
                                                                                         {"adaptive", ScaleMode::adaptive}}};
  static ScaleMode scale_mode(const std::string& name) {
    for (const auto& [text, mode] : kScaleModes) {
      if (name == text) return mode;
    }
    return ScaleMode::none;
  }

  // LayerRecipe::options.
  void list_options() {
    const auto say = [&](bool on, std::string option) {
      if (on) result_.options.push_back(std::move(option));
    };
    const auto set = [&](bool on, const char* option, const auto& value) {
      if (on) say(true, fmt::format("{} = {}", option, value));
    };
    const LinearRecipe& r = result_.linear;
    say(blocks_ && x_2d_, "use_2dblock_x"), say(blocks_ && w_2d_, "use_2dblock_w");
    say(hadamard_, "use_hadamard"), say(sr_grad_, "use_sr_grad"), say(dge_, "use_dge"), say(uos_, "use_uos"), say(wgrad_hp_, "wgrad_hp");
    for (const auto& [text, mode] : kScaleModes) set(blocks_ && r.w_forward.mode == mode, "scale_mode", text);
    set(two_level_ != "none", "two_level_scaling", two_level_), set(clip_ != "none", "clip_mode", clip_), set(torchao_, "style", style_);
    say(stochastic_, "stochastic_rounding"), set(activation_ != "none", "activation", activation_);
    set(!o_.output.value_or(true), "output", false), set(!o_.grad_input.value_or(true), "grad_input", false);
    set(!o_.grad_weight.value_or(true), "grad_weight", false);
    if (o_.fast_accum) set(true, "fast_accum", fmt::format("[{}]", fmt::join(*o_.fast_accum, ", ")));
    if (o_.round_scales_to_power_of_2 && matches_any({"fp8_*"})) set(true, "round_scales_to_power_of_2", *o_.round_scales_to_power_of_2);
    set(lora_ > 0, "lora_rank", lora_), set(result_.deosc.step > 0, "deosc_step", result_.deosc.step), say(o_.emulate, "emulate");
  }

  void apply_fast_accum(LinearRecipe& r) const {
    constexpr std::array<std::string_view, 3> kProducts = {"forward", "dgrad", "wgrad"};
    r.fast_accum = {};
    for (const std::string& name : *o_.fast_accum) {
      const auto it = std::find(kProducts.begin(), kProducts.end(), name);
      if (it == kProducts.end()) refuse("fast_accum", "expected a list of {}, found '{}'", fmt::join(kProducts, ", "), name);
      r.fast_accum[static_cast<size_t>(it - kProducts.begin())] = true;
    }
    if (r.fast_accum[2] && !r.x_wgrad.quantized()) refuse("fast_accum", "wgrad has no fp8 product in this recipe");
  }

  const RecipeOptions& o_;
  const std::string &scheme_, &module_;
  LayerRecipe result_;
  bool fp4_ = false, blocks_ = false, torchao_ = false;
  bool x_2d_ = false, w_2d_ = true, wgrad_hp_ = false, hadamard_ = false, sr_grad_ = false, dge_ = false, uos_ = false, stochastic_ = false;
  std::string style_, two_level_, clip_, activation_;
  int64_t lora_ = 0;
};

}  // namespace

LayerRecipe layer_recipe(const std::string& scheme, const RecipeOptions& options, const std::string& module) {
  return Resolved(scheme, options, module).run();
}

}  // namespace halftone::nn
