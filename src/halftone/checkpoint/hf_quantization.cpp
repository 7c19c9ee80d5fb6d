#include "halftone/checkpoint/hf_quantization.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "halftone/base/error.h"
#include "halftone/base/json_reader.h"

namespace halftone {
namespace {

using Codes = HfWeightScheme::Codes;
using ByteScale = HfWeightScheme::ByteScale;
using Words = std::vector<std::string_view>;

constexpr int64_t kMostBlock = int64_t{1} << 31;

std::string text_of(const Words& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) text += fmt::format("{}\"{}\"", i == 0 ? "" : i + 1 == words.size() ? " or " : ", ", words[i]);
  return text;
}

[[noreturn]] void refuse(const Json& object, const char* key, const std::string& expected, const std::string& what) {
  fail("{}.{} = {} is not supported, expected {}", what, key, short_text(object[key]), expected);
}

// All entries that change the meaning of weights are known: an unknown one is an error.
void check_keys(const Json& object, const Words& known, const std::string& what) {
  check(object.is_object(), "{}: expected an object", what);
  for (const auto& [key, value] : object.items())
    check(value.is_null() || std::find(known.begin(), known.end(), key) != known.end(), "{}.{} = {} is not supported", what, key,
          short_text(value));
}

// A word of the list; `otherwise` if the key is missing or null.
std::string word(const Json& object, const char* key, const Words& allowed, const std::string& what, const char* otherwise = "") {
  if (!is_set(object, key)) return otherwise;
  if (!object[key].is_string() || std::find(allowed.begin(), allowed.end(), object[key].get_ref<const std::string&>()) == allowed.end())
    refuse(object, key, text_of(allowed), what);
  return object[key].get<std::string>();
}

// Rows and columns of a block: [128, 128], in old files "128x128".
void read_block(const Json& object, const char* key, HfWeightScheme& scheme, const std::string& what) {
  std::vector<int64_t> block;
  if (object[key].is_string()) {
    const auto& text = object[key].get_ref<const std::string&>();
    int64_t number = 0;
    bool good = !text.empty() && text.size() < 20;
    for (const char c : text + "x") {
      if (c == 'x')
        block.push_back(number), number = 0;
      else if (c >= '0' && c <= '9' && number < kMostBlock)
        number = 10 * number + (c - '0');
      else
        good = false;
    }
    if (!good) block.clear();
  } else if (object[key].is_array()) {
    block = integer_list(object[key], 2, what + "." + key);
  }
  const bool good = block.size() == 2 && std::all_of(block.begin(), block.end(), [](int64_t n) { return n >= 1 && n <= kMostBlock; });
  if (!good) refuse(object, key, "[rows, columns]", what);
  scheme.rows = block[0], scheme.cols = block[1];
}

// DeepSeek's and Qwen's format: e4m3 with weight_scale_inv.
HfWeightScheme parse_fp8(const Json& config, const std::string& what) {
  check_keys(config,
             {"quant_method", "fmt", "scale_fmt", "weight_block_size", "activation_scheme", "modules_to_not_convert", "ignored_layers",
              "dequantize", "kv_cache_scheme"},
             what);
  word(config, "fmt", {"e4m3", "float8_e4m3fn"}, what);
  HfWeightScheme scheme;
  if (is_set(config, "weight_block_size")) read_block(config, "weight_block_size", scheme, what);
  scheme.inputs = scheme.rows > 0 ? HfWeightScheme::Inputs::group : HfWeightScheme::Inputs::tensor;
  scheme.calibrated = is_set(config, "activation_scheme") && config["activation_scheme"] == "static";
  return scheme;
}

// GPT-OSS's experts.
HfWeightScheme parse_mxfp4(const Json& config, const std::string& what) {
  check_keys(config, {"quant_method", "modules_to_not_convert", "dequantize"}, what);
  return {.codes = Codes::e2m1, .bits = 4, .rows = 1, .cols = 32, .byte_scale = ByteScale::e8m0, .stacked = true};
}

struct Format {
  const char* name;
  const char* type;  // of the codes: float, int
  std::vector<int64_t> bits;
  Codes codes;
  ByteScale byte_scale;
  bool global_scale;
};
// "naive-quantised" is one of the first two, depending on the type.
const std::array<Format, 6> kFormats{{{"float-quantized", "float", {8}, Codes::e4m3, ByteScale::none, false},
                                      {"int-quantized", "int", {8}, Codes::int8, ByteScale::none, false},
                                      {"pack-quantized", "int", {4, 8}, Codes::packed, ByteScale::none, false},
                                      {"nvfp4-pack-quantized", "float", {4}, Codes::e2m1, ByteScale::e4m3, true},
                                      {"mxfp4-pack-quantized", "float", {4}, Codes::e2m1, ByteScale::e8m0, false},
                                      {"mxfp8-quantized", "float", {8}, Codes::e4m3, ByteScale::e8m0, false}}};

// `format` is the folder's; a group may override it.
HfWeightScheme parse_group(const Json& group, const std::string& format, const std::string& what) {
  check_keys(group, {"targets", "weights", "input_activations", "output_activations", "format"}, what);
  const Json& weights = member(group, "weights", what);
  const std::string inside = what + ".weights";
  check_keys(weights,
             {"num_bits", "type", "symmetric", "group_size", "strategy", "block_structure", "dynamic", "actorder", "scale_dtype",
              "zp_dtype", "observer", "observer_kwargs"},
             inside);
  const std::string type = word(weights, "type", {"int", "float"}, inside, "int");
  Words names{"naive-quantized"};
  for (const Format& f : kFormats) names.push_back(f.name);
  std::string own = is_set(group, "format") ? word(group, "format", names, what) : format;
  if (own == "naive-quantized") own = type + "-quantized";
  const auto found = std::find_if(kFormats.begin(), kFormats.end(), [&](const Format& f) { return own == f.name; });
  check(found != kFormats.end(), "{}: format = \"{}\" is not supported, expected {}", what, own.substr(0, 40), text_of(names));
  if (type != found->type) refuse(weights, "type", fmt::format("\"{}\" with {}", found->type, own), inside);
  const int64_t bits = is_set(weights, "num_bits") ? integer_member(weights, "num_bits", inside) : 8;
  if (std::find(found->bits.begin(), found->bits.end(), bits) == found->bits.end())
    refuse(weights, "num_bits", fmt::format("{} with {}", found->bits.size() > 1 ? "4 or 8" : std::to_string(found->bits[0]), own), inside);
  HfWeightScheme scheme{
      .codes = found->codes, .bits = static_cast<int>(bits), .byte_scale = found->byte_scale, .global_scale = found->global_scale};
  if (is_set(weights, "symmetric")) scheme.symmetric = bool_member(weights, "symmetric", inside);
  const bool integers = scheme.codes == Codes::int8 || scheme.codes == Codes::packed;
  if (!scheme.symmetric && !integers) refuse(weights, "symmetric", "true with " + own, inside);
  if (is_set(weights, "dynamic") && weights["dynamic"] != false) refuse(weights, "dynamic", "false", inside);
  if (is_set(weights, "actorder") && weights["actorder"] != false) word(weights, "actorder", {"weight", "static"}, inside);
  int64_t columns = 0;  // -1 in old files: all
  if (is_set(weights, "group_size") && weights["group_size"] != -1) columns = integer_member(weights, "group_size", inside);
  const char* otherwise = columns > 0 ? "group" : is_set(weights, "group_size") ? "channel" : "tensor";
  const std::string strategy = word(weights, "strategy", {"tensor", "channel", "group", "tensor_group", "block"}, inside, otherwise);
  if (strategy == "block") {
    if (!is_set(weights, "block_structure")) fail("{}.strategy = \"block\" needs block_structure", inside);
    read_block(weights, "block_structure", scheme, inside);
  } else if (strategy != "tensor") {
    scheme.rows = 1;
    if (strategy != "channel") {
      if (columns < 1 || columns > kMostBlock) fail("{}.strategy = \"{}\" needs group_size", inside, strategy);
      scheme.cols = columns;
    }
  }
  const Json& targets = member(group, "targets", what);
  const auto is_text = [](const Json& item) { return item.is_string(); };
  if (!targets.is_array() || !std::all_of(targets.begin(), targets.end(), is_text)) refuse(group, "targets", "a list of words", what);
  for (const Json& target : targets) scheme.targets.push_back(target.get<std::string>());
  if (is_set(group, "input_activations") && group["input_activations"].is_object()) {
    using Inputs = HfWeightScheme::Inputs;
    const Json& inputs = group["input_activations"];
    const Json by = inputs.value("strategy", Json("tensor"));
    scheme.inputs = by == "token" ? Inputs::token : by == "tensor" ? Inputs::tensor : Inputs::group;
    scheme.calibrated = inputs.value("dynamic", Json(false)) == false;
  }
  return scheme;
}

std::vector<HfWeightScheme> parse_compressed_tensors(const Json& config, const std::string& what) {
  check_keys(config,
             {"quant_method", "config_groups", "format", "quantization_status", "kv_cache_scheme", "global_compression_ratio", "ignore",
              "version", "run_compressed", "sparsity_config", "transform_config"},
             what);
  word(config, "quantization_status", {"compressed"}, what);
  for (const char* key : {"sparsity_config", "transform_config"}) {
    if (!is_set(config, key) || config[key] == Json::object()) continue;
    const bool dense = config[key].is_object() && config[key].value("format", Json()) == "dense";
    const bool none = config[key].is_object() && config[key].value("config_groups", Json(1)) == Json::object();
    if (!dense && !none) refuse(config, key, "{}", what);
  }
  const std::string format = is_set(config, "format") ? string_member(config, "format", what) : "";
  const Json& groups = member(config, "config_groups", what);
  check(groups.is_object() && !groups.empty(), "{}.config_groups: expected an object with groups", what);
  std::vector<HfWeightScheme> schemes;
  for (const auto& [name, group] : groups.items()) {
    const std::string place = what + ".config_groups." + name.substr(0, 40);
    if (group.is_object() && !is_set(group, "weights")) continue;  // only for activations or the KV cache
    schemes.push_back(parse_group(group, format, place));
  }
  check(!schemes.empty(), "{}.config_groups: no group has weights", what);
  return schemes;
}

}  // namespace

std::optional<HfQuantization> parse_hf_quantization(const Json& root, const std::string& what) {
  check(root.is_object(), "{}: expected an object", what);
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (!is_set(root, key)) continue;
    const Json& config = root[key];
    const std::string place = what + ": " + key;
    check(config.is_object(), "{} = {} is not supported, expected an object", place, short_text(config));
    const bool legacy = std::string_view(key) == "compression_config";
    const std::string method =
        word(config, "quant_method", {"fp8", "mxfp4", "compressed-tensors"}, place, legacy ? "compressed-tensors" : "");
    check(!method.empty(), "{}.quant_method is missing, expected \"fp8\", \"mxfp4\" or \"compressed-tensors\"", place);
    if (method == "fp8") return HfQuantization{method, {parse_fp8(config, place)}};
    if (method == "mxfp4") return HfQuantization{method, {parse_mxfp4(config, place)}};
    return HfQuantization{method, parse_compressed_tensors(config, place)};
  }
  return std::nullopt;
}

}  // namespace halftone
