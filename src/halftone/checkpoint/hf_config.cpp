#include "halftone/checkpoint/hf_config.h"

#include <array>
#include <charconv>
#include <cmath>

#include "halftone/base/error.h"
#include "halftone/checkpoint/json_reader.h"

namespace halftone {
namespace {

struct NamePair {
  std::string_view hf, native;
};
constexpr std::array<NamePair, 3> kTopNames{
    {{"model.embed_tokens.weight", "tok_embeddings.weight"}, {"model.norm.weight", "norm.weight"}, {"lm_head.weight", "output.weight"}}};
constexpr std::array<NamePair, 9> kLayerNames{{{"input_layernorm.weight", "attention_norm.weight"},
                                               {"post_attention_layernorm.weight", "ffn_norm.weight"},
                                               {"self_attn.q_proj.weight", "attention.wq.weight"},
                                               {"self_attn.k_proj.weight", "attention.wk.weight"},
                                               {"self_attn.v_proj.weight", "attention.wv.weight"},
                                               {"self_attn.o_proj.weight", "attention.wo.weight"},
                                               {"mlp.gate_proj.weight", "feed_forward.w1.weight"},
                                               {"mlp.up_proj.weight", "feed_forward.w3.weight"},
                                               {"mlp.down_proj.weight", "feed_forward.w2.weight"}}};
constexpr std::string_view kHfLayers = "model.layers.", kNativeLayers = "layers.";

// "layers.12.rest" -> ("12", "rest"); none unless the number is canonical.
std::optional<std::pair<std::string_view, std::string_view>> split_layer(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos || dot == 0 || dot > 6 || (name[0] == '0' && dot > 1)) return std::nullopt;
  for (const char c : name.substr(0, dot))
    if (c < '0' || c > '9') return std::nullopt;
  return std::pair{name.substr(0, dot), name.substr(dot + 1)};
}

std::optional<std::string> translate(std::string_view name, std::string_view NamePair::*from, std::string_view NamePair::*to,
                                     std::string_view from_layers, std::string_view to_layers) {
  for (const NamePair& pair : kTopNames)
    if (name == pair.*from) return std::string(pair.*to);
  if (const auto layer = split_layer(name, from_layers))
    for (const NamePair& pair : kLayerNames)
      if (layer->second == pair.*from) return fmt::format("{}{}.{}", to_layers, layer->first, pair.*to);
  return std::nullopt;
}

bool is_set(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null();
}

double positive(double value, const char* key, const std::string& what) {
  check(std::isfinite(value) && value > 0, "{}: \"{}\" expects a positive number, found {}", what, key, value);
  return value;
}

void parse_rope(const Json& rope, HfLlamaConfig& config, const std::string& what) {
  if (is_set(rope, "rope_theta")) config.rope_theta = positive(number_member(rope, "rope_theta", what), "rope_theta", what);
  const char* key = is_set(rope, "rope_type") ? "rope_type" : "type";  // "type" in old files
  const std::string type = is_set(rope, key) ? string_member(rope, key, what) : "default";
  if (type == "default") return;
  check(type == "llama3", "{}: rope_type \"{}\" is not supported, expected default or llama3", what, type);
  config.rope_scaling = HfRopeScaling{
      .factor = positive(number_member(rope, "factor", what), "factor", what),
      .low_freq_factor = positive(number_member(rope, "low_freq_factor", what), "low_freq_factor", what),
      .high_freq_factor = positive(number_member(rope, "high_freq_factor", what), "high_freq_factor", what),
      .original_context = integer_member(rope, "original_max_position_embeddings", what),
  };
  check(config.rope_scaling->high_freq_factor > config.rope_scaling->low_freq_factor,
        "{}: high_freq_factor {} must be above low_freq_factor {}", what, config.rope_scaling->high_freq_factor,
        config.rope_scaling->low_freq_factor);
}

int64_t size_field(const Json& root, const char* key, const std::string& what) {
  const int64_t value = integer_member(root, key, what);
  check(value >= 1 && value <= (int64_t{1} << 31), "{}: \"{}\" expects 1 to 2^31, found {}", what, key, value);
  return value;
}

std::optional<int64_t> token_id(const Json& root, const char* key, const std::string& what) {
  if (!is_set(root, key)) return std::nullopt;
  const Json& value = root[key];
  if (value.is_array()) return value.empty() ? std::nullopt : std::optional(integer_list(value, 64, what).front());
  return integer_member(root, key, what);
}

}  // namespace

