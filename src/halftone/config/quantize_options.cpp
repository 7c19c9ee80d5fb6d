#include "halftone/config/quantize_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "halftone/formats/recipe.h"

namespace halftone {
namespace {

// Options of one scheme that exclude each other, and why.
struct Pair {
  std::string_view option, other, why;
};
constexpr Pair kPairs[] = {
    {"use_hadamard", "use_2dblock_x", "no 1-D operand of the weight gradient is left to rotate"},
    {"use_hadamard", "wgrad_hp", "the operands of the weight gradient are not quantised"},
    {"clip_mode", "use_2dblock_x", "it clips 1-D operands of the weight gradient"},
    {"clip_mode", "use_uos", "scales of that rule are not clipped"},
    {"clip_mode", "wgrad_hp", "the operands of the weight gradient are not quantised"},
    {"clip_mode", "two_level_scaling", "which already brings each block to the largest code"},
    {"use_uos", "scale_mode", "it is a scale rule of its own"},
};
// Options that style = torchao fixes.
constexpr std::pair<std::string_view, std::string_view> kTorchao[] = {
    {"use_2dblock_x", "false"}, {"use_dge", "false"},    {"use_2dblock_w", "true"},           {"wgrad_hp", "false"},
    {"use_hadamard", "true"},   {"use_sr_grad", "true"}, {"two_level_scaling", "tensorwise"},
};

class Legality {
 public:
  explicit Legality(const RecipeOptions& options) : o_(options), index_(index_options(o_)) {}

  std::vector<Refusal> run(const std::vector<std::string_view>& schemes) {
    for (const FieldEntry& field : index_.fields) check_field(field, schemes);
    for (const std::string_view scheme : schemes) check_scheme(scheme);
    return std::move(found_);
  }

 private:
  // The text follows the option's name.
  template <class... Args>
  void refuse(std::string_view option, std::string_view other, fmt::format_string<Args...> format, Args&&... args) {
    const std::string name = fmt::format("quantize.{}", option);
    Refusal r{name, other.empty() ? "" : fmt::format("quantize.{}", other), name + fmt::format(format, std::forward<Args>(args)...)};
    const bool known = std::any_of(found_.begin(), found_.end(), [&](const Refusal& f) { return f.text == r.text; });
    if (!known) found_.push_back(std::move(r));  // one line for several schemes
  }

  void check_field(const FieldEntry& field, const std::vector<std::string_view>& schemes) {
    const Json value = get_value(field);
    if (const std::string wrong = set_value(field, value); !wrong.empty()) refuse(leaf_of(field.name), "", ": {}", wrong);
    const auto takes = [&](const Json& v) {
      return std::any_of(schemes.begin(), schemes.end(), [&](std::string_view s) { return scheme_takes(s, field, v); });
    };
    if (!asks(field, value) || takes(value)) return;
    if (takes(nullptr)) {  // another value of it
      refuse(leaf_of(field.name), "", " = {} does not go with quantize.scheme = {} ({})", plain_text(value), join(schemes), field.help);
    } else {
      refuse(leaf_of(field.name), "", ": legal with {} only, found {} with quantize.scheme = {}; leave it unset", join(field.info.schemes),
             plain_text(value), join(schemes));
    }
  }

