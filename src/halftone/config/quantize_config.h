#pragma once
#include "halftone/config/field.h"
#include "halftone/formats/names.h"

namespace halftone {

// [quantize], and torchtitan's converters in sections below it

struct LinearFloat8Config {
  bool enable_fsdp_float8_all_gather = false;
  bool precompute_float8_dynamic_scale_for_fsdp = false;
  std::optional<std::string> recipe_name;
  StringList filter_fqns;
  bool emulate = false;

  static void fields(auto& self, auto&& field) {
    static constexpr std::string_view kNote = "weights are gathered in training.mixed_precision_param and quantized afterwards";
    field("enable_fsdp_float8_all_gather", self.enable_fsdp_float8_all_gather, "all-gather weights in fp8; tensorwise only",
          {.mark = Mark::A, .note = kNote});
    field("precompute_float8_dynamic_scale_for_fsdp", self.precompute_float8_dynamic_scale_for_fsdp,
          "one amax reduction for all weights after the optimizer step", {.mark = Mark::A, .note = kNote});
    field("recipe_name", self.recipe_name, "none = tensorwise", {.choices = {"tensorwise", "rowwise", "rowwise_with_gw_hp"}});
    field("filter_fqns", self.filter_fqns, "parts of the names of modules to skip; auto_filter_small_kn = small layers", {.lenient = true});
    field("emulate", self.emulate, "reference arithmetic");
  }
};

struct LinearMxConfig {
  std::string mxfp8_dim1_cast_kernel_choice = "triton";
  std::string recipe_name = "mxfp8_cublas";
  StringList filter_fqns = {"output"};

