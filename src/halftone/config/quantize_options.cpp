#include "halftone/config/quantize_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/config/layer_recipe.h"
#include "halftone/formats/fp4_scale.h"
#include "halftone/formats/names.h"

namespace halftone {

// The options of one scheme.
class SchemeOptions {
 public:
  SchemeOptions(const Scheme& row, const RecipeOptions& options) : scheme(row), o(options), index_(index_options(o)) {}
  SchemeOptions(const SchemeOptions&) = delete;

  const FieldEntry& field(std::string_view option) const { return *index_.find_field(fmt::format("quantize.{}", option)); }
  bool has(std::string_view option) const { return takes(field(option), nullptr); }
  bool takes(const FieldEntry& option, const Json& value) const { return takes(scheme, option, value); }
  static bool takes(const Scheme& scheme, const FieldEntry& option, const Json& value) {
    if (option.info.scope == Scope::run || option.info.scope == Scope::rule) return true;
    const auto own = scheme.find_option(leaf_of(option.name));
    return own && (own->empty() || !asks(option, value) || value == *own);
  }
  // Null where unset, or where the scheme has not got it: then it is another scheme's.
  Json value(std::string_view option) const {
    const Json set = get_value(field(option));
    return takes(field(option), set) ? set : Json(nullptr);
  }
  // Whether the value requests something: not the default, and not false, none or 0 unless the default is true.
  static bool asks(const FieldEntry& option, const Json& value) {
    const Json& usual = default_value(option.name);
    const bool nothing = value.is_null() || value == false || value == "none" || value == 0;
    return value != usual && (usual == true || !nothing);
  }
  bool on(std::string_view option) const {
    const Json set = value(option);
    return !set.is_null() && asks(field(option), set);
  }
  // The value of an unset option. Null: the row's operands say it.
  Json preset(std::string_view option) const {
    const std::string_view alto = field(option).info.alto;
    const auto own = on("style")                 ? find_word(scheme.torchao, option)
                     : o.preset == "recommended" ? scheme.find_recommended(option)
                                                 : std::nullopt;
    return own ? parse_scalar(*own) : alto.empty() ? Json(nullptr) : parse_scalar(alto);
  }
  // The value with which the scheme runs.
  Json resolved(std::string_view option) const {
    const Json set = value(option);
    if (!set.is_null() || !has(option)) return set;
    return excluded(option) ? parse_scalar(field(option).info.alto) : preset(option);
  }
  // Whether another option that is on leaves no place for this one.
  bool excluded(std::string_view option) const {
    const auto row = std::ranges::find(recipe_options(), option, &RecipeOption::name);
    return std::ranges::any_of(row->excludes, [&](const auto& e) { return on(e.other); });
  }

  const Scheme& scheme;
  RecipeOptions o;