HfLlamaConfig parse_hf_config(std::string_view text, const std::string& what) {
  const Json root = parse_json(text, what);
  const std::string type = string_member(root, "model_type", what);
  check(type == "llama", "{}: model_type \"{}\" is not supported, expected llama", what, type);
  HfLlamaConfig config;
  config.hidden_size = size_field(root, "hidden_size", what);
  config.n_layers = size_field(root, "num_hidden_layers", what);
  config.n_heads = size_field(root, "num_attention_heads", what);
  config.n_kv_heads = is_set(root, "num_key_value_heads") ? size_field(root, "num_key_value_heads", what) : config.n_heads;
  config.intermediate_size = size_field(root, "intermediate_size", what);
  config.vocab_size = size_field(root, "vocab_size", what);
  config.head_dim = is_set(root, "head_dim") ? size_field(root, "head_dim", what) : config.hidden_size / config.n_heads;
  check(config.n_heads % config.n_kv_heads == 0, "{}: {} attention heads are no multiple of {} key-value heads", what, config.n_heads,
        config.n_kv_heads);
  check(config.head_dim >= 2 && config.head_dim % 2 == 0, "{}: head_dim {} must be even", what, config.head_dim);
  check(is_set(root, "head_dim") || config.hidden_size % config.n_heads == 0, "{}: hidden_size {} is no multiple of {} heads", what,
        config.hidden_size, config.n_heads);
  if (is_set(root, "max_position_embeddings")) config.context = size_field(root, "max_position_embeddings", what);
  if (is_set(root, "rms_norm_eps")) config.rms_norm_eps = positive(number_member(root, "rms_norm_eps", what), "rms_norm_eps", what);
  config.rope_theta = 10000;  // transformers' default
  if (is_set(root, "rope_theta")) config.rope_theta = positive(number_member(root, "rope_theta", what), "rope_theta", what);
  for (const char* key : {"rope_scaling", "rope_parameters"})
    if (is_set(root, key)) parse_rope(root[key], config, what + ": " + key);
  if (is_set(root, "tie_word_embeddings")) config.tied = bool_member(root, "tie_word_embeddings", what);
  for (const char* key : {"attention_bias", "mlp_bias"})
    check(!is_set(root, key) || !bool_member(root, key, what), "{}: {} = true is not supported", what, key);
  if (is_set(root, "hidden_act")) {
    const std::string act = string_member(root, "hidden_act", what);
    check(act == "silu", "{}: hidden_act \"{}\" is not supported, expected silu", what, act);
  }
  for (const char* key : {"torch_dtype", "dtype"})
    if (is_set(root, key)) config.torch_dtype = string_member(root, key, what);
  config.bos_token_id = token_id(root, "bos_token_id", what);
  config.eos_token_id = token_id(root, "eos_token_id", what);
  return config;
}

std::string write_hf_config(const HfLlamaConfig& c) {
  nlohmann::ordered_json root{{"architectures", {"LlamaForCausalLM"}},
                              {"model_type", "llama"},
                              {"hidden_size", c.hidden_size},
                              {"num_hidden_layers", c.n_layers},
                              {"num_attention_heads", c.n_heads},
                              {"num_key_value_heads", c.n_kv_heads},
                              {"head_dim", c.head_dim},
                              {"intermediate_size", c.intermediate_size},
                              {"vocab_size", c.vocab_size},
                              {"max_position_embeddings", c.context},
                              {"hidden_act", "silu"},
                              {"rms_norm_eps", c.rms_norm_eps},
                              {"attention_bias", false},
                              {"mlp_bias", false},
                              {"tie_word_embeddings", c.tied},
                              {"torch_dtype", c.torch_dtype},
                              {"dtype", c.torch_dtype},
                              {"rope_theta", c.rope_theta}};
  nlohmann::ordered_json rope{{"rope_type", "default"}};
  if (c.rope_scaling) {
    rope = {{"rope_type", "llama3"},
            {"factor", c.rope_scaling->factor},
            {"low_freq_factor", c.rope_scaling->low_freq_factor},
            {"high_freq_factor", c.rope_scaling->high_freq_factor},
            {"original_max_position_embeddings", c.rope_scaling->original_context}};
    root["rope_scaling"] = rope;
  }
  rope["rope_theta"] = c.rope_theta;
  root["rope_parameters"] = rope;
  if (c.bos_token_id) root["bos_token_id"] = *c.bos_token_id;
  if (c.eos_token_id) root["eos_token_id"] = *c.eos_token_id;
  return root.dump(2) + "\n";
}

std::optional<std::string> hf_name_of(const std::string& native) {
  return translate(native, &NamePair::native, &NamePair::hf, kNativeLayers, kHfLayers);
}
std::optional<std::string> native_name_of(const std::string& hf) {
  return translate(hf, &NamePair::hf, &NamePair::native, kHfLayers, kNativeLayers);
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