  void check_scheme(std::string_view scheme) {
    const auto field = [&](std::string_view option) -> const FieldEntry& { return *index_.find_field(fmt::format("quantize.{}", option)); };
    const auto value = [&](std::string_view option) {  // null where the scheme has not got it: then it is another scheme's
      const Json set = get_value(field(option));
      return scheme_takes(scheme, field(option), set) ? set : Json(nullptr);
    };
    const auto on = [&](std::string_view option) { return asks(field(option), value(option)); };
    const auto has = [&](std::string_view option) { return scheme_takes(scheme, field(option), nullptr); };
    const bool recommended = o_.preset == "recommended", torchao = on("style");
    for (const Pair& p : kPairs) {
      if (on(p.option) && on(p.other)) refuse(p.option, p.other, " does not go with quantize.{}: {}", p.other, p.why);
    }
    for (const auto& [option, fixed] : kTorchao) {
      const Json set = value(option);
      if (torchao && !set.is_null() && set != parse_scalar(fixed))
        refuse(option, "style", " = {} contradicts quantize.style = torchao, which fixes it; leave it unset", plain_text(set));
    }
    if (value("clip_mode") == "dynamic" && !o_.use_hadamard.value_or(recommended))
      refuse("clip_mode", "use_hadamard", " = dynamic needs quantize.use_hadamard: it assumes rotated data");
    if (has("stochastic_rounding") && on("use_sr_grad") && !o_.grad_input && !o_.grad_weight)
      refuse("use_sr_grad", "",
             " has no effect with quantize.grad_input = false and quantize.grad_weight = false: no gradient is quantised");
    if (on("stochastic_rounding") && o_.use_sr_grad)
      refuse("use_sr_grad", "stochastic_rounding",
             " has no effect beside quantize.stochastic_rounding, which rounds every quantised operand so; leave it unset");
    const int64_t rank = o_.lora_rank.value_or(0), unit = scheme.starts_with("mx") ? 32 : 16;
    if (on("lora_rank") && rank % unit != 0)
      refuse("lora_rank", "", " must be a multiple of {} with quantize.scheme = {}, found {}", unit, scheme, rank);
    if (const double ratio = o_.deosc_ratio.value_or(4); has("deosc_ratio") && !(ratio >= 4 && ratio <= 32))
      refuse("deosc_ratio", "", " must be a number from 4 to 32, found {}", ratio);
    const bool starts = o_.deosc_step.value_or(recommended && !torchao ? 1 : 0) > 0;  // numerics.md 7.3: the preset starts it, too
    for (const char* option : {"deosc_period", "deosc_ratio", "deosc_log_freq"}) {
      const Json set = value(option);
      if (!starts && !set.is_null() && set != parse_scalar(field(option).info.alto))
        refuse(option, "deosc_step", " has no effect while quantize.deosc_step is 0");
    }
    const std::optional<LinearRecipe> recipe = find_linear_recipe(scheme);
    const bool wgrad = o_.fast_accum && std::find(o_.fast_accum->begin(), o_.fast_accum->end(), "wgrad") != o_.fast_accum->end();
    if (wgrad && has("fast_accum") && recipe && !recipe->x_wgrad.quantized())
      refuse("fast_accum", "", ": wgrad has no fp8 product in quantize.scheme = {}; leave it out", scheme);
    if (o_.auto_filter_small_kn && scheme != "fp8_tensorwise" && scheme != "fp8_rowwise")
      refuse("auto_filter_small_kn", "", " has no thresholds for quantize.scheme = {}; name the layers instead", scheme);
  }

  RecipeOptions o_;
  ConfigIndex index_;
  std::vector<Refusal> found_;
};

}  // namespace

const std::vector<std::string_view>& quantize_schemes() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    for (const LinearRecipe& r : kLinearRecipes) all.push_back(r.name);
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
  // The two kinds of one option belong to different schemes.
  if (value == "tensorwise" && scheme == "mxfp4") return false;
  if (value == "blockwise" && scheme != "mxfp4") return false;
  const auto& schemes = option.info.schemes;
  return schemes.empty() || std::any_of(schemes.begin(), schemes.end(), [&](std::string_view s) {
           return s.ends_with('*') ? scheme.starts_with(s.substr(0, s.size() - 1)) : scheme == s;
         });
}

bool asks(const FieldEntry& option, const Json& value) {
  const Json& usual = default_value(option.name);
  const bool nothing = value.is_null() || value == false || value == "none" || value == 0;
  return value != usual && (usual == true || !nothing);
}

std::string plain_text(const Json& value) { return value.is_string() ? value.get<std::string>() : to_toml_text(value); }

std::vector<Refusal> refusals(const RecipeOptions& options, const std::vector<std::string_view>& schemes) {
  return Legality(options).run(schemes);
}

std::optional<Converter> linear_converter(const QuantizeConfig& q, const std::string& name) {
  Converter c;
  c.options.preset = "alto";  // no option that the converter does not set
  if (name == "quantize.linear.float8") {
    c.scheme = "fp8_" + q.linear.float8.recipe_name.value_or("tensorwise");
    c.options.emulate = q.linear.float8.emulate || q.emulate;
    c.ignore = q.linear.float8.filter_fqns;
  } else if (name == "quantize.linear.mx") {
    const std::string& recipe = q.linear.mx.recipe_name;
    c.scheme = "mxfp8_e4m3";
    c.options.use_2dblock_w = false;
    c.options.scale_mode = recipe == "mxfp8_cublas_rceil" ? "rceil" : "floor";
    c.options.emulate = recipe == "mxfp8_emulated" || q.emulate;
    c.ignore = q.linear.mx.filter_fqns;
  } else {
    return std::nullopt;
  }
  c.filter = name + ".filter_fqns";
  c.options.auto_filter_small_kn = std::erase(c.ignore, "auto_filter_small_kn") > 0;  // no part of a name
  return c;
}

}  // namespace halftone