 private:
  ConfigIndex index_;
};

namespace {

using O = RecipeOptions;
using L = LayerRecipe;
using S = SchemeOptions;
using Objection = RecipeOption::Objection;
using Words = std::vector<std::string_view>;

std::array<OperandSpec*, 6> operands_of(L& l) {
  LinearRecipe& r = l.linear;
  return {&r.x_forward, &r.w_forward, &r.dy_dgrad, &r.w_dgrad, &r.dy_wgrad, &r.x_wgrad};
}
void set_all(L& l, auto OperandSpec::*property, auto value) {
  for (OperandSpec* s : operands_of(l)) s->*property = value;
}
void set_wgrad(L& l, auto OperandSpec::*property, auto value) { l.linear.dy_wgrad.*property = l.linear.x_wgrad.*property = value; }
void leave_hp(OperandSpec& a, OperandSpec& b, bool leave) {
  if (leave) a = b = {};
}
// In square blocks wgrad, and dgrad for W, read the earlier product's codes.
void set_blocks(bool square, std::initializer_list<OperandSpec*> earlier, std::initializer_list<OperandSpec*> later) {
  for (OperandSpec* s : earlier) s->granularity = square ? Granularity::tile : Granularity::block;
  for (OperandSpec* s : later) s->granularity = square ? Granularity::tile : Granularity::block, s->same_as_forward = square;
}

Objection deosc_detail(const S& s, std::string_view option) {
  const Json set = s.value(option);
  if (set.is_null() || set == s.preset(option) || s.resolved("deosc_step") > 0) return {};
  return {" has no effect while quantize.deosc_step is 0", "deosc_step"};
}

Objection rotation_detail(const S& s, std::string_view option) {
  if (s.value(option).is_null()) return {};
  if (s.on("style")) return {" does not go with quantize.style = torchao, which fixes the transform", "style"};
  if (!s.has("use_hadamard") || s.resolved("use_hadamard") == true) return {};
  return {" has no effect without quantize.use_hadamard", "use_hadamard"};
}

Words schemes_with(std::string_view option) {
  Words names;
  for (const Scheme& s : kLinearRecipes) {
    if (s.find_option(option)) names.push_back(s.name);
  }
  return names;
}

std::vector<RecipeOption> option_rows() {
  std::vector<RecipeOption> rows;
  // alto: the value in preset "alto" when unset; empty: the scheme's operands say it.
  const auto row = [&](std::string_view name, auto member, std::string_view alto, std::string_view help, const Words& choices = {},
                       Scope scope = Scope::operands, std::optional<double> min = {}) -> RecipeOption& {
    FieldInfo info = {.mark = Mark::E, .choices = choices, .min = min, .scope = scope, .schemes = schemes_with(name), .alto = alto};
    return rows.emplace_back(RecipeOption{name, member, help, std::move(info)});
  };
  constexpr std::string_view kNotQuantised = "the operands of the weight gradient are not quantised";
  constexpr std::string_view kOneOfTwo = "one operand of the weight gradient is not quantised";
  constexpr std::string_view kNoCodes = "the forward GEMM reads no codes of W";
  row("use_2dblock_x", &O::use_2dblock_x, "false", "square scale blocks for X and dY").apply = [](L& l, const O& o) {
    set_blocks(*o.use_2dblock_x, {&l.linear.x_forward, &l.linear.dy_dgrad}, {&l.linear.x_wgrad, &l.linear.dy_wgrad});
  };
  row("use_2dblock_w", &O::use_2dblock_w, "true", "square scale blocks for W").apply = [](L& l, const O& o) {
    set_blocks(*o.use_2dblock_w, {&l.linear.w_forward}, {&l.linear.w_dgrad});
  };
  row("use_hadamard", &O::use_hadamard, "false", "random Hadamard transform over tokens, on X and dY of wgrad").apply =
      [](L& l, const O& o) { set_wgrad(l, &OperandSpec::hadamard, *o.use_hadamard ? 32 : 0); };
  rows.back().excludes = {{"use_2dblock_x", "no 1-D operand of the weight gradient is left to rotate"},
                          {"wgrad_hp", kNotQuantised},
                          {"grad_weight", kNotQuantised},
                          {"x_hp", kOneOfTwo},
                          {"dy_hp", kOneOfTwo}};
  row("hadamard_width", &O::hadamard_width, "", "elements that a Hadamard transform mixes: 16, 32, 64 or 128").apply = [](L& l,
                                                                                                                          const O& o) {
    for (OperandSpec* s : operands_of(l)) s->hadamard = s->hadamard != 0 ? static_cast<int>(*o.hadamard_width) : 0;
  };
  rows.back().objection = [](const S& s) -> Objection {
    const Json set = s.value("hadamard_width");
    if (!set.is_null() && set != 16 && set != 32 && set != 64 && set != 128)
      return {fmt::format(" must be 16, 32, 64 or 128, found {}", plain_text(set))};
    return rotation_detail(s, "hadamard_width");
  };
  row("hadamard_signs", &O::hadamard_signs, "", "signs of a Hadamard transform: drawn every step, none, or torchao's 16",
      words_of(kSignsNames))
      .apply = [](L& l, const O& o) { set_all(l, &OperandSpec::signs, *find_named(kSignsNames, *o.hadamard_signs)); };
  rows.back().objection = [](const S& s) -> Objection {
    if (s.value("hadamard_signs") == "torchao" && s.value("hadamard_width") != 16)
      return {" = torchao needs quantize.hadamard_width = 16", "hadamard_width"};
    return rotation_detail(s, "hadamard_signs");
  };
  row("use_sr_grad", &O::use_sr_grad, "false", "stochastic rounding of dY").apply = [](L& l, const O& o) {
    l.linear.dy_dgrad.stochastic = l.linear.dy_wgrad.stochastic = *o.use_sr_grad;
  };
  rows.back().excludes = {{"dy_hp", "dY is not quantised"}};
  rows.back().objection = [](const S& s) -> Objection {
    if (s.has("grad_input") && s.on("use_sr_grad") && !s.o.grad_input && (!s.o.grad_weight || s.on("wgrad_hp")))
      return {fmt::format(" has no effect with quantize.grad_input = false and quantize.{}: no gradient is quantised",
                          s.o.grad_weight ? "wgrad_hp" : "grad_weight = false")};
    if (!s.on("stochastic_rounding") || !s.o.use_sr_grad) return {};
    return {" has no effect beside quantize.stochastic_rounding, which rounds every quantised operand so; leave it unset",
            "stochastic_rounding"};
  };
  row("use_dge", &O::use_dge, "false", "differentiable gradient estimator on dW").apply = [](L& l, const O& o) {
    l.linear.dge = *o.use_dge;
  };
  rows.back().excludes = {{"output", kNoCodes}, {"w_hp", kNoCodes}};
  row("two_level_scaling", &O::two_level_scaling, "none", "second level of scales: tensorwise (nvfp4, amdfp4, nvint4), blockwise (mxfp4)",
      words_of(kTwoLevelNames))
      .apply = [](L& l, const O& o) { set_all(l, &OperandSpec::two_level, *find_named(kTwoLevelNames, *o.two_level_scaling)); };
  row("clip_mode", &O::clip_mode, "none", "clipping of the wgrad operands", words_of(kClipNames)).apply = [](L& l, const O& o) {
    set_wgrad(l, &OperandSpec::clip, *find_named(kClipNames, *o.clip_mode));
  };
  rows.back().excludes = {{"use_2dblock_x", "it clips 1-D operands of the weight gradient"},
                          {"use_uos", "scales of that rule are not clipped"},
                          {"wgrad_hp", kNotQuantised},
                          {"grad_weight", kNotQuantised},
                          {"x_hp", kOneOfTwo},
                          {"dy_hp", kOneOfTwo},
                          {"two_level_scaling", "which already brings each block to the largest code"}};
  rows.back().objection = [](const S& s) -> Objection {
    if (s.value("clip_mode") != "dynamic" || s.resolved("use_hadamard") == true) return {};
    return {" = dynamic needs quantize.use_hadamard: it assumes rotated data", "use_hadamard"};
  };
  row("use_uos", &O::use_uos, "false", "scale rule with target 7.25").apply = [](L& l, const O& o) {
    set_all(l, &OperandSpec::mode, *o.use_uos ? ScaleMode::uos : l.linear.w_forward.mode);
  };
  rows.back().excludes = {{"scale_mode", "it is a scale rule of its own"}};
  row("scale_mode", &O::scale_mode, "", "scale rule", {"floor", "ceil", "rceil", "even", "adaptive"}).apply = [](L& l, const O& o) {
    set_all(l, &OperandSpec::mode, *find_named(kScaleModeNames, *o.scale_mode));
  };
  row("scale_choice", &O::scale_choice, "none",
      "block scales: none = amax / 6; four_over_six = amax / 6 or amax / 4, whichever has the smaller error", {"none", "four_over_six"})
      .apply = [](L& l, const O& o) {
    const bool chosen = *o.scale_choice != "none";
    set_all(l, &OperandSpec::choice, chosen ? *find_named(kScaleChoiceNames, o.scale_choice_error.value_or("squared")) : ScaleChoice::amax);
  };
  row("scale_choice_error", &O::scale_choice_error, "", "error of a block that quantize.scale_choice compares",
      words_of(kScaleChoiceNames));
  rows.back().objection = [](const S& s) -> Objection {
    if (s.value("scale_choice_error").is_null() || s.resolved("scale_choice") == "four_over_six") return {};
    return {" has no effect without quantize.scale_choice = four_over_six", "scale_choice"};
  };
  row("style", &O::style, "", "alto, or torchao = torchao's NVFP4 recipe", words_of(kChainNames)).apply = [](L& l, const O& o) {
    set_all(l, &OperandSpec::chain, *find_named(kChainNames, o.style));
    if (l.linear.w_forward.chain == Fp4Chain::torchao)
      set_wgrad(l, &OperandSpec::hadamard, 16), set_wgrad(l, &OperandSpec::signs, Signs::torchao);
  };
  row("wgrad_hp", &O::wgrad_hp, "false", "wgrad operands stay bf16").apply = [](L& l, const O& o) {
    leave_hp(l.linear.dy_wgrad, l.linear.x_wgrad, *o.wgrad_hp);
  };
  row("stochastic_rounding", &O::stochastic_rounding, "", "stochastic rounding of every quantized operand").apply = [](L& l, const O& o) {
    if (o.stochastic_rounding) set_all(l, &OperandSpec::stochastic, true);
  };
  row("output", &O::output, "", "quantize the forward GEMM").apply = [](L& l, const O& o) {
    leave_hp(l.linear.x_forward, l.linear.w_forward, !o.output);
    if (!o.output) l.linear.w_dgrad.same_as_forward = l.linear.x_wgrad.same_as_forward = false;
  };
  row("grad_input", &O::grad_input, "", "quantize the dgrad GEMM").apply = [](L& l, const O& o) {
    leave_hp(l.linear.dy_dgrad, l.linear.w_dgrad, !o.grad_input);
    if (!o.grad_input) l.linear.dy_wgrad.same_as_forward = false;
  };
  row("grad_weight", &O::grad_weight, "", "quantize the wgrad GEMM").apply = [](L& l, const O& o) {
    leave_hp(l.linear.dy_wgrad, l.linear.x_wgrad, !o.grad_weight);
  };
  rows.back().excludes = {{"wgrad_hp", "both leave the weight gradient in the compute dtype; drop one"}};
  row("x_hp", &O::x_hp, "false", "X stays in the compute dtype, in forward and wgrad").apply = [](L& l, const O& o) {
    leave_hp(l.linear.x_forward, l.linear.x_wgrad, *o.x_hp);
  };
  row("w_hp", &O::w_hp, "false", "W stays in the compute dtype, in forward and dgrad").apply = [](L& l, const O& o) {
    leave_hp(l.linear.w_forward, l.linear.w_dgrad, *o.w_hp);
  };
  row("dy_hp", &O::dy_hp, "false", "dY stays in the compute dtype, in dgrad and wgrad").apply = [](L& l, const O& o) {
    leave_hp(l.linear.dy_dgrad, l.linear.dy_wgrad, *o.dy_hp);
  };
  row("activation", &O::activation, "", "quantization of activations in a weight-only scheme", {"none", "int8", "int8_sr"}).apply =
      [](L& l, const O& o) {
        if (o.activation != "none") l.linear.x_forward = detail::rows(Element::int8);
        l.linear.x_forward.stochastic = o.activation == "int8_sr";
      };
  row("fast_accum", &O::fast_accum, "", "GEMMs with fast accumulation", {"forward", "dgrad", "wgrad"}).apply = [](L& l, const O& o) {
    const auto fast = [&](const char* product) { return std::count(o.fast_accum->begin(), o.fast_accum->end(), product) > 0; };
    l.linear.fast_accum = {fast("forward"), fast("dgrad"), fast("wgrad")};
  };
  rows.back().objection = [](const S& s) -> Objection {
    const Json set = s.value("fast_accum");
    if (std::count(set.begin(), set.end(), "wgrad") == 0 || s.scheme.x_wgrad.quantized()) return {};
    return {fmt::format(": wgrad has no fp8 product in quantize.scheme = {}; leave it out", s.scheme.name)};
  };
  row("round_scales_to_power_of_2", &O::round_scales_to_power_of_2, "", "power-of-two scales").apply = [](L& l, const O& o) {
    const ScaleFormat format = *o.round_scales_to_power_of_2 ? ScaleFormat::fp32_pow2 : ScaleFormat::fp32;
    for (OperandSpec* s : operands_of(l)) s->scale = s->quantized() ? format : s->scale;
  };
  row("lora_rank", &O::lora_rank, "0", "rank of the low-rank side branch", {}, Scope::layer, 0).apply = [](L& l, const O& o) {
    l.lora_rank = *o.lora_rank;
  };
  rows.back().objection = [](const S& s) -> Objection {
    const int64_t rank = s.o.lora_rank.value_or(0), unit = s.scheme.dim_multiple;
    if (!s.on("lora_rank") || rank % unit == 0) return {};
    return {fmt::format(" must be a multiple of {} with quantize.scheme = {}, found {}", unit, s.scheme.name, rank)};
  };
  row("deosc_step", &O::deosc_step, "0", "first step of weight de-oscillation; 0 = never", {}, Scope::layer, 0).apply =
      [](L& l, const O& o) { l.deosc.step = *o.deosc_step; };
  rows.back().excludes = {{"output", kNoCodes}, {"w_hp", kNoCodes}};
  row("deosc_period", &O::deosc_period, "200", "de-oscillation window in steps", {}, Scope::layer, 1).apply = [](L& l, const O& o) {
    l.deosc.period = *o.deosc_period;
  };
  rows.back().objection = [](const S& s) { return deosc_detail(s, "deosc_period"); };
  row("deosc_ratio", &O::deosc_ratio, "4", "de-oscillation reset threshold, 4 to 32", {}, Scope::layer).apply = [](L& l, const O& o) {
    l.deosc.ratio = *o.deosc_ratio;
  };
  rows.back().objection = [](const S& s) -> Objection {
    const Json set = s.value("deosc_ratio");
    if (set.is_null() || (set >= 4 && set <= 32)) return deosc_detail(s, "deosc_ratio");
    return {fmt::format(" must be a number from 4 to 32, found {}", *s.o.deosc_ratio)};
  };
  row("deosc_log_freq", &O::deosc_log_freq, "1", "de-oscillation windows between log lines; 0 = never", {}, Scope::layer, 0).apply =
      [](L& l, const O& o) { l.deosc.log_freq = *o.deosc_log_freq; };
  rows.back().objection = [](const S& s) { return deosc_detail(s, "deosc_log_freq"); };
  row("preset", &O::preset, "", "values of unset options: recommended, or alto", {"recommended", "alto"}, Scope::rule);
  row("emulate", &O::emulate, "", "reference arithmetic on dequantized values", {}, Scope::run).apply = [](L& l, const O& o) {
    l.linear.emulate = o.emulate;
  };
  return rows;
}

// "none" with the name under which a layer of a table stays unquantised.
std::optional<Scheme> find_scheme(std::string_view name) { return find_linear_recipe(name == "bf16" ? "none" : name); }

std::vector<Refusal> refusals_of(RecipeOptions options, const Words& names, std::span<const Scheme> schemes) {
  std::vector<Refusal> found;
  const auto refuse = [&](std::string_view option, std::string_view other, const std::string& text) {  // text: behind the option's name
    Refusal r{fmt::format("quantize.{}", option), other.empty() ? "" : fmt::format("quantize.{}", other), ""};
    r.text = r.option + text;
    const bool known = std::any_of(found.begin(), found.end(), [&](const Refusal& f) { return f.text == r.text; });
    if (!known) found.push_back(std::move(r));  // one line for several schemes
  };
  const std::string all = join(names);
  for (const FieldEntry& field : index_options(options).fields) {
    const Json value = get_value(field);
    const std::string_view option = leaf_of(field.name);
    if (const std::string wrong = set_value(field, value); !wrong.empty()) refuse(option, "", ": " + wrong);
    const auto takes = [&](const Json& v) {
      return std::any_of(schemes.begin(), schemes.end(), [&](const Scheme& s) { return S::takes(s, field, v); });
    };
    if (!S::asks(field, value) || takes(value)) continue;
    if (takes(nullptr))  // another value of it
      refuse(option, "", fmt::format(" = {} does not go with quantize.scheme = {} ({})", plain_text(value), all, field.help));
    else
      refuse(option, "",
             fmt::format(": legal with {} only, found {} with quantize.scheme = {}; leave it unset", join(field.info.schemes),
                         plain_text(value), all));
  }
  for (const Scheme& scheme : schemes) {
    const S s(scheme, options);
    const auto off = [&](std::string_view option) { return s.value(option) == false ? " = false" : ""; };
    for (const RecipeOption& row : recipe_options()) {
      for (const auto& [other, why] : row.excludes) {
        if (!s.on(row.name) || !s.on(other)) continue;
        refuse(row.name, other, fmt::format("{} does not go with quantize.{}{}: {}", off(row.name), other, off(other), why));
      }
      const Json set = s.value(row.name);
      const auto fixed = s.on("style") ? find_word(scheme.torchao, row.name) : std::nullopt;
      if (fixed && !set.is_null() && set != parse_scalar(*fixed))
        refuse(row.name, "style",
               fmt::format(" = {} contradicts quantize.style = torchao, which fixes it; leave it unset", plain_text(set)));
      const Objection objection = row.objection ? row.objection(s) : Objection{};
      if (!objection.text.empty()) refuse(row.name, objection.other, objection.text);
    }
    if (options.auto_filter_small_kn && !scheme.too_small(1, 1))
      refuse("auto_filter_small_kn", "", fmt::format(" has no thresholds for quantize.scheme = {}; name the layers instead", scheme.name));
  }
  return found;
}

// torchtitan's recipes of its converters.
struct ConverterRecipe {
  std::string_view converter, kind, recipe, scheme, options;
};
constexpr ConverterRecipe kConverterRecipes[] = {
    {"quantize.linear.float8", "Linear", "tensorwise", "fp8_tensorwise", ""},
    {"quantize.linear.float8", "Linear", "rowwise", "fp8_rowwise", ""},
    {"quantize.linear.float8", "Linear", "rowwise_with_gw_hp", "fp8_rowwise_with_gw_hp", ""},
    {"quantize.linear.mx", "Linear", "mxfp8_cublas", "mxfp8_e4m3", "use_2dblock_w=false scale_mode=floor"},
    {"quantize.linear.mx", "Linear", "mxfp8_cublas_rceil", "mxfp8_e4m3", "use_2dblock_w=false scale_mode=rceil"},
    {"quantize.linear.mx", "Linear", "mxfp8_emulated", "mxfp8_e4m3", "use_2dblock_w=false scale_mode=floor emulate=true"},
    {"quantize.grouped_mm.float8", "GroupedExperts", "", "fp8_rowwise", ""},
    {"quantize.grouped_mm.mx", "GroupedExperts", "mxfp8", "mxfp8_e4m3", ""},
};

}  // namespace

const std::vector<RecipeOption>& recipe_options() {
  static const std::vector<RecipeOption> rows = option_rows();
  return rows;
}

const std::vector<std::string_view>& quantize_schemes() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    for (const Scheme& s : kLinearRecipes) all.push_back(s.name);
    all.insert(all.begin() + 1, "bf16");  // behind none
    return all;
  }();
  return names;
}