  static void fields(auto& self, auto&& field) {
    field("mxfp8_dim1_cast_kernel_choice", self.mxfp8_dim1_cast_kernel_choice, "cast kernel",
          {.mark = Mark::A, .choices = {"triton", "cuda", "torch"}, .note = "there is one cast kernel"});
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

// Options of one scheme (platform.md 3.1, numerics.md 7.3 and 7.4). Unset options take the preset's value. config/quantize_options.h says
// which go together.
struct RecipeOptions {
  std::optional<bool> use_2dblock_x, use_2dblock_w, use_hadamard, use_sr_grad, use_dge;
  std::optional<std::string> two_level_scaling, clip_mode;
  std::optional<bool> use_uos;
  std::optional<std::string> scale_mode;
  std::string style = "alto";
  std::optional<bool> wgrad_hp;
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
    using Words = std::vector<std::string_view>;
    const Words fp4 = {"mxfp4", "nvfp4", "amdfp4"}, blocks = {"mx*", "nvfp4", "amdfp4"}, integers = {"int8", "int4"};
    // Schemes that have it, and its value in preset "alto" ("": the scheme's own).
    const auto option = [&](std::string_view name, auto& value, const Words& schemes, std::string_view alto, std::string_view help,
                            const Words& choices = {}, Scope scope = Scope::operands, std::optional<double> min = {}) {
      field(name, value, help, {.mark = Mark::E, .choices = choices, .min = min, .scope = scope, .schemes = schemes, .alto = alto});
    };
    option("use_2dblock_x", self.use_2dblock_x, blocks, "false", "square scale blocks for X and dY");
    option("use_2dblock_w", self.use_2dblock_w, blocks, "true", "square scale blocks for W");
    option("use_hadamard", self.use_hadamard, fp4, "false", "random Hadamard transform over tokens, on X and dY of wgrad");
    option("use_sr_grad", self.use_sr_grad, {"fp8_blockwise", "mx*", "nvfp4", "amdfp4", "int8", "int4"}, "false",
           "stochastic rounding of dY");
    option("use_dge", self.use_dge, fp4, "false", "differentiable gradient estimator on dW");
    option("two_level_scaling", self.two_level_scaling, fp4, "none",
           "second level of scales: tensorwise (nvfp4, amdfp4), blockwise (mxfp4)", words_of(kTwoLevelNames));
    option("clip_mode", self.clip_mode, {"mxfp4"}, "none", "clipping of the wgrad operands", words_of(kClipNames));
    option("use_uos", self.use_uos, {"mxfp4"}, "false", "scale rule with target 7.25");
    option("scale_mode", self.scale_mode, {"mx*"}, "", "scale rule", {"floor", "ceil", "rceil", "even", "adaptive"});
    option("style", self.style, {"nvfp4"}, "", "alto, or torchao = torchao's NVFP4 recipe", words_of(kChainNames));
    option("wgrad_hp", self.wgrad_hp, {"mxfp8_*", "mxfp4", "nvfp4", "amdfp4", "fp8_rowwise"}, "false", "wgrad operands stay bf16");
    option("stochastic_rounding", self.stochastic_rounding, integers, "", "stochastic rounding of every quantized operand");
    option("output", self.output, integers, "", "quantize the forward GEMM");
    option("grad_input", self.grad_input, integers, "", "quantize the dgrad GEMM");
    option("grad_weight", self.grad_weight, integers, "", "quantize the wgrad GEMM");
    option("activation", self.activation, {"int8_weight"}, "", "quantization of activations in a weight-only scheme",
           {"none", "int8", "int8_sr"});
    option("fast_accum", self.fast_accum, {"fp8_tensorwise", "fp8_rowwise", "fp8_rowwise_with_gw_hp"}, "", "GEMMs with fast accumulation",
           {"forward", "dgrad", "wgrad"});
    option("round_scales_to_power_of_2", self.round_scales_to_power_of_2, {"fp8_*"}, "", "power-of-two scales");
    option("lora_rank", self.lora_rank, blocks, "0", "rank of the low-rank side branch", {}, Scope::layer, 0);
    option("deosc_step", self.deosc_step, fp4, "0", "first step of weight de-oscillation; 0 = never", {}, Scope::layer, 0);
    option("deosc_period", self.deosc_period, fp4, "200", "de-oscillation window in steps", {}, Scope::layer, 1);
    option("deosc_ratio", self.deosc_ratio, fp4, "4", "de-oscillation reset threshold, 4 to 32", {}, Scope::layer);
    option("deosc_log_freq", self.deosc_log_freq, fp4, "1", "de-oscillation windows between log lines; 0 = never", {}, Scope::layer, 0);
    field("preset", self.preset, "values of unset options: recommended, or alto",
          {.mark = Mark::E, .choices = {"recommended", "alto"}, .scope = Scope::rule});
    field("emulate", self.emulate, "reference arithmetic on dequantized values", {.mark = Mark::E, .scope = Scope::run});
  }
};

struct QuantizeConfig : RecipeOptions {
  QuantizeScheme scheme;
  StringList targets = {"Linear"};
  StringList ignore = {"output"};
  std::string attention = "bf16";
  std::string attn_bwd = "bf16";
  bool pnq = true;
  std::string recipe;
  std::optional<std::string> recipe_text;  // content of the recipe file; not a field, saved beside the fields in checkpoints
  double skip_first_layers = 0;
  double skip_last_layers = 0;
  std::string fsdp_all_gather = "bf16";
  bool fsdp_precompute_scales = false;
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
    static constexpr std::string_view kAttention = "attention runs in the compute dtype";
    field("attention", self.attention, "low-precision attention", {.mark = Mark::N, .note = kAttention});
    field("attn_bwd", self.attn_bwd, "its backward pass", {.mark = Mark::N, .note = kAttention});
    field("pnq", self.pnq, "normalize P before it is quantized", {.mark = Mark::N, .note = kAttention});
    field("recipe", self.recipe, "path of a recipe file (YAML or JSON)", {.mark = E});
    field("skip_first_layers", self.skip_first_layers, "first blocks that stay unquantized: a count, or a fraction < 1 rounded up",
          {.mark = E, .min = 0, .scope = run});
    field("skip_last_layers", self.skip_last_layers, "last blocks that stay unquantized: a count, or a fraction < 1 rounded up",
          {.mark = E, .min = 0, .scope = run});
    static constexpr std::string_view kGather = "weights are gathered in training.mixed_precision_param and quantized afterwards";
    field("fsdp_all_gather", self.fsdp_all_gather, "all-gather quantized weights", {.mark = Mark::N, .note = kGather});
    field("fsdp_precompute_scales", self.fsdp_precompute_scales, "all weight scales in one reduction", {.mark = Mark::N, .note = kGather});
    field("group_align", self.group_align, "padding of each expert's rows",
          {.mark = Mark::A, .min = 0, .note = "each expert's rows are padded to a multiple of 128, which changes no result"});
    field("linear", self.linear, "torchtitan's converters of linear layers");
    field("grouped_mm", self.grouped_mm, "torchtitan's converters of experts");
  }
};

}  // namespace halftone
