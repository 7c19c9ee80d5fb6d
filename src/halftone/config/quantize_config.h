#pragma once
#include "halftone/config/field.h"

namespace halftone {

// [quantize] and the sections of torchtitan's converters below it

struct LinearFloat8Config {
  bool enable_fsdp_float8_all_gather = false;
  bool precompute_float8_dynamic_scale_for_fsdp = false;
  std::optional<std::string> recipe_name;
  StringList filter_fqns;
  bool emulate = false;

  static void fields(auto& self, auto&& field) {
    field("enable_fsdp_float8_all_gather", self.enable_fsdp_float8_all_gather, "gather weights as fp8; tensorwise only");
    field("precompute_float8_dynamic_scale_for_fsdp", self.precompute_float8_dynamic_scale_for_fsdp,
          "one fused amax reduction for all weights after the optimizer step");
    field("recipe_name", self.recipe_name, "none = tensorwise", {.choices = {"tensorwise", "rowwise", "rowwise_with_gw_hp"}});
    field("filter_fqns", self.filter_fqns, "substrings of modules to leave alone; auto_filter_small_kn", {.lenient = true});
    field("emulate", self.emulate, "reference arithmetic");
  }
};

struct LinearMxConfig {
  std::string mxfp8_dim1_cast_kernel_choice = "triton";
  std::string recipe_name = "mxfp8_cublas";
  StringList filter_fqns = {"output"};

