#include "halftone/checkpoint/hf_config.h"

#include <algorithm>
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

// Entries that change what a Llama computes and that are not honoured, with the values at which they change nothing (a list: each of
// its elements; null always). Entries of config.json that are not here and that nothing below reads do not matter.
struct NeutralEntry {
  const char *key, *values;
};
constexpr NeutralEntry kNeutral[] = {
    {"attention_bias", "[false]"},
    {"mlp_bias", "[false]"},
    {"hidden_act", R"(["silu", "swish"])"},
    {"attention_dropout", "[0]"},
    {"sliding_window", "[]"},
    {"use_sliding_window", "[false]"},
    {"layer_types", R"(["full_attention"])"},
    {"no_rope_layers", "[]"},
    {"partial_rotary_factor", "[1]"},
    {"is_causal", "[true]"},
    {"use_bidirectional_attention", "[false]"},
    {"qk_layernorm", "[false]"},
    {"qk_norm", "[false]"},
    {"use_qk_norm", "[false]"},
    {"attention_multiplier", "[]"},
    {"embedding_multiplier", "[1]"},
    {"residual_multiplier", "[1]"},
    {"logits_scaling", "[1]"},
    {"logit_scale", "[1]"},
    {"attn_logit_softcapping", "[]"},
    {"final_logit_softcapping", "[]"},
    {"query_pre_attn_scalar", "[]"},
    {"pretraining_tp", "[1]"},
    {"pruned_heads", "[{}]"},
    {"num_local_experts", "[0, 1]"},
    {"is_encoder_decoder", "[false]"},
    {"add_cross_attention", "[false]"},
    {"quantization_config", "[]"},
    {"compression_config", "[]"},
};

// Refuses an entry of an object unless its value is null, one of `neutral`, or a list of these.
void refuse_unless(const Json& value, const Json& neutral, const std::string& name, const std::string& what) {
  const auto allowed = [&](const Json& v) { return std::find(neutral.begin(), neutral.end(), v) != neutral.end(); };
  if (value.is_null() || allowed(value) || (value.is_array() && std::all_of(value.begin(), value.end(), allowed))) return;
  std::string expected;
  for (const Json& v : neutral) expected += (expected.empty() ? "" : " or ") + v.dump();
  fail("{}: {} = {} is not supported, expected {}", what, name, short_text(value), expected.empty() ? "null or no such entry" : expected);
}

// RoPE as one or several entries of config.json say it; those that stand must say the same.
struct RopeEntries {
  std::optional<double> theta{};
  std::optional<std::optional<HfRopeScaling>> scaling{};  // inner none: rope_type default
  std::string theta_from{}, scaling_from{};
};

std::string text_of(const std::optional<HfRopeScaling>& s) {
  if (!s) return "rope_type default";
  return fmt::format("rope_type llama3, factor {}, low_freq_factor {}, high_freq_factor {}, original_max_position_embeddings {}", s->factor,
                     s->low_freq_factor, s->high_freq_factor, s->original_context);
}

void add_theta(double theta, const std::string& from, RopeEntries& all, const std::string& what) {
  check(all.theta.value_or(theta) == theta, "{}: {} = {} contradicts {} = {}; leave the wrong one out", what, from, theta, all.theta_from,
        all.theta.value_or(0));
  all.theta = theta, all.theta_from = from;
}