std::vector<std::string_view> schemes_of(const QuantizeScheme& scheme) {
  std::vector<std::string_view> names;
  for (const auto& [name, targets] : scheme.table) names.push_back(name);
  if (names.empty()) names.push_back(scheme.name);
  return names;
}

bool scheme_takes(std::string_view scheme, const FieldEntry& option, const Json& value) {
  const std::optional<Scheme> row = find_scheme(scheme);
  return row && SchemeOptions::takes(*row, option, value);
}

std::string plain_text(const Json& value) { return value.is_string() ? value.get<std::string>() : to_toml_text(value); }

std::vector<Refusal> refusals(const RecipeOptions& options, const std::vector<std::string_view>& names) {
  std::vector<Scheme> schemes;
  for (const std::string_view name : names) {
    if (const std::optional<Scheme> row = find_scheme(name)) schemes.push_back(*row), schemes.back().name = name;
  }
  return refusals_of(options, names, schemes);
}

LayerRecipe layer_recipe(const std::string& scheme, const RecipeOptions& options, const std::string& module) {
  const std::optional<Scheme> found = find_scheme(scheme);
  check(found.has_value(), "quantize.scheme: unknown scheme '{}' for {}; choose one of {}", scheme, module, join(quantize_schemes()));
  return layer_recipe(*found, options, module);
}

