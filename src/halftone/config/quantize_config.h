#pragma once
#include <algorithm>

#include "halftone/config/field.h"

namespace halftone {

// [quantize], and torchtitan's converters in sections below it

struct LinearFloat8Config {
  bool enable_fsdp_float8_all_gather = false;
  std::optional<std::string> recipe_name;
  StringList filter_fqns;
  bool emulate = false;

  static void fields(auto& self, auto&& field) {
    field("enable_fsdp_float8_all_gather", self.enable_fsdp_float8_all_gather, "all-gather weights in fp8; tensorwise only");
    field("recipe_name", self.recipe_name, "none = tensorwise", {.choices = {"tensorwise", "rowwise", "rowwise_with_gw_hp"}});
    field("filter_fqns", self.filter_fqns, "parts of the names of modules to skip; auto_filter_small_kn = small layers", {.lenient = true});
    field("emulate", self.emulate, "reference arithmetic");
  }
};

struct LinearMxConfig {
  std::string recipe_name = "mxfp8_cublas";
  StringList filter_fqns = {"output"};

  static void fields(auto& self, auto&& field) {
    field("recipe_name", self.recipe_name, "scale rule", {.choices = {"mxfp8_cublas", "mxfp8_cublas_rceil", "mxfp8_emulated"}});
    field("filter_fqns", self.filter_fqns, "parts of the names of modules to skip", {.lenient = true});
  }
};

struct GroupedFloat8Config {
  StringList fqns;
  static void fields(auto& self, auto&& field) {
    field("fqns", self.fqns, "substrings of the expert modules to convert", {.lenient = true});
  }
};

struct GroupedMxConfig {
  std::string recipe_name = "mxfp8";
  StringList fqns;
  static void fields(auto& self, auto&& field) {
    field("recipe_name", self.recipe_name, "recipe", {.choices = {"mxfp8"}});
    field("fqns", self.fqns, "substrings of the expert modules to convert", {.lenient = true});
  }
};

struct QuantizeLinearConfig {
  LinearFloat8Config float8;
  LinearMxConfig mx;
  static void fields(auto& self, auto&& field) {
    field("float8", self.float8, "converter quantize.linear.float8");
    field("mx", self.mx, "converter quantize.linear.mx");
  }
};

struct QuantizeGroupedConfig {
  GroupedFloat8Config float8;
  GroupedMxConfig mx;
  static void fields(auto& self, auto&& field) {
    field("float8", self.float8, "converter quantize.grouped_mm.float8");
    field("mx", self.mx, "converter quantize.grouped_mm.mx");
  }
};

struct RecipeOptions;
struct LayerRecipe;
class SchemeOptions;

// A row of the option table: everything that is said of one option. Defaults per scheme and preset are in the scheme's row.
struct RecipeOption {
  struct Exclusion {
    std::string_view other, why;
  };
  struct Objection {  // text: behind the option's name, empty if the value is legal; other: the option that it contradicts, or empty
    std::string text;
    std::string_view other{};
  };
  template <class... T>
  using Member = std::variant<T RecipeOptions::*...>;

  std::string_view name;
  Member<bool, std::string, std::optional<bool>, std::optional<int64_t>, std::optional<double>, std::optional<std::string>,
         std::optional<StringList>>
      member;
  std::string_view help;
  FieldInfo info;
  void (*apply)(LayerRecipe&, const RecipeOptions&) = nullptr;  // to the scheme's row; the option has a value
  std::vector<Exclusion> excludes{};
  Objection (*objection)(const SchemeOptions&) = nullptr;
};
const std::vector<RecipeOption>& recipe_options();

// Options of one scheme (platform.md 3.1, numerics.md 7.3 and 7.4). Unset options take the preset's value. Each is described by its row
// of recipe_options().
struct RecipeOptions {
  std::optional<bool> use_2dblock_x, use_2dblock_w, use_hadamard, use_sr_grad, use_dge;
  std::optional<int64_t> hadamard_width;
  std::optional<std::string> hadamard_signs;
  std::optional<std::string> two_level_scaling, clip_mode;
  std::optional<bool> use_uos;
  std::optional<std::string> scale_mode, scale_choice, scale_choice_error;
  std::string style = "alto";
  std::optional<bool> wgrad_hp, x_hp, w_hp, dy_hp;
  bool stochastic_rounding = false, output = true, grad_input = true, grad_weight = true;
  std::string activation = "none";
  std::optional<StringList> fast_accum;
  std::optional<bool> round_scales_to_power_of_2;
  std::optional<int64_t> lora_rank, deosc_step, deosc_period;
  std::optional<double> deosc_ratio;
  std::optional<int64_t> deosc_log_freq;
  std::string preset = "recommended";
  bool emulate = false;
  bool auto_filter_small_kn = false;  // skip small layers (numerics.md 12); not a field but a word of the converters' filter_fqns

