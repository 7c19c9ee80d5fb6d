#include "halftone/checkpoint/hf_forms.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/formats/describe.h"

namespace halftone {
namespace {

using Ordered = nlohmann::ordered_json;

constexpr OperandSpec mx(Element element) {
  OperandSpec spec = detail::block(element, 32, ScaleFormat::e8m0);
  // A block of e2m1 whose largest code is 4 or 6 round-trips to the same scale; a block of zeros has byte 0, as elsewhere.
  if (element == Element::e2m1) spec.mode = ScaleMode::even;
  return spec;
}
constexpr OperandSpec nvfp4() {
  OperandSpec spec = detail::block(Element::e2m1, 16, ScaleFormat::e4m3);
  spec.chain = Fp4Chain::torchao;  // blocks far below the largest become zeros
  return spec;
}

constexpr std::string_view kFloats = "float-quantized", kIntegers = "int-quantized", kPacked = "pack-quantized";
constexpr std::array kHfForms = {
    HfForm{"fp8_tensorwise", detail::tensor(Element::e4m3), 0, true, kFloats},
    HfForm{"fp8_rowwise", detail::rows(Element::e4m3), 0, true, kFloats},
    HfForm{"fp8_blockwise", detail::tile(Element::e4m3, 128, ScaleFormat::fp32), 0, true, kFloats},
    HfForm{"int8", detail::rows(Element::int8), 0, true, kIntegers},
    HfForm{"int8_weight", detail::rows(Element::int8), 0, false, kPacked},
    HfForm{"int8_static", detail::rows(Element::int8), 0, true, kIntegers,
           "no recipe trains with fixed scales of activations; choose int8, whose readers compute them"},
    HfForm{"int4", detail::rows(Element::int4), 0, true, kPacked},
    HfForm{"int4_g32", detail::rows(Element::int4), 32, false, kPacked},
    HfForm{"int4_g128", detail::rows(Element::int4), 128, false, kPacked},
    HfForm{"mxfp8", mx(Element::e4m3), 0, true, "mxfp8-quantized"},
    HfForm{"mxfp4", mx(Element::e2m1), 0, true, "mxfp4-pack-quantized"},
    // Readers take the scale of all inputs from the file, where a run computes it in every step: the weights alone.
    HfForm{"nvfp4", nvfp4(), 0, false, "nvfp4-pack-quantized"},
};

using Layout = HfFormat::Layout;
constexpr std::array kHfFormats = {
    HfFormat{Layout::compressed_tensors, "compressed-tensors", kLinearForms},
    HfFormat{Layout::torchao, "torchao", kLinearForms},
    HfFormat{Layout::stacked_blocks, "gpt-oss-mxfp4", "mxfp4", true, "mxfp4"},
    HfFormat{Layout::inverse_scales, "deepseek-fp8", "fp8_blockwise", false, "fp8"},
};

Ordered of_dtype(std::string_view name) { return {{"_type", "torch.dtype"}, {"_data", name}}; }
Ordered of_type(std::string_view type, Ordered data) { return {{"_type", type}, {"_version", 1}, {"_data", std::move(data)}}; }
std::string_view type_of(const HfForm& form) { return form.integers() ? "int" : "float"; }

// compressed-tensors: the entries that weights and inputs share.
Ordered numbers(const HfForm& form, bool dynamic) {
  Ordered json{{"num_bits", form.bits()}, {"type", type_of(form)}, {"symmetric", true}, {"dynamic", dynamic}};
  if (form.weight.scale == ScaleFormat::e8m0) json["scale_dtype"] = "torch.uint8";
  return json;
}

Ordered weights_of(const HfForm& form) {
  Ordered json = numbers(form, false);
  const bool outer = form.weight.two_level == TwoLevel::tensor;
  json["strategy"] = form.tiles()                                     ? "block"
                     : outer                                          ? "tensor_group"
                     : form.columns() > 0                             ? "group"
                     : form.weight.granularity == Granularity::tensor ? "tensor"
                                                                      : "channel";
  if (form.tiles()) json["block_structure"] = {form.weight.block, form.weight.block};
  if (!form.tiles() && form.columns() > 0) json["group_size"] = form.columns();
  if (outer) json["scale_dtype"] = "torch.float8_e4m3fn";
  return json;
}

// Scales of inputs are computed by the reader: of tokens, or of blocks within them.
Ordered inputs_of(const HfForm& form) {
  Ordered json = numbers(form, true);
  json["strategy"] = form.columns() > 0 ? "group" : "token";
  if (form.columns() > 0) json["group_size"] = form.columns();
  return json;
}

Ordered compressed_tensors(const std::vector<HfFormGroup>& groups, const std::vector<std::string>& plain) {
  Ordered list = Ordered::object();
  for (const HfFormGroup& group : groups) {
    Ordered one{{"targets", {"Linear"}},
                {"weights", weights_of(*group.form)},
                {"input_activations", group.inputs ? inputs_of(*group.form) : Ordered()},
                {"output_activations", nullptr},
                {"format", group.form->layer}};
    if (groups.size() > 1) one["targets"] = group.modules;
    list[fmt::format("group_{}", list.size())] = std::move(one);
  }
  return {{"quant_method", "compressed-tensors"},
          {"format", groups.size() == 1 ? groups[0].form->layer : "mixed-precision"},
          {"quantization_status", "compressed"},
          {"config_groups", std::move(list)},
          {"ignore", plain},
          {"kv_cache_scheme", nullptr}};
}

// The class and options of torchao that readers name for such weights.
Ordered torchao_config(const HfForm& form, bool inputs) {
  const auto config = [](std::string_view type, Ordered data, int version = 2) {
    return Ordered{{"_type", type}, {"_version", version}, {"_data", std::move(data)}};
  };
  const Ordered row = of_type("PerRow", {{"dim", -1}});
  const bool scaled = form.weight.scale == ScaleFormat::e8m0;
  if (scaled) {
    const Ordered type = of_dtype(form.bits() == 4 ? "float4_e2m1fn_x2" : "float8_e4m3fn");
    return config("MXDynamicActivationMXWeightConfig", {{"block_size", 32}, {"activation_dtype", type}, {"weight_dtype", type}}, 1);
  }
  if (form.weight.element == Element::e2m1) return config("NVFP4WeightOnlyConfig", {{"use_dynamic_per_tensor_scale", true}}, 1);
  if (form.weight.element == Element::e4m3) return config("Float8WeightOnlyConfig", {{"weight_dtype", of_dtype("float8_e4m3fn")}});
  if (form.weight.element == Element::int8)
    return config(inputs ? "Int8DynamicActivationInt8WeightConfig" : "Int8WeightOnlyConfig", {{"granularity", row}});
  return config("IntxWeightOnlyConfig",
                {{"weight_dtype", of_dtype("int4")},
                 {"granularity", form.group > 0 ? of_type("PerGroup", {{"group_size", form.group}}) : of_type("PerAxis", {{"axis", 0}})}});
}

}  // namespace

std::span<const HfForm> hf_forms() { return kHfForms; }
const HfForm* find_hf_form(std::string_view name) {
  const auto found = std::ranges::find(kHfForms, name, &HfForm::name);
  return found == kHfForms.end() ? nullptr : &*found;
}

std::string objection_to(const OperandSpec& w) {
  if (w.hadamard != 0) return fmt::format("a rotation of {} elements", w.hadamard);
  if (w.two_level == TwoLevel::macro) return "factors of macro blocks";
  if (w.stochastic || w.eden) return "codes that are drawn anew in every step";
  if (w.clip != Clip::none) return "clipped blocks";
  return "";
}

bool has_form(const OperandSpec& w, const HfForm& form) {
  const OperandSpec& f = form.weight;
  const bool fp32 = w.scale == ScaleFormat::fp32 || w.scale == ScaleFormat::fp32_pow2;
  const bool alike = w.granularity == f.granularity || (w.granularity == Granularity::tile && f.granularity == Granularity::block);
  return form.refused.empty() && objection_to(w).empty() && w.element == f.element && alike && w.block == f.block && form.group == 0 &&
         (f.scale == ScaleFormat::fp32 ? fp32 : w.scale == f.scale);
}

std::span<const HfFormat> hf_formats() { return kHfFormats; }
const HfFormat* find_hf_format(std::string_view name) {
  const auto found = std::ranges::find(kHfFormats, name, &HfFormat::name);
  return found == kHfFormats.end() ? nullptr : &*found;
}

const HfFormat* single_format(std::string_view codes) {
  const auto found = std::ranges::find_if(kHfFormats, [&](const HfFormat& f) { return f.single() && f.codes == codes; });
  return found == kHfFormats.end() ? nullptr : &*found;
}

void check_hf_format(const HfFormat& format, const ModelFamily& family) {
  const bool stacked = std::ranges::any_of(family.tensors, &ModelFamily::TensorName::transposed);
  check(stacked == format.stacked, "{} is not a format of {} files; choose {}", format.name, family.hf_architecture,
        stacked ? "gpt-oss-mxfp4, in which all experts of a layer are stacked" : "compressed-tensors, torchao or deepseek-fp8");
}

Ordered write_hf_quantization(const HfFormat& format, const std::vector<HfFormGroup>& groups, const std::vector<std::string>& plain) {
  if (format.layout == Layout::compressed_tensors) return compressed_tensors(groups, plain);
  Ordered config{{"quant_method", format.method}};
  if (format.layout == Layout::inverse_scales)
    config.update({{"fmt", "e4m3"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {128, 128}}});
  if (format.layout == Layout::torchao) config["quant_type"] = {{"default", torchao_config(*groups[0].form, groups[0].inputs)}};
  config["modules_to_not_convert"] = plain;
  return config;
}

Ordered torchao_tensor(const HfForm& form, bool inputs, int64_t n, int64_t k, std::string_view dtype) {
  const int64_t rows = form.tiles() ? form.weight.block : form.weight.granularity == Granularity::tensor ? n : 1;
  const Ordered block{rows, form.columns() > 0 ? form.columns() : k}, type = of_dtype(dtype);
  Ordered names{"qdata", "scale"};
  const auto tensor = [&](std::string_view of, Ordered data) {
    return Ordered{{"_type", of}, {"_data", std::move(data)}, {"_tensor_data_names", names}};
  };
  const auto plain = [](std::string_view of, Ordered data) { return Ordered{{"_type", of}, {"_data", std::move(data)}}; };
  if (form.weight.scale == ScaleFormat::e8m0) {
    const Ordered element = of_dtype(form.bits() == 4 ? "float4_e2m1fn_x2" : "float8_e4m3fn");
    const Ordered emulated = plain("KernelPreference", "EMULATED");
    // It has no product with plain inputs.
    const Ordered quantized = plain("QuantizeTensorToMXKwargs", {{"elem_dtype", element},
                                                                 {"block_size", form.columns()},
                                                                 {"scaling_mode", plain("ScaleCalculationMode", "RCEIL")},
                                                                 {"kernel_preference", emulated},
                                                                 {"is_swizzled_scales", false}});
    return tensor("MXTensor", {{"elem_dtype", element},
                               {"block_size", form.columns()},
                               {"orig_dtype", type},
                               {"kernel_preference", emulated},
                               {"act_quant_kwargs", quantized},
                               {"is_swizzled_scales", false}});
  }
  if (form.weight.element == Element::e2m1) {
    names.push_back("per_tensor_scale");
    return tensor("NVFP4Tensor", {{"is_swizzled_scales", false},
                                  {"use_triton_kernel", false},
                                  {"act_quant_kwargs", nullptr},
                                  {"block_size", form.columns()},
                                  {"orig_dtype", type}});
  }
  if (form.weight.element == Element::e4m3)
    return tensor("Float8Tensor", {{"block_size", block},
                                   {"mm_config", nullptr},
                                   {"act_quant_kwargs", nullptr},
                                   {"kernel_preference", plain("KernelPreference", "AUTO")},
                                   {"dtype", type}});
  if (form.weight.element == Element::int8) {
    const Ordered tokens = plain("QuantizeTensorToInt8Kwargs",
                                 {{"granularity", plain("PerRow", {{"dim", -1}})}, {"mapping_type", plain("MappingType", "SYMMETRIC")}});
    return tensor("Int8Tensor", {{"act_quant_kwargs", inputs ? tokens : Ordered()}, {"block_size", block}, {"dtype", type}});
  }
  names.push_back("zero_point");
  return tensor("IntxUnpackedToInt8Tensor",
                {{"target_dtype", of_dtype("int4")}, {"block_size", block}, {"dtype", type}, {"activation_quantization", nullptr}});
}

}  // namespace halftone