LayerRecipe layer_recipe(const Scheme& scheme, const RecipeOptions& options, const std::string& module) {
  const std::vector<Refusal> refused = refusals_of(options, {scheme.name}, {&scheme, 1});
  if (!refused.empty()) fail("{} (scheme {}, {})", refused[0].text, scheme.name, module);
  S s(scheme, options);
  const S asked(scheme, options);
  LayerRecipe result;
  result.linear = scheme, result.scheme = scheme, result.deosc_asked = options.deosc_step.has_value();
  for (const RecipeOption& row : recipe_options()) {  // unset options take the preset's value, unless a set one excludes it
    if (!s.has(row.name) || !s.value(row.name).is_null()) continue;
    if (const Json v = s.resolved(row.name); !v.is_null()) set_value(s.field(row.name), v);
  }
  if (s.has("scale_mode") && !s.o.scale_mode && !s.on("use_uos")) s.o.scale_mode = name_of(kScaleModeNames, scheme.w_forward.mode);
  for (const RecipeOption& row : recipe_options()) {
    const Json v = s.value(row.name);
    if (v.is_null() || !s.has(row.name)) continue;
    if (row.apply) row.apply(result, s.o);
    // Without a value in preset "alto" the scheme's own default may be on, so that false and empty are reported too.
    const bool on = row.info.alto.empty() ? v != default_value(s.field(row.name).name) : s.on(row.name);
    const bool detail = row.info.scope == Scope::layer && asked.value(row.name).is_null() && v == parse_scalar(row.info.alto);
    if (!on || detail || row.info.scope == Scope::rule) continue;
    result.options.push_back(v == true ? std::string(row.name) : fmt::format("{} = {}", row.name, plain_text(v)));
  }
  if (scheme.w_forward.two_level == TwoLevel::tensor && result.linear.w_forward.two_level == TwoLevel::none) {
    // Block scales between the floor of ALTO's chain and the format's largest number (numerics.md 3.4, 3.6); a quarter of the floor, of
    // integers half, is the midpoint between codes 0 and 1.
    const OperandSpec& w = scheme.w_forward;
    const char* least = w.scale == ScaleFormat::ue5m3 ? "2^-19 (1.9e-6)" : w.element == Element::int4 ? "2^-7 (0.008)" : "2^-8 (0.004)";
    result.warnings.push_back(fmt::format(
        "quantize: {} without two_level_scaling = tensorwise (from {}): elements below {} become zero, those above {} saturate; gradients "
        "are often smaller",
        scheme.name, module, least, fp4_range(w)));
  }
  return result;
}

