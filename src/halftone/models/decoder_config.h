#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "halftone/fused/rope.h"
#include "halftone/models/decoder_tensors.h"
#include "halftone/models/hf_reader.h"

// Decoders: pre-norm blocks of grouped-query or latent attention and of SwiGLU or a mixture of experts (platform.md 4). A record
// describes how families differ.
namespace halftone {

// A row of a family's table.
struct ExpertColumns {
  int64_t experts = 0, top_k = 0, ffn = 0;
  int64_t shared = 0, dense_layers = 0;
  const char* score = "softmax";
  int64_t groups = 0, kept_groups = 0;
  double scale = 1;
  bool norm = true;
};
struct DecoderFlavor {
  const char* name;
  int64_t dim, layers, heads, kv_heads;
  int64_t ffn;  // 0: from ffn_multiplier and multiple_of
  int64_t vocab;
  bool tied = false;
  double rope_theta = 0;  // 0, here and below: the family's default
  int64_t max_seq_len = 0, window = 0;
  bool rope_scaling = false;
  double ffn_multiplier = 1;
  int64_t multiple_of = 256;
  bool block_causal = false;
  ExpertColumns moe = {};
  int64_t q_lora_rank = 0;
  double mscale = 0;
};

// Latent attention (DeepSeek V2, 2024), common to all flavours of a family.
struct LatentWidths {
  int64_t kv_rank = 0, qk_nope = 0, qk_rope = 0, v = 0;
};

// The GGUF architecture (DecoderTraits::gguf) of plain decoders.
inline constexpr const char* kPlainGguf = "llama";

struct DecoderTraits {
  // Which layers have windows: none; all or none; all or none, by use_sliding_window; those that layer_types names.
  enum class Windows { none, all_layers, switched, some_layers };
  // The config.json spelling of experts.
  enum class Experts { none, qwen, deepseek, gpt_oss };
  std::span<const DecoderFlavor> flavors;
  std::span<const NeutralEntry> neutral{};  // of config.json, in addition to those of all decoders
  bool rotate_halves = false;               // as in Hugging Face's files; else adjacent pairs, and rows of wq and wk are permuted on load
  bool qk_norm = false;                     // RMSNorm of every head of q and k before RoPE
  bool qkv_bias = false, out_bias = false;  // always
  bool may_attention_bias = false;          // q, k, v and o, if config.json says so
  bool may_mlp_bias = false;                // the same for the feed-forward
  Windows windows = Windows::none;          // which layers have a sliding window, from config.json
  int64_t head_dim = 0;                     // default if unset; 0: dim / heads
  double norm_eps = 1e-5, rope_theta = 10000;  // defaults of flavours
  int64_t max_seq_len = 32768;
  RopeScaling rope{};                   // of flavours that set rope_scaling
  bool scales_long_rows_alone = false;  // RoPE scaling only if rows exceed the original context
  Experts experts = Experts::none;
  bool clamped = false;      // experts: GPT-OSS's activation, biases, one weight for gate and up
  bool expert_bias = false;  // selection bias even without balancing
  double balance = 0;        // default of flavours
  bool sinks = false;        // a learned logit per head that belongs to no token
  LatentWidths latent{};     // kv_rank 0: grouped-query attention
  const char* window_layers = "w";
  const char* gguf = nullptr;  // general.architecture of GGUF files, by which llama.cpp selects its graph; null: none
};

// Hyper-parameters by their names in model.overrides.
struct DecoderConfig : DescriptionOf<DecoderConfig> {
  explicit DecoderConfig(const ModelFamily& f) : owner(&f) {}
  const ModelFamily* owner;
  int64_t dim = 256, n_layers = 6, n_heads = 16, n_kv_heads = 16;
  int64_t ffn_dim = 0;  // 0: round_up(int(ffn_dim_multiplier * int(8 dim / 3)), multiple_of)
  double ffn_dim_multiplier = 1.0;
  int64_t multiple_of = 256;
  int64_t head_dim = 0;  // 0: dim / n_heads
  int64_t vocab_size = 2048;
  int64_t max_seq_len = 131072;
  double rope_theta = 500000;
  bool rope_scaling = false;  // enables the settings that follow (fused/rope.h)
  std::string rope_type = "llama3";
  double rope_factor = 8, rope_low_freq_factor = 1, rope_high_freq_factor = 4, rope_beta_fast = 32, rope_beta_slow = 1;
  double rope_attention_factor = 0;  // 0: 0.1 ln(factor) + 1
  bool rope_truncate = true;
  int64_t rope_original_context = 8192;
  int64_t rotary_dim = 0;  // leading elements of a head that are rotated; 0: all
  double norm_eps = 1e-5;
  bool tied = false;
  bool depth_init = true;
  std::string init = "v1";  // or "v2" (platform.md 4.6)
  bool block_causal = false;
  bool attention_bias = false, mlp_bias = false;
  int64_t window = 0;               // above 0: tokens that a token sees, itself included, in layers with a window
  std::string window_layers = "w";  // w: with a window, f: without; from layer 0 on, repeated
  // Experts instead of the feed-forward, after the first dense_layers; 0: none.
  int64_t num_experts = 0, experts_per_token = 0, expert_ffn_dim = 0;
  int64_t shared_experts = 0, dense_layers = 0;  // shared: one FFN of this many expert widths, for all tokens
  std::string route_score = "softmax";           // or "sigmoid"
  bool route_norm = true;                        // gates of a token sum to 1
  double route_scale = 1;
  int64_t route_groups = 0, route_kept_groups = 0;
  double balance = 0;                           // step of expert_bias against the load; 0: off
  double route_aux_loss = 0, route_z_loss = 0;  // coefficients of Switch's balancing loss and of the router z-loss
  // Latent attention; kv_lora_rank 0: none.
  int64_t q_lora_rank = 0, kv_lora_rank = 0, qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
  double latent_norm_eps = 0;  // of its norms; 0: norm_eps
  double mscale = 0;           // with YaRN the scores are scaled by (0.1 mscale ln(factor) + 1)^2

