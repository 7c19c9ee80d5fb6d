#include <algorithm>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/models/decoder_hf_experts.h"
#include "halftone/models/rope_reader.h"

// config.json of Hugging Face's decoders.
namespace halftone {
namespace {

using Windows = DecoderTraits::Windows;

// Entries of config.json that are neither listed here nor read below have no effect on the result.
constexpr NeutralEntry kNeutral[] = {
    {"hidden_act", R"(["silu", "swish"])"},
    {"attention_dropout", "[0]"},
    {"no_rope_layers", "[]"},
    {"rope_interleaved", "[false]"},
    {"use_mrope", "[false]"},
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
    {"is_encoder_decoder", "[false]"},
    {"add_cross_attention", "[false]"},
};
constexpr NeutralEntry kNoWindows[] = {
    {"sliding_window", "[]"}, {"use_sliding_window", "[false]"}, {"layer_types", R"(["full_attention"])"}};
constexpr const char *kFull = "full_attention", *kSliding = "sliding_attention";

// The shortest text that `layers` is a repetition of.
std::string shortest_period(const std::string& layers) {
  for (size_t period = 1; period < layers.size(); ++period) {
    bool repeats = true;
    for (size_t i = period; repeats && i < layers.size(); ++i) repeats = layers[i] == layers[i - period];
    if (repeats) return layers.substr(0, period);
  }
  return layers;
}

bool is_switched_on(const Json& root, const std::string& what) {
  return is_set(root, "use_sliding_window") && bool_member(root, "use_sliding_window", what);
}

// A window in some layers: named by layer_types, or those from max_window_layers on. use_sliding_window = false disables them whatever
// the other entries say, as published files rely on. Families with default layer types (wf) have no such switch.
void read_some_windows(const Json& root, DecoderConfig& c, const std::string& what) {
  const std::string usual = c.traits().window_layers;
  const bool switched = usual == "w";
  const bool on = is_set(root, "sliding_window") && (!switched || is_switched_on(root, what));
  std::string layers(static_cast<size_t>(c.n_layers), 'f');
  if (on) {
    c.window = size_member(root, "sliding_window", what);
    const int64_t first = !switched ? 0 : is_set(root, "max_window_layers") ? integer_member(root, "max_window_layers", what) : 28;
    for (int64_t i = std::max<int64_t>(first, 0); i < c.n_layers; ++i)
      layers[static_cast<size_t>(i)] = usual[static_cast<size_t>(i) % usual.size()];
  }
  if (is_set(root, "layer_types")) {
    const Json& types = root["layer_types"];
    check(types.is_array() && types.size() == layers.size(), "{}: layer_types expects a list of num_hidden_layers = {} names, found {}",
          what, c.n_layers, short_text(types));
    for (size_t i = 0; i < layers.size(); ++i) {
      refuse_unless(types[i], on ? Json::array({kFull, kSliding}) : Json::array({kFull}), fmt::format("layer_types[{}]", i), what);
      layers[i] = types[i] == kSliding ? 'w' : 'f';
    }
  }
  if (layers.find('w') == std::string::npos) {
    c.window = 0;
  } else {
    c.window_layers = shortest_period(layers);
  }
}

void read_windows(const Json& root, DecoderConfig& c, const std::string& what) {
  switch (c.traits().windows) {
    case Windows::none:
      return refuse_entries(root, kNoWindows, what);
    case Windows::all_layers:
      if (is_set(root, "sliding_window")) c.window = size_member(root, "sliding_window", what);
      if (is_set(root, "layer_types"))
        refuse_unless(root["layer_types"], Json::array({c.window > 0 ? kSliding : kFull}), "layer_types", what);
      if (is_set(root, "use_sliding_window"))
        refuse_unless(root["use_sliding_window"], Json::array({c.window > 0}), "use_sliding_window", what);
      return;
    case Windows::switched:
      if (is_set(root, "sliding_window") && is_switched_on(root, what)) c.window = size_member(root, "sliding_window", what);
      if (is_set(root, "layer_types"))
        refuse_unless(root["layer_types"], Json::array({c.window > 0 ? kSliding : kFull}), "layer_types", what);
      return;
    case Windows::some_layers:
      return read_some_windows(root, c, what);
  }
}

// false if it is missing.
bool flag(const Json& root, const char* key, bool may, bool always, const std::string& what) {
  if (!is_set(root, key)) return false;
  if (may) return bool_member(root, key, what);
  refuse_unless(root[key], Json::array({always}), key, what);
  return false;
}

}  // namespace

std::shared_ptr<ModelDescription> read_decoder(const ModelFamily& family, const Json& root, const std::string& what) {
  const DecoderTraits& traits = *family.decoder;
  refuse_entries(root, kNeutral, what);
  auto config = std::make_shared<DecoderConfig>(family);
  DecoderConfig& c = *config;
  c.dim = size_member(root, "hidden_size", what);
  c.n_layers = size_member(root, "num_hidden_layers", what);
  c.n_heads = size_member(root, "num_attention_heads", what);
  c.n_kv_heads = is_set(root, "num_key_value_heads") ? size_member(root, "num_key_value_heads", what) : c.n_heads;
  c.ffn_dim = size_member(root, "intermediate_size", what);
  c.vocab_size = size_member(root, "vocab_size", what);
  check(c.n_heads % c.n_kv_heads == 0, "{}: {} attention heads are not a multiple of {} key-value heads", what, c.n_heads, c.n_kv_heads);
  check(c.n_layers <= 10000, "{}: num_hidden_layers {} is above 10000", what, c.n_layers);
  c.norm_eps = 1e-6;  // transformers' default, except for GPT-OSS
  if (is_set(root, "rms_norm_eps") || traits.sinks) c.norm_eps = positive_member(root, "rms_norm_eps", what);
  if (traits.latent.kv_rank > 0) {
    read_latent(root, c, what);
  } else {
    const bool said = is_set(root, "head_dim") || traits.head_dim > 0;
    c.head_dim = is_set(root, "head_dim") ? size_member(root, "head_dim", what) : traits.head_dim > 0 ? traits.head_dim : c.dim / c.n_heads;
    check(c.head_dim >= 2 && c.head_dim % 2 == 0, "{}: head_dim {} must be even", what, c.head_dim);
    check(said || c.dim % c.n_heads == 0, "{}: hidden_size {} is not a multiple of {} heads", what, c.dim, c.n_heads);
  }
  if (is_set(root, "max_position_embeddings")) c.max_seq_len = size_member(root, "max_position_embeddings", what);
  c.attention_bias = flag(root, "attention_bias", traits.may_attention_bias, traits.qkv_bias, what);
  c.mlp_bias = flag(root, "mlp_bias", traits.may_mlp_bias, false, what);
  read_windows(root, c, what);
  read_experts(root, c, what);
  const HfRope rope = read_hf_rope(root, what, c.latent());
  const RopeScaling& s = rope.scaling;
  c.rope_theta = rope.theta, c.rope_scaling = s.type != RopeScaling::Type::none;
  if (c.rope_scaling) {
    c.rope_type = name_of(s.type), c.rope_factor = s.factor, c.rope_original_context = s.original_context;
    c.rope_low_freq_factor = s.low_freq_factor, c.rope_high_freq_factor = s.high_freq_factor;
    c.rope_beta_fast = s.beta_fast, c.rope_beta_slow = s.beta_slow, c.rope_truncate = s.truncate;
    if (s.type == RopeScaling::Type::yarn) c.rope_attention_factor = s.attention_factor;
    if (c.latent()) c.mscale = rope.mscale_all_dim;
  }
  if (is_set(root, "tie_word_embeddings")) c.tied = bool_member(root, "tie_word_embeddings", what);
  return config;
}

OptionTable DecoderConfig::hf_parameters() const {
  OptionTable table = hyper_parameters();
  table["ffn_dim"] = ffn(), table["head_dim"] = head();
  for (const char* name : {"ffn_dim_multiplier", "multiple_of", "max_seq_len", "depth_init", "init", "block_causal", "balance",
                           "route_aux_loss", "route_z_loss"})
    table.erase(name);
  if (rotary_dim == head()) table["rotary_dim"] = int64_t{0};
  const RopeScaling s = rope();
  if (s.type == RopeScaling::Type::yarn) table["rope_attention_factor"] = s.attention_factor;
  // Keeps the scaling settings that its type reads.
  const auto keep = [&](bool kept, std::initializer_list<const char*> names) {
    for (const char* name : names)
      if (!kept) table.erase(name);
  };
  keep(rope_scaling, {"rope_type", "rope_factor"});
  keep(s.type == RopeScaling::Type::llama3, {"rope_low_freq_factor", "rope_high_freq_factor"});
  keep(s.type == RopeScaling::Type::yarn, {"rope_beta_fast", "rope_beta_slow", "rope_attention_factor", "rope_truncate"});
  keep(rope_scaling && s.type != RopeScaling::Type::linear, {"rope_original_context"});
  keep(window > 0, {"window_layers"});
  keep(num_experts > 0, {"num_experts", "experts_per_token", "expert_ffn_dim", "shared_experts", "dense_layers", "route_score",
                         "route_norm", "route_scale", "route_groups", "route_kept_groups"});
  keep(route_groups > 0, {"route_kept_groups"});
  keep(!traits().clamped, {"ffn_dim"});  // the experts' width
  keep(latent(), {"q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "latent_norm_eps"});
  keep(!latent(), {"head_dim", "n_kv_heads"});
  keep(latent() && s.type == RopeScaling::Type::yarn, {"mscale"});
  if (latent()) table["latent_norm_eps"] = latent_eps();
  return table;
}

nlohmann::ordered_json DecoderConfig::hf_config(const std::string& torch_dtype) const {
  check(rotary_dim == 0 || rotary_dim == head(), "{} has no partial rotary embedding (model.overrides.rotary_dim = {})",
        owner->hf_architecture, rotary_dim);
  const DecoderTraits& t = traits();
  const RopeScaling s = rope();
  nlohmann::ordered_json root{{"architectures", {owner->hf_architecture}},
                              {"model_type", owner->hf_type},
                              {"hidden_size", dim},
                              {"num_hidden_layers", n_layers},
                              {"num_attention_heads", n_heads},
                              {"num_key_value_heads", n_kv_heads},
                              {"head_dim", head()},
                              {"intermediate_size", ffn()},
                              {"vocab_size", vocab_size},
                              {"max_position_embeddings", s.type == RopeScaling::Type::dynamic ? rope_original_context : max_seq_len},
                              {"hidden_act", "silu"},
                              {"rms_norm_eps", norm_eps},
                              {"tie_word_embeddings", tied},
                              {"torch_dtype", torch_dtype},
                              {"dtype", torch_dtype}};
  if (t.may_attention_bias || t.out_bias) root["attention_bias"] = out_bias();
  if (t.may_mlp_bias) root["mlp_bias"] = mlp_bias;
  if (t.windows != Windows::none) root["sliding_window"] = window > 0 ? nlohmann::ordered_json(window) : nlohmann::ordered_json();
  const bool switched = t.windows == Windows::switched || (t.windows == Windows::some_layers && t.window_layers == std::string_view("w"));
  if (switched) root["use_sliding_window"] = window > 0;
  if (t.windows == Windows::some_layers) {
    int64_t first = 0;  // for readers that do not know layer_types
    while (first < n_layers && window_of(first) == 0) ++first;
    if (switched) root["max_window_layers"] = first;
    for (int64_t i = 0; i < n_layers; ++i) root["layer_types"].push_back(window_of(i) > 0 ? kSliding : kFull);
  }
  write_experts(*this, root);
  if (latent()) write_latent(*this, root);
  write_hf_rope({rope_theta, s, latent() ? mscale : 0}, root);
  return root;
}

int64_t DecoderConfig::rotated_heads(std::string_view native) const {
  if (traits().rotate_halves || latent()) return 0;  // Hugging Face's latent attention rotates adjacent pairs too
  const auto is_of = [&](std::string_view name) {
    return native.ends_with(fmt::format(".attention.{}.weight", name)) || native.ends_with(fmt::format(".attention.{}.bias", name));
  };
  return is_of("wq") ? n_heads : is_of("wk") ? n_kv_heads : 0;
}

bool DecoderConfig::ignores(std::string_view hf) const {
  constexpr std::string_view kLayers = "model.layers.";
  if (!latent() || !hf.starts_with(kLayers)) return false;
  hf.remove_prefix(kLayers.size());
  const std::string number(hf.substr(0, std::min(hf.find_first_not_of("0123456789"), hf.size())));
  return !number.empty() && number.size() < 7 && std::stoll(number) >= n_layers;
}

}  // namespace halftone