std::optional<Converter> find_converter(const QuantizeConfig& q, const std::string& name) {
  Converter c;
  std::string recipe;
  if (name == "quantize.linear.float8") {
    recipe = q.linear.float8.recipe_name.value_or("tensorwise"), c.ignore = q.linear.float8.filter_fqns;
    c.options.emulate = q.linear.float8.emulate;
  } else if (name == "quantize.linear.mx") {
    recipe = q.linear.mx.recipe_name, c.ignore = q.linear.mx.filter_fqns;
  } else if (name == "quantize.grouped_mm.float8") {
    c.targets = q.grouped_mm.float8.fqns;
  } else if (name == "quantize.grouped_mm.mx") {
    recipe = q.grouped_mm.mx.recipe_name, c.targets = q.grouped_mm.mx.fqns;
  }
  for (const ConverterRecipe& row : kConverterRecipes) {
    if (row.converter != name || row.recipe != recipe) continue;
    c.scheme = row.scheme, c.kind = row.kind;
    c.options.preset = "alto";  // no option that the row does not set
    for (const FieldEntry& option : index_options(c.options).fields) {
      if (const auto value = find_word(row.options, leaf_of(option.name))) set_value(option, parse_scalar(*value));
    }
    c.options.emulate = c.options.emulate || q.emulate;
    c.options.auto_filter_small_kn = std::erase(c.ignore, "auto_filter_small_kn") > 0;  // no part of a name
    const bool experts = row.kind == "GroupedExperts";
    c.filter = name + (experts ? ".fqns" : ".filter_fqns");
    if (!experts) c.targets = {""};  // every name contains it
    return c;
  }
  return std::nullopt;
}

}  // namespace halftone