  static void fields(auto& self, auto&& field) {
    field("mxfp8_dim1_cast_kernel_choice", self.mxfp8_dim1_cast_kernel_choice, "cast kernel",
          {.mark = Mark::A, .choices = {"triton", "cuda", "torch"}, .note = "there is one cast kernel here"});
    field("recipe_name", self.recipe_name, "scale rule", {.choices = {"mxfp8_cublas", "mxfp8_cublas_rceil", "mxfp8_emulated"}});
    field("filter_fqns", self.filter_fqns, "substrings of modules to leave alone", {.lenient = true});
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

// Options without a value take the preset's (quantize.preset): that is why they are optional here. `*_or` defaults of
// preset "alto" stand in the help texts.
struct QuantizeConfig {
  QuantizeScheme scheme;
  StringList targets = {"Linear"};
  StringList ignore = {"output"};
  std::optional<bool> use_2dblock_x, use_2dblock_w, use_hadamard, use_sr_grad, use_dge;
  std::optional<std::string> two_level_scaling, clip_mode;
  std::optional<bool> use_uos;
  std::optional<int64_t> lora_rank, deosc_step, deosc_period;
  std::optional<double> deosc_ratio;
  std::optional<int64_t> deosc_log_freq;
  std::optional<std::string> scale_mode;
  std::string style = "alto";
  std::optional<bool> wgrad_hp;
  bool output = true;
  bool grad_input = true;
  bool grad_weight = true;
  bool stochastic_rounding = false;
  std::string activation = "none";
  std::optional<StringList> fast_accum;
  std::optional<bool> round_scales_to_power_of_2;
  std::string attention = "bf16";
  std::string attn_bwd = "bf16";
  bool pnq = true;
  std::string preset = "recommended";
  std::string recipe;
  std::optional<std::string> recipe_text;  // what the file held when it was read; not a field, checkpoints hold it beside these
  bool emulate = false;
  double skip_first_layers = 0;
  double skip_last_layers = 0;
  std::string fsdp_all_gather = "bf16";
  bool fsdp_precompute_scales = false;
  int64_t group_align = 0;
  QuantizeLinearConfig linear;
  QuantizeGroupedConfig grouped_mm;

  static void fields(auto& self, auto&& field) {
    constexpr Mark E = Mark::E;
    field("scheme", self.scheme, "one scheme name, or a table {scheme = [targets]}; none = products in training.mixed_precision_param",
          {.mark = E});
    field("targets", self.targets, "modules to quantise: re:X, a full name, or a class name", {.mark = E, .lenient = true});
    field("ignore", self.ignore, "modules to leave alone; wins over targets", {.mark = E, .lenient = true});
    field("use_2dblock_x", self.use_2dblock_x, "square scale blocks for X and dY (mx*, nvfp4, amdfp4; alto: false)", {.mark = E});
    field("use_2dblock_w", self.use_2dblock_w, "square scale blocks for W (mx*, nvfp4, amdfp4; alto: true)", {.mark = E});
    field("use_hadamard", self.use_hadamard, "random Hadamard over tokens on X and dY of wgrad (mxfp4, nvfp4, amdfp4; alto: false)",
          {.mark = E});
    field("use_sr_grad", self.use_sr_grad, "stochastic rounding of dY (block schemes, int8, int4; alto: false)", {.mark = E});
    field("use_dge", self.use_dge, "differentiable gradient estimator on dW (4-bit float; alto: false)", {.mark = E});
    field("two_level_scaling", self.two_level_scaling, "none, tensorwise (nvfp4, amdfp4), blockwise (mxfp4); alto: none",
          {.mark = E, .choices = {"none", "tensorwise", "blockwise"}});
    field("clip_mode", self.clip_mode, "none, static, dynamic (mxfp4; alto: none)", {.mark = E, .choices = {"none", "static", "dynamic"}});
    field("use_uos", self.use_uos, "scale rule with target 7.25 (mxfp4; alto: false)", {.mark = E});
    field("lora_rank", self.lora_rank, "rank of the low-rank side product (mx*, nvfp4, amdfp4; alto: 0)", {.mark = E, .min = 0});
    field("deosc_step", self.deosc_step, "step at which weight de-oscillation starts; 0 = never (4-bit float; alto: 0)",
          {.mark = E, .min = 0});
    field("deosc_period", self.deosc_period, "its window in steps (alto: 200)", {.mark = E, .min = 1});
    field("deosc_ratio", self.deosc_ratio, "its reset threshold, 4 to 32 (alto: 4)", {.mark = E});
    field("deosc_log_freq", self.deosc_log_freq, "log every so many windows; 0 = never (alto: 1)", {.mark = E, .min = 0});
    field("scale_mode", self.scale_mode, "scale rule (mx*; none = the scheme's)",
          {.mark = E, .choices = {"floor", "ceil", "rceil", "even", "adaptive"}});
    field("style", self.style, "alto, or torchao: the whole NVFP4 preset (nvfp4)", {.mark = E, .choices = {"alto", "torchao"}});
    field("wgrad_hp", self.wgrad_hp, "wgrad operands stay bf16 (mxfp8_*, mxfp4, nvfp4, amdfp4, fp8_rowwise; alto: false)", {.mark = E});
    field("output", self.output, "quantise the forward product (int8, int4)", {.mark = E});
    field("grad_input", self.grad_input, "quantise the product of dX (int8, int4)", {.mark = E});
    field("grad_weight", self.grad_weight, "quantise the product of dW (int8, int4)", {.mark = E});
    field("stochastic_rounding", self.stochastic_rounding, "stochastic rounding of every quantised operand (int8, int4)", {.mark = E});
    field("activation", self.activation, "activations of a weight-only scheme (int8_weight)",
          {.mark = E, .choices = {"none", "int8", "int8_sr"}});
    field("fast_accum", self.fast_accum, "products with fast accumulation (fp8_tensorwise, fp8_rowwise*; none = the scheme's)",
          {.mark = E, .choices = {"forward", "dgrad", "wgrad"}});
    field("round_scales_to_power_of_2", self.round_scales_to_power_of_2, "power-of-two scales (fp8_*; none = the scheme's)", {.mark = E});
    field("attention", self.attention, "low-precision attention", {.mark = E, .choices = {"bf16", "fp8_blockwise", "mxfp4"}});
    field("attn_bwd", self.attn_bwd, "its backward pass", {.mark = E, .choices = {"bf16", "fp8_blockwise", "mxfp4"}});
    field("pnq", self.pnq, "normalise P before quantising it", {.mark = E});
    field("preset", self.preset, "values of options that are not set: recommended, or alto",
          {.mark = E, .choices = {"recommended", "alto"}});
    field("recipe", self.recipe, "path of a recipe file (YAML or JSON)", {.mark = E});
    field("emulate", self.emulate, "reference arithmetic on quantised values", {.mark = E});
    field("skip_first_layers", self.skip_first_layers, "first blocks kept unquantised: a count, or a fraction < 1 rounded up",
          {.mark = E, .min = 0});
    field("skip_last_layers", self.skip_last_layers, "last blocks kept unquantised: a count, or a fraction < 1 rounded up",
          {.mark = E, .min = 0});
    field("fsdp_all_gather", self.fsdp_all_gather, "bf16, or scheme: gather weights already quantised",
          {.mark = E, .choices = {"bf16", "scheme"}});
    field("fsdp_precompute_scales", self.fsdp_precompute_scales, "all weight scales in one reduction after the optimizer step",
          {.mark = E});
    field("group_align", self.group_align, "token padding per expert; 0 = the scheme's", {.mark = E, .min = 0});
    field("linear", self.linear, "torchtitan's converters of Linear");
    field("grouped_mm", self.grouped_mm, "torchtitan's converters of experts");
  }
};

}  // namespace halftone
