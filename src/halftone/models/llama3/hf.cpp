#include <algorithm>
#include <nlohmann/json.hpp>

#include "halftone/models/hf_reader.h"
#include "halftone/models/llama3/config.h"

// config.json and tensors of Hugging Face's LlamaForCausalLM.
namespace halftone::llama3 {
namespace {

constexpr ModelFamily::TensorName kTensors[] = {
    {"model.embed_tokens.weight", "tok_embeddings.weight"},
    {"model.norm.weight", "norm.weight"},
    {"lm_head.weight", "output.weight"},
    {"model.layers.{}.input_layernorm.weight", "layers.{}.attention_norm.weight"},
    {"model.layers.{}.post_attention_layernorm.weight", "layers.{}.ffn_norm.weight"},
    {"model.layers.{}.self_attn.q_proj.weight", "layers.{}.attention.wq.weight"},
    {"model.layers.{}.self_attn.k_proj.weight", "layers.{}.attention.wk.weight"},
    {"model.layers.{}.self_attn.v_proj.weight", "layers.{}.attention.wv.weight"},
    {"model.layers.{}.self_attn.o_proj.weight", "layers.{}.attention.wo.weight"},
    {"model.layers.{}.mlp.gate_proj.weight", "layers.{}.feed_forward.w1.weight"},
    {"model.layers.{}.mlp.up_proj.weight", "layers.{}.feed_forward.w3.weight"},
    {"model.layers.{}.mlp.down_proj.weight", "layers.{}.feed_forward.w2.weight"},
};

// Entries of config.json that are not here and that nothing below reads do not matter.
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

struct RopeScaling {  // rope_type "llama3"
  double factor, low_freq_factor, high_freq_factor;
  int64_t original_context;
  bool operator==(const RopeScaling&) const = default;
};

// RoPE as one or several entries of config.json say it; those that stand must say the same.
struct RopeEntries {
  std::optional<double> theta{};
  std::optional<std::optional<RopeScaling>> scaling{};  // inner none: rope_type default
  std::string theta_from{}, scaling_from{};
};

std::string text_of(const std::optional<RopeScaling>& s) {
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
  if (is_set(rope, "rope_theta")) add_theta(positive_member(rope, "rope_theta", place), key + ".rope_theta", all, what);
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
  std::optional<RopeScaling> scaling;
  std::vector<std::string_view> known = {"rope_theta", "type", "rope_type", "partial_rotary_factor"};
  if (is_set(rope, "partial_rotary_factor"))
    refuse_unless(rope["partial_rotary_factor"], Json::array({1}), key + ".partial_rotary_factor", what);
  if (type == "llama3") {
    known.insert(known.end(), {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"});
    scaling = RopeScaling{
        .factor = positive_member(rope, "factor", place),
        .low_freq_factor = positive_member(rope, "low_freq_factor", place),
        .high_freq_factor = positive_member(rope, "high_freq_factor", place),
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

void read_rope(const Json& root, Config& config, const std::string& what) {
  RopeEntries all;
  if (is_set(root, "rope_theta")) add_theta(positive_member(root, "rope_theta", what), "rope_theta", all, what);
  for (const char* key : {"rope_scaling", "rope_parameters"})
    if (is_set(root, key)) add_rope(root[key], key, all, what);
  config.rope_theta = all.theta.value_or(10000);  // transformers' default
  const std::optional<RopeScaling> scaling = all.scaling.value_or(std::nullopt);
  config.rope_scaling = scaling.has_value();
  if (scaling) {
    config.rope_factor = scaling->factor, config.rope_low_freq_factor = scaling->low_freq_factor;
    config.rope_high_freq_factor = scaling->high_freq_factor, config.rope_original_context = scaling->original_context;
  }
  const char* original = "original_max_position_embeddings";
  if (!is_set(root, original)) return;
  check(scaling && integer_member(root, original, what) == scaling->original_context, "{}: {} = {} has no effect beside {}; leave it out",
        what, original, short_text(root[original]), text_of(scaling));
}

// Accepts transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters), which must agree where both stand.
std::shared_ptr<ModelDescription> read_hf(const Json& root, const std::string& what) {
  refuse_entries(root, kNeutral, what);
  auto config = std::make_shared<Config>();
  Config& c = *config;
  c.dim = size_member(root, "hidden_size", what);
  c.n_layers = size_member(root, "num_hidden_layers", what);
  c.n_heads = size_member(root, "num_attention_heads", what);
  c.n_kv_heads = is_set(root, "num_key_value_heads") ? size_member(root, "num_key_value_heads", what) : c.n_heads;
  c.ffn_dim = size_member(root, "intermediate_size", what);
  c.vocab_size = size_member(root, "vocab_size", what);
  c.head_dim = is_set(root, "head_dim") ? size_member(root, "head_dim", what) : c.dim / c.n_heads;
  check(c.n_heads % c.n_kv_heads == 0, "{}: {} attention heads are no multiple of {} key-value heads", what, c.n_heads, c.n_kv_heads);
  check(c.head_dim >= 2 && c.head_dim % 2 == 0, "{}: head_dim {} must be even", what, c.head_dim);
  check(is_set(root, "head_dim") || c.dim % c.n_heads == 0, "{}: hidden_size {} is no multiple of {} heads", what, c.dim, c.n_heads);
  if (is_set(root, "max_position_embeddings")) c.max_seq_len = size_member(root, "max_position_embeddings", what);
  c.norm_eps = is_set(root, "rms_norm_eps") ? positive_member(root, "rms_norm_eps", what) : 1e-6;  // transformers' default
  read_rope(root, c, what);
  if (is_set(root, "tie_word_embeddings")) c.tied = bool_member(root, "tie_word_embeddings", what);
  return config;
}

}  // namespace

const ModelFamily kFamily = {
    .name = "llama3",
    .hf_type = "llama",
    .hf_architecture = "LlamaForCausalLM",
    .tensors = kTensors,
    .flavor = [](const std::string& name) -> std::shared_ptr<ModelDescription> { return std::make_shared<Config>(flavor(name)); },
    .read_hf = read_hf,
};

const ModelFamily& Config::family() const { return kFamily; }

OptionTable Config::hf_parameters() const {
  OptionTable table = hyper_parameters();
  table["ffn_dim"] = ffn(), table["head_dim"] = head();
  for (const char* name : {"ffn_dim_multiplier", "multiple_of", "max_seq_len", "depth_init", "block_causal"}) table.erase(name);
  if (!rope_scaling)
    for (const char* name : {"rope_factor", "rope_low_freq_factor", "rope_high_freq_factor", "rope_original_context"}) table.erase(name);
  return table;
}

nlohmann::ordered_json Config::hf_config(const std::string& torch_dtype) const {
  nlohmann::ordered_json root{{"architectures", {kFamily.hf_architecture}},
                              {"model_type", kFamily.hf_type},
                              {"hidden_size", dim},
                              {"num_hidden_layers", n_layers},
                              {"num_attention_heads", n_heads},
                              {"num_key_value_heads", n_kv_heads},
                              {"head_dim", head()},
                              {"intermediate_size", ffn()},
                              {"vocab_size", vocab_size},
                              {"max_position_embeddings", max_seq_len},
                              {"hidden_act", "silu"},
                              {"rms_norm_eps", norm_eps},
                              {"attention_bias", false},
                              {"mlp_bias", false},
                              {"tie_word_embeddings", tied},
                              {"torch_dtype", torch_dtype},
                              {"dtype", torch_dtype},
                              {"rope_theta", rope_theta}};
  nlohmann::ordered_json rope{{"rope_type", "default"}};
  if (rope_scaling) {
    rope = {{"rope_type", "llama3"},
            {"factor", rope_factor},
            {"low_freq_factor", rope_low_freq_factor},
            {"high_freq_factor", rope_high_freq_factor},
            {"original_max_position_embeddings", rope_original_context}};
    root["rope_scaling"] = rope;
  }
  rope["rope_theta"] = rope_theta;
  root["rope_parameters"] = rope;
  return root;
}

int64_t Config::rotated_heads(std::string_view native) const {
  if (native.ends_with(".attention.wq.weight")) return n_heads;
  if (native.ends_with(".attention.wk.weight")) return n_kv_heads;
  return 0;
}

}  // namespace halftone::llama3
