#include "halftone/checkpoint/hf_config.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/json_reader.h"

namespace halftone {
namespace {

std::optional<int64_t> token_id(const Json& root, const char* key, const std::string& what) {
  // A negative id means none in old files.
  if (!is_set(root, key) || (root[key].is_number_integer() && root[key] < 0)) return std::nullopt;
  return integer_member(root, key, what);
}

}  // namespace

HfTokenIds read_token_ids(const Json& object, const std::string& what) {
  HfTokenIds ids;
  ids.bos = token_id(object, "bos_token_id", what), ids.pad = token_id(object, "pad_token_id", what);
  if (const char* key = "eos_token_id"; is_set(object, key) && object[key].is_array()) {
    ids.eos = integer_list(object[key], 64, what + ": eos_token_id");
  } else if (const auto id = token_id(object, key, what)) {
    ids.eos = {*id};
  }
  return ids;
}

void write_token_ids(const HfTokenIds& ids, nlohmann::ordered_json& object) {
  if (ids.bos) object["bos_token_id"] = *ids.bos;
  if (ids.eos.size() == 1) object["eos_token_id"] = ids.eos[0];
  if (ids.eos.size() > 1) object["eos_token_id"] = ids.eos;
  if (ids.pad) object["pad_token_id"] = *ids.pad;
}

std::vector<int64_t> parse_generation_eos(std::string_view text, const std::string& what) {
  const Json root = parse_json(text, what);
  check(root.is_object(), "{}: expected an object", what);
  return read_token_ids(root, what).eos;
}

HfConfig parse_hf_config(std::string_view text, const std::string& what, std::span<const ModelFamily* const> families) {
  const Json root = parse_json(text, what);
  const std::string type = string_member(root, "model_type", what);
  std::vector<std::string_view> known;
  for (const ModelFamily* family : families) known.push_back(family->hf_type);
  const auto found = std::find(known.begin(), known.end(), type);
  check(found != known.end(), "{}: model_type \"{}\" is not supported, expected {}", what, type, fmt::join(known, " or "));
  HfConfig config;
  config.quantization = parse_hf_quantization(root, what);
  const ModelFamily& family = *families[static_cast<size_t>(found - known.begin())];
  config.model = family.read_hf(family, root, what);
  for (const char* key : {"torch_dtype", "dtype"})
    if (is_set(root, key)) config.torch_dtype = string_member(root, key, what);
  config.token_ids = read_token_ids(root, what);
  return config;
}

std::string write_hf_config(const HfConfig& config, std::string_view quantization) {
  nlohmann::ordered_json root = config.model->hf_config(config.torch_dtype);
  write_token_ids(config.token_ids, root);
  if (!quantization.empty()) root["quantization_config"] = nlohmann::ordered_json::parse(quantization);
  return root.dump(2) + "\n";
}

std::string write_generation_config(const HfTokenIds& ids) {
  nlohmann::ordered_json root{{"_from_model_config", true}};
  write_token_ids(ids, root);
  return root.dump(2) + "\n";
}

bool is_ignored_hf_name(const std::string& hf) { return hf.ends_with("rotary_emb.inv_freq"); }

std::vector<std::pair<std::string, std::string>> parse_hf_index(std::string_view text, const std::string& what) {
  const Json root = parse_json(text, what);
  const Json& map = member(root, "weight_map", what);
  check(map.is_object(), "{}: weight_map expects an object", what);
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const auto& [tensor, file] : map.items()) {
    check(file.is_string(), "{}: weight_map expects file names, found another type at {}", what, tensor);
    std::string name = file.get<std::string>();
    check(name.ends_with(".safetensors") && name.find('/') == std::string::npos && name.find('\0') == std::string::npos,
          "{}: {} is not the name of a safetensors file in this folder", what, name);
    pairs.emplace_back(tensor, std::move(name));
  }
  return pairs;
}

}  // namespace halftone
