#include "halftone/checkpoint/gguf_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "halftone/base/error.h"

namespace halftone {
namespace {

using Type = RopeScaling::Type;
using Kind = GgufSource::Kind;

struct Name {
  std::string_view native, file;  // without "layers.N." and "blk.N."
};
// ".weight" and ".bias" behind a name stay; a name of experts without them gets them.
constexpr auto kLayerNames = std::to_array<Name>({
    {"attention_norm", "attn_norm"},
    {"ffn_norm", "ffn_norm"},
    {"attention.wq", "attn_q"},
    {"attention.wk", "attn_k"},
    {"attention.wv", "attn_v"},
    {"attention.wo", "attn_output"},
    {"attention.q_norm", "attn_q_norm"},
    {"attention.k_norm", "attn_k_norm"},
    {"attention.wq_a", "attn_q_a"},
    {"attention.wq_b", "attn_q_b"},
    {"attention.wkv_a", "attn_kv_a_mqa"},
    {"attention.kv_norm", "attn_kv_a_norm"},
    {"attention.sinks", "attn_sinks"},
    {"feed_forward.w1", "ffn_gate"},
    {"feed_forward.w3", "ffn_up"},
    {"feed_forward.w2", "ffn_down"},
    {"moe.router.gate", "ffn_gate_inp"},
    {"moe.experts.w1", "ffn_gate_exps"},
    {"moe.experts.w3", "ffn_up_exps"},
    {"moe.experts.w2", "ffn_down_exps"},
    {"moe.experts.mlp2", "ffn_down_exps"},
    {"moe.shared_experts.w1", "ffn_gate_shexp"},
    {"moe.shared_experts.w3", "ffn_up_shexp"},
    {"moe.shared_experts.w2", "ffn_down_shexp"},
});
constexpr auto kModelNames = std::to_array<Name>({
    {"tok_embeddings", "token_embd"},
    {"norm", "output_norm"},
    {"output", "output"},
});

// expert_gating_func.
enum class Gating : uint32_t { softmax = 1, sigmoid = 2 };

std::string architecture(const DecoderConfig& c) {
  const char* name = c.traits().gguf;
  check(name != nullptr, "GGUF: there is no architecture for {}; export it to Hugging Face's layout", c.owner->name);
  return name;
}

// Refuses what the architecture's graph in llama.cpp does not compute.
void check_graph(const DecoderConfig& c) {
  const std::string graph = fmt::format("GGUF: the architecture {}", architecture(c));
  check(c.rotary_dim == 0 || c.rotary_dim == c.head(), "{} rotates whole heads (model.overrides.rotary_dim = {})", graph, c.rotary_dim);
  check(!c.traits().qk_norm || !c.attention_bias, "{} has no biases (model.overrides.attention_bias = true)", graph);
  if (c.num_experts == 0) return;
  const bool latent = c.latent();
  check(latent || (c.route_score == "softmax" && c.route_norm),
        "{} has softmax gates that sum to 1 (found route_score = {}, route_norm = {})", graph, c.route_score, c.route_norm);
  check(latent || (c.route_groups == 0 && c.route_scale == 1 && c.shared_experts == 0 && c.dense_layers == 0),
        "{} has no route_groups, route_scale, shared_experts and dense_layers (model.overrides)", graph);
  check(!latent || c.shared_experts > 0, "{} needs shared experts (model.overrides.shared_experts = 0)", graph);
  check(!latent || c.latent_eps() == c.norm_eps, "{} has one epsilon for all norms, found norm_eps {} and latent_norm_eps {}", graph,
        c.norm_eps, c.latent_eps());
  // llama.cpp knows by the number of layers whether queries have a low rank.
  const bool full_rank = c.n_layers == 26 || c.n_layers == 27 || (c.n_layers == 48 && c.vocab_size == 128256);
  check(!latent || (c.q_lora_rank == 0) == full_rank, "{} with {} layers {} (model.overrides.q_lora_rank = {})", graph, c.n_layers,
        full_rank ? "has queries of full rank" : "needs queries of low rank", c.q_lora_rank);
  if (!c.traits().sinks) return;
  check(c.window > 0 && c.window_layers == "wf", "{} alternates layers with and without a window, found window = {}, window_layers = {}",
        graph, c.window, c.window_layers);
  check(!c.tied, "{} has a head of its own (model.overrides.tied = true)", graph);
}

void add_rope(const DecoderConfig& c, const std::string& arch, GgufMetadata& out) {
  const auto number = [&](const char* key, double value) { out.emplace_back(arch + ".rope." + key, static_cast<float>(value)); };
  out.emplace_back(arch + ".rope.dimension_count", static_cast<uint32_t>(c.rotated()));
  number("freq_base", c.rope_theta);
  const RopeScaling s = c.rope();
  check((gguf_rope_factors(c).empty() || arch == kPlainGguf) && (s.type != Type::linear || !c.latent()),
        "GGUF: the architecture {} has no RoPE scaling of this type (model.overrides.rope_type = {})", arch, c.rope_type);
  if (s.type != Type::linear && s.type != Type::yarn) return;
  out.emplace_back(arch + ".rope.scaling.type", std::string(s.type == Type::linear ? "linear" : "yarn"));
  number("scaling.factor", s.factor);
  if (s.type != Type::yarn) return;
  out.emplace_back(arch + ".rope.scaling.original_context_length", static_cast<uint32_t>(s.original_context));
  number("scaling.yarn_beta_fast", s.beta_fast), number("scaling.yarn_beta_slow", s.beta_slow);
  if (c.latent()) {
    check(c.mscale > 0 && s.attention_factor == 1,
          "GGUF: the architecture {} needs YaRN with equal mscale and mscale_all_dim, found mscale = {}, rope_attention_factor = {}", arch,
          c.mscale, s.attention_factor);
    number("scaling.yarn_log_multiplier", 0.1 * c.mscale);
  } else if (const double usual = s.factor > 1 ? 0.1 * std::log(s.factor) + 1 : 1; s.attention_factor != usual) {
    number("scaling.attn_factor", s.attention_factor / usual);
  }
}

void add_attention(const DecoderConfig& c, const std::string& arch, GgufMetadata& out) {
  const auto size = [&](const char* key, int64_t value) { out.emplace_back(arch + ".attention." + key, static_cast<uint32_t>(value)); };
  size("head_count", c.n_heads);
  out.emplace_back(arch + ".attention.layer_norm_rms_epsilon", static_cast<float>(c.norm_eps));
  if (!c.latent()) {
    size("head_count_kv", c.n_kv_heads), size("key_length", c.head()), size("value_length", c.head());
    if (c.traits().sinks) size("sliding_window", c.window);
    return;
  }
  // Heads share one latent key and value.
  size("head_count_kv", 1), size("key_length", c.kv_lora_rank + c.qk_rope_head_dim), size("value_length", c.kv_lora_rank);
  size("key_length_mla", c.head()), size("value_length_mla", c.v_head_dim), size("kv_lora_rank", c.kv_lora_rank);
  if (c.q_lora_rank > 0) size("q_lora_rank", c.q_lora_rank);
}

void add_experts(const DecoderConfig& c, const std::string& arch, GgufMetadata& out) {
  const auto size = [&](const char* key, int64_t value) { out.emplace_back(arch + "." + key, static_cast<uint32_t>(value)); };
  size("expert_count", c.num_experts), size("expert_used_count", c.experts_per_token), size("expert_feed_forward_length", c.expert_ffn_dim);
  if (!c.latent()) return;
  size("leading_dense_block_count", c.dense_layers), size("expert_shared_count", c.shared_experts);
  out.emplace_back(arch + ".expert_weights_scale", static_cast<float>(c.route_scale));
  out.emplace_back(arch + ".expert_weights_norm", c.route_norm);
  size("expert_gating_func", static_cast<int64_t>(c.route_score == "sigmoid" ? Gating::sigmoid : Gating::softmax));
  if (c.route_groups > 1) size("expert_group_count", c.route_groups), size("expert_group_used_count", c.route_kept_groups);
}

int64_t context_length(const DecoderConfig& c) {
  int64_t length = c.max_seq_len;
  if (!c.traits().sinks && c.window > 0) length = std::min(length, c.window);
  if (const RopeScaling s = c.rope(); s.type == Type::dynamic) length = std::min(length, s.original_context);
  return length;
}

// "layers.12.attention.wq.weight": 12 and "attention.wq.weight".
std::optional<std::pair<std::string, std::string_view>> split_layer(std::string_view native) {
  constexpr std::string_view kLayers = "layers.";
  if (!native.starts_with(kLayers)) return std::nullopt;
  native.remove_prefix(kLayers.size());
  const size_t dot = std::min(native.find('.'), native.size() - 1);
  return std::pair(std::string(native.substr(0, dot)), native.substr(dot + 1));
}

// A name's ending: ".weight", ".bias", or what stands for them in names of experts and sinks.
std::pair<std::string_view, std::string> split_ending(std::string_view name) {
  for (const std::string_view ending : {".weight", ".bias", "_weight", "_bias"})
    if (name.ends_with(ending)) return {name.substr(0, name.size() - ending.size()), "." + std::string(ending.substr(1))};
  return {name, ".weight"};
}

std::string_view file_name(const DecoderConfig& c, std::string_view base, bool layer) {
  if (c.traits().sinks && base == "ffn_norm") return "post_attention_norm";
  if (c.latent() && base == "attention.q_norm") return "attn_q_a_norm";
  const std::span<const Name> names = layer ? std::span<const Name>(kLayerNames) : kModelNames;
  const auto* found = std::find_if(names.data(), names.data() + names.size(), [&](const Name& n) { return n.native == base; });
  return found == names.data() + names.size() ? std::string_view() : found->file;
}

}  // namespace

GgufMetadata gguf_metadata(const DecoderConfig& c) {
  const std::string arch = architecture(c);
  check_graph(c);
  const auto size = [&](const char* key, int64_t value) { return std::pair(arch + "." + key, GgufValue(static_cast<uint32_t>(value))); };
  GgufMetadata out{{"general.architecture", arch},
                   size("vocab_size", c.vocab_size),
                   size("context_length", context_length(c)),
                   size("embedding_length", c.dim),
                   size("block_count", c.n_layers),
                   size("feed_forward_length", c.traits().clamped ? c.expert_ffn_dim : c.ffn())};
  add_attention(c, arch, out);
  add_rope(c, arch, out);
  if (c.num_experts > 0) add_experts(c, arch, out);
  return out;
}

std::vector<GgufSource> gguf_sources(const DecoderConfig& c, const std::string& native, const std::vector<int64_t>& shape) {
  if (c.tied && native == "output.weight") return {};
  const auto layer = split_layer(native);
  const auto [base, ending] = split_ending(layer ? layer->second : std::string_view(native));
  const std::string prefix = layer ? fmt::format("blk.{}.", layer->first) : "";
  if (base == "moe.expert") {  // moe.expert_bias
    if (!c.latent()) return {};
    return {{.name = prefix + "exp_probs_b.bias", .native = native, .shape = shape, .group_rows = 1, .rows = 1}};
  }
  GgufSource all{.native = native, .shape = shape};
  all.groups = shape.size() == 3 ? shape[0] : 1, all.group_rows = shape.size() == 1 ? 1 : shape[shape.size() - 2],
  all.rows = all.group_rows;
  const bool numbers = ending == ".weight" && shape.size() > 1 && base != "moe.router.gate";
  all.kind = !numbers ? Kind::other : base == "tok_embeddings" || base == "output" ? Kind::table : Kind::matrix;
  if (base == "moe.experts.mlp1") {
    // Gate and up alternate. The bias is [E, 2 F]: rows of one element.
    if (shape.size() == 2) all.groups = shape[0], all.group_rows = shape[1];
    all.step = 2, all.rows = all.group_rows / 2, all.shape[1] /= 2;
    std::vector<GgufSource> parts{all, all};
    parts[0].name = prefix + "ffn_gate_exps" + ending, parts[1].name = prefix + "ffn_up_exps" + ending, parts[1].first = 1;
    return parts;
  }
  if (base == "attention.wkv_b") {
    // Per head, keys over values; the graph multiplies queries by the keys' rows.
    all.groups = c.n_heads, all.group_rows = c.qk_nope_head_dim + c.v_head_dim;
    std::vector<GgufSource> parts{all, all};
    parts[0].name = prefix + "attn_k_b.weight", parts[0].rows = c.qk_nope_head_dim, parts[0].transposed = true;
    parts[0].shape = {c.n_heads, c.kv_lora_rank, c.qk_nope_head_dim};
    parts[1].name = prefix + "attn_v_b.weight", parts[1].first = c.qk_nope_head_dim, parts[1].rows = c.v_head_dim;
    parts[1].shape = {c.n_heads, c.v_head_dim, c.kv_lora_rank};
    return parts;
  }
  const std::string_view name = file_name(c, base, layer.has_value());
  check(!name.empty(), "GGUF: the architecture {} has no tensor for {}", architecture(c), native);
  all.name = prefix + std::string(name) + ending;
  return {all};
}

std::vector<float> gguf_rope_factors(const DecoderConfig& c) {
  const RopeScaling s = c.rope();
  if (s.type == Type::none || s.type == Type::linear || s.type == Type::yarn || s.type == Type::dynamic) return {};
  const std::vector<double> plain = rope_frequencies(c.rotated(), c.rope_theta), scaled = rope_frequencies(c.rotated(), c.rope_theta, s);
  std::vector<float> factors(plain.size());
  for (size_t i = 0; i < plain.size(); ++i) factors[i] = static_cast<float>(plain[i] / scaled[i]);
  return factors;
}

}  // namespace halftone