  static void fields(auto& self, auto&& field) {
    for (const auto& option : recipe_options())
      std::visit([&](auto member) { field(option.name, self.*member, option.help, option.info); }, option.member);
  }
};

// An entry of quantize.phases: from a step on, other schemes or options for the layers that it selects (config/quantize_phases.h).
struct QuantizePhase : RecipeOptions {
  std::string from;  // "2000": a step; "90%" or "0.9": behind this share of the run; empty: from the start
  double first_layers = 0, last_layers = 0;
  QuantizeScheme scheme;
  StringList targets, ignore;
  StringList stated;  // names of the fields that the entry sets, in its order
  bool states(std::string_view field) const { return std::find(stated.begin(), stated.end(), field) != stated.end(); }

  static void fields(auto& self, auto&& field) {
    field("from", self.from, "first step, or the share of the run before it", {.lenient = true});
    field("first_layers", self.first_layers, "of the first blocks alone: a count, or a fraction < 1 rounded up", {.min = 0});
    field("last_layers", self.last_layers, "of the last blocks alone", {.min = 0});
    field("scheme", self.scheme, "as quantize.scheme");
    field("targets", self.targets, "as quantize.targets", {.lenient = true});
    field("ignore", self.ignore, "as quantize.ignore", {.lenient = true});
    RecipeOptions::fields(self, field);
  }
};

struct QuantizeConfig : RecipeOptions {
  QuantizeScheme scheme;
  StringList targets = {"Linear"};
  StringList ignore = {"output"};
  std::string recipe;
  std::optional<std::string> recipe_text;  // content of the recipe file; not a field, saved beside the fields in checkpoints
  double skip_first_layers = 0;
  double skip_last_layers = 0;
  std::vector<QuantizePhase> phases;
  std::optional<size_t> phase;  // not a field: the recipes of this phase whatever the step (quantize_phases.h)
  int64_t group_align = 0;
  QuantizeLinearConfig linear;
  QuantizeGroupedConfig grouped_mm;

  static void fields(auto& self, auto&& field) {
    constexpr Mark E = Mark::E;
    constexpr Scope run = Scope::run;
    field("scheme", self.scheme, "one scheme, or a table {scheme = [targets]}; none = GEMMs in training.mixed_precision_param",
          {.mark = E});
    field("targets", self.targets, "modules to quantize: re:X, a full name, or a class name",
          {.mark = E, .lenient = true, .scope = Scope::rule});
    field("ignore", self.ignore, "modules to skip; wins over targets", {.mark = E, .lenient = true, .scope = Scope::rule});
    RecipeOptions::fields(self, field);
    field("recipe", self.recipe, "path of a recipe file (YAML or JSON)", {.mark = E});
    field("skip_first_layers", self.skip_first_layers, "first blocks that stay unquantized: a count, or a fraction < 1 rounded up",
          {.mark = E, .min = 0, .scope = run});
    field("skip_last_layers", self.skip_last_layers, "last blocks that stay unquantized: a count, or a fraction < 1 rounded up",
          {.mark = E, .min = 0, .scope = run});
    field("phases", self.phases,
          "other recipes from a step on or by depth: [[quantize.phases]] with from = 2000, \"90%\" or 0.9, first_layers, last_layers, "
          "scheme, targets, ignore and options; without a scheme, options of those in effect",
          {.mark = E});
    field("group_align", self.group_align, "padding of each expert's rows", {.min = 0});
    field("linear", self.linear, "torchtitan's converters of linear layers");
    field("grouped_mm", self.grouped_mm, "torchtitan's converters of experts");
  }
};

}  // namespace halftone