  int64_t ffn() const;
  bool latent() const { return kv_lora_rank > 0; }
  int64_t head() const { return latent() ? qk_nope_head_dim + qk_rope_head_dim : head_dim > 0 ? head_dim : dim / n_heads; }
  int64_t rotated() const { return latent() ? qk_rope_head_dim : rotary_dim > 0 ? rotary_dim : head(); }
  double score_factor() const;  // multiplies the scores, in addition to head()^-0.5
  double latent_eps() const { return latent_norm_eps > 0 ? latent_norm_eps : norm_eps; }
  bool has_experts(int64_t layer) const { return num_experts > 0 && layer >= dense_layers; }
  bool has_expert_bias() const { return num_experts > 0 && (traits().expert_bias || balance > 0); }
  int64_t window_of(int64_t layer) const;
  RopeScaling rope() const;  // rope_type none unless rope_scaling
  const DecoderTraits& traits() const { return *owner->decoder; }
  bool qkv_bias() const { return traits().qkv_bias || attention_bias; }
  bool out_bias() const { return traits().out_bias || attention_bias; }
  void validate() const;  // Error naming the field
  void validate_experts() const;
  void validate_latent() const;

  const ModelFamily& family() const override { return *owner; }
  bool set(const std::string& name, const OptionValue& value) override;  // n_heads of latent attention sets n_kv_heads, too
  OptionTable hf_parameters() const override;
  nlohmann::ordered_json hf_config(const std::string& torch_dtype) const override;
  bool tied_head() const override { return tied; }
  int64_t rotated_heads(std::string_view native) const override;
  int64_t experts() const override { return num_experts; }
  bool ignores(std::string_view hf) const override;  // layers after the last: DeepSeek's multi-token prediction
};

// Enumerates the fields, for overrides, checkpoints and printing.
template <class C, class F>
void fields(C& c, F&& f) {
  f("dim", c.dim), f("n_layers", c.n_layers), f("n_heads", c.n_heads), f("n_kv_heads", c.n_kv_heads), f("ffn_dim", c.ffn_dim);
  f("ffn_dim_multiplier", c.ffn_dim_multiplier), f("multiple_of", c.multiple_of), f("head_dim", c.head_dim);
  f("vocab_size", c.vocab_size), f("max_seq_len", c.max_seq_len), f("norm_eps", c.norm_eps), f("tied", c.tied);
  f("rope_theta", c.rope_theta), f("rope_scaling", c.rope_scaling), f("rope_type", c.rope_type), f("rope_factor", c.rope_factor);
  f("rope_low_freq_factor", c.rope_low_freq_factor), f("rope_high_freq_factor", c.rope_high_freq_factor);
  f("rope_beta_fast", c.rope_beta_fast), f("rope_beta_slow", c.rope_beta_slow), f("rope_attention_factor", c.rope_attention_factor);
  f("rope_truncate", c.rope_truncate), f("rope_original_context", c.rope_original_context), f("rotary_dim", c.rotary_dim);
  f("attention_bias", c.attention_bias), f("mlp_bias", c.mlp_bias), f("window", c.window), f("window_layers", c.window_layers);
  f("depth_init", c.depth_init), f("init", c.init), f("block_causal", c.block_causal);
  f("num_experts", c.num_experts), f("experts_per_token", c.experts_per_token), f("expert_ffn_dim", c.expert_ffn_dim);
  f("shared_experts", c.shared_experts), f("dense_layers", c.dense_layers), f("route_score", c.route_score), f("route_norm", c.route_norm);
  f("route_scale", c.route_scale), f("route_groups", c.route_groups), f("route_kept_groups", c.route_kept_groups);
  f("balance", c.balance), f("route_aux_loss", c.route_aux_loss), f("route_z_loss", c.route_z_loss);
  f("q_lora_rank", c.q_lora_rank), f("kv_lora_rank", c.kv_lora_rank), f("mscale", c.mscale);
  f("qk_nope_head_dim", c.qk_nope_head_dim), f("qk_rope_head_dim", c.qk_rope_head_dim), f("v_head_dim", c.v_head_dim);
  f("latent_norm_eps", c.latent_norm_eps);
}

std::shared_ptr<ModelDescription> decoder_flavor(const ModelFamily& family, const std::string& name);
std::shared_ptr<ModelDescription> read_decoder(const ModelFamily& family, const nlohmann::json& config, const std::string& what);

bool has_decoder_flavor(const ModelFamily& family, std::string_view name);

// The ModelFamily record of a decoder family.
constexpr ModelFamily decoder_family(std::string_view name, std::string_view hf_type, std::string_view hf_architecture,
                                     const DecoderTraits& traits, std::span<const ModelFamily::TensorName> tensors = kDecoderTensors) {
  return {.name = name,
          .hf_type = hf_type,
          .hf_architecture = hf_architecture,
          .tensors = tensors,
          .flavor = decoder_flavor,
          .read_hf = read_decoder,
          .decoder = &traits};
}

}  // namespace halftone