// `key` is rope_scaling or rope_parameters.
void add_rope(const Json& rope, const std::string& key, RopeEntries& all, const std::string& what) {
  check(rope.is_object(), "{}: {} = {} is not supported, expected an object with rope_type", what, key, short_text(rope));
  const std::string place = what + ": " + key;
  if (is_set(rope, "rope_theta"))
    add_theta(positive(number_member(rope, "rope_theta", place), "rope_theta", place), key + ".rope_theta", all, what);
  std::string type;
  for (const char* name : {"type", "rope_type"}) {  // "type" in old files
    if (!is_set(rope, name)) continue;
    const std::string said = string_member(rope, name, place);
    refuse_unless(said, Json::array({"default", "llama3"}), fmt::format("{}.{}", key, name), what);
    check(type.empty() || said == type, "{}: {}.type = \"{}\" contradicts {}.rope_type = \"{}\"; leave the wrong one out", what, key, type,
          key, said);
    type = said;
  }
  if (type.empty()) type = "default";
  std::optional<HfRopeScaling> scaling;
  std::vector<std::string_view> known = {"rope_theta", "type", "rope_type", "partial_rotary_factor"};
  if (is_set(rope, "partial_rotary_factor"))
    refuse_unless(rope["partial_rotary_factor"], Json::array({1}), key + ".partial_rotary_factor", what);
  if (type == "llama3") {
    known.insert(known.end(), {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"});
    scaling = HfRopeScaling{
        .factor = positive(number_member(rope, "factor", place), "factor", place),
        .low_freq_factor = positive(number_member(rope, "low_freq_factor", place), "low_freq_factor", place),
        .high_freq_factor = positive(number_member(rope, "high_freq_factor", place), "high_freq_factor", place),
        .original_context = integer_member(rope, "original_max_position_embeddings", place),
    };
    check(scaling->high_freq_factor > scaling->low_freq_factor, "{}: high_freq_factor {} must be above low_freq_factor {}", place,
          scaling->high_freq_factor, scaling->low_freq_factor);
  }
  for (const auto& [name, value] : rope.items()) {
    if (value.is_object()) refuse_unless(value, Json::array(), fmt::format("{}.{}", key, name), what);  // RoPE by kinds of layers
    check(value.is_null() || std::find(known.begin(), known.end(), name) != known.end(),
          "{}: {}.{} = {} has no effect with rope_type \"{}\"; leave it out, or correct rope_type", what, key, name, short_text(value),
          type);
  }
  check(all.scaling.value_or(scaling) == scaling, "{}: {} ({}) contradicts {} ({}); leave the wrong one out", what, key, text_of(scaling),
        all.scaling_from, text_of(all.scaling.value_or(std::nullopt)));
  all.scaling = scaling, all.scaling_from = key;
}

void parse_rope(const Json& root, HfLlamaConfig& config, const std::string& what) {
  RopeEntries all;
  if (is_set(root, "rope_theta")) add_theta(positive(number_member(root, "rope_theta", what), "rope_theta", what), "rope_theta", all, what);
  for (const char* key : {"rope_scaling", "rope_parameters"})
    if (is_set(root, key)) add_rope(root[key], key, all, what);
  config.rope_theta = all.theta.value_or(10000);  // transformers' default
  config.rope_scaling = all.scaling.value_or(std::nullopt);
  const char* original = "original_max_position_embeddings";
  if (!is_set(root, original)) return;
  check(config.rope_scaling && integer_member(root, original, what) == config.rope_scaling->original_context,
        "{}: {} = {} has no effect beside {}; leave it out", what, original, short_text(root[original]), text_of(config.rope_scaling));
}

int64_t size_field(const Json& root, const char* key, const std::string& what) {
  const int64_t value = integer_member(root, key, what);
  check(value >= 1 && value <= (int64_t{1} << 31), "{}: \"{}\" expects 1 to 2^31, found {}", what, key, value);
  return value;
}

std::optional<int64_t> token_id(const Json& root, const char* key, const std::string& what) {
  // Below 0 stands for none in old files.
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

HfLlamaConfig parse_hf_config(std::string_view text, const std::string& what) {
  const Json root = parse_json(text, what);
  const std::string type = string_member(root, "model_type", what);
  check(type == "llama", "{}: model_type \"{}\" is not supported, expected llama", what, type);
  for (const auto& [key, values] : kNeutral)
    if (is_set(root, key)) refuse_unless(root[key], Json::parse(values), key, what);
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
  config.rms_norm_eps = 1e-6;  // transformers' default
  if (is_set(root, "rms_norm_eps")) config.rms_norm_eps = positive(number_member(root, "rms_norm_eps", what), "rms_norm_eps", what);
  parse_rope(root, config, what);
  if (is_set(root, "tie_word_embeddings")) config.tied = bool_member(root, "tie_word_embeddings", what);
  for (const char* key : {"torch_dtype", "dtype"})
    if (is_set(root, key)) config.torch_dtype = string_member(root, key, what);
  config.token_ids = read_token_ids(root, what);
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
  write_token_ids(c.token_ids, root);
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
