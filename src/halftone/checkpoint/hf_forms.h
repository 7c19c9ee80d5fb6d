#pragma once
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/formats/recipe.h"
#include "halftone/models/family.h"

// Forms of codes in which Hugging Face folders hold weights, and the formats of such folders. A new one is a row here. No torch here;
// hf_codes.h makes the tensors.
namespace halftone {

// How a file holds a weight [N, K]: value = code * scale.
struct HfForm {
  std::string_view name;       // convert --codes
  OperandSpec weight;          // quantises weights that were not trained in this form
  int group = 0;               // 4-bit integers: columns that share a scale; 0: a row
  bool inputs = false;         // readers multiply with quantised inputs, if the run did
  std::string_view layer;      // `format` of compressed-tensors
  std::string_view refused{};  // why no file is written with it; else empty
  // Whether 2-D blocks of scales stay what they are; elsewhere every row gets those of its block.
  constexpr bool tiles() const { return weight.granularity == Granularity::tile; }
  constexpr bool integers() const { return weight.element == Element::int8 || weight.element == Element::int4; }
  constexpr int bits() const { return weight.element == Element::int4 || weight.element == Element::e2m1 ? 4 : 8; }
  // Columns that share a scale; 0: all.
  constexpr int columns() const { return group > 0 ? group : weight.block; }
};
std::span<const HfForm> hf_forms();
const HfForm* find_hf_form(std::string_view name);  // null for other names
// Whether codes of this quantiser can be written in the form as they are.
bool has_form(const OperandSpec& weight, const HfForm& form);
// The property that keeps codes of this quantiser out of every file: "a rotation (H32)"; empty if nothing does.
std::string objection_to(const OperandSpec& weight);

// A kind of folder.
struct HfFormat {
  enum class Layout { compressed_tensors, torchao, inverse_scales, stacked_blocks };
  Layout layout;
  std::string_view name;   // convert --format
  std::string_view codes;  // names of the forms that it holds
  bool stacked = false;    // holds stacked experts as codes, and nothing else; other formats hold linear layers and separate experts
  std::string_view method = name;  // quant_method
  // With a single form the layers that it takes need not have been trained in codes.
  bool single() const { return codes.find(' ') == std::string_view::npos; }
  bool holds(const HfForm& form) const { return find_word(codes, form.name).has_value(); }
};
std::span<const HfFormat> hf_formats();
const HfFormat* find_hf_format(std::string_view name);
const HfFormat* single_format(std::string_view codes);  // that holds this form alone; null for others
// Error unless files of the family can store weights this way.
void check_hf_format(const HfFormat& format, const ModelFamily& family);

// The forms of linear layers and experts, as words.
inline constexpr std::string_view kLinearForms =
    "fp8_tensorwise fp8_rowwise fp8_blockwise int8 int8_weight int4 int4_g32 int4_g128 mxfp8 mxfp4 nvfp4";

// Weights with the same form.
struct HfFormGroup {
  const HfForm* form;
  bool inputs;                       // quantised too
  std::vector<std::string> modules;  // names in the files
};
// quantization_config of config.json; `plain`: modules with unquantised weights.
nlohmann::ordered_json write_hf_quantization(const HfFormat& format, const std::vector<HfFormGroup>& groups,
                                             const std::vector<std::string>& plain);
// torchao: what the header of a file says of a weight [n, k].
nlohmann::ordered_json torchao_tensor(const HfForm& form, bool inputs, int64_t n, int64_t k, std::string_view dtype);

}  // namespace halftone
