#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "halftone/fused/rope.h"
#include "halftone/models/family.h"
#include "halftone/models/hf_reader.h"

// Dense decoders: pre-norm blocks of grouped-query attention and SwiGLU (platform.md 4). What sets their families apart is a record.
namespace halftone {

// A row of a family's table.
struct DecoderFlavor {
  const char* name;
  int64_t dim, layers, heads, kv_heads;
  int64_t ffn;  // 0: from ffn_multiplier and multiple_of
  int64_t vocab;
  bool tied = false;
  double rope_theta = 0;  // 0, here and below: the family's
  int64_t max_seq_len = 0, window = 0;
  bool rope_scaling = false;
  double ffn_multiplier = 1;
  int64_t multiple_of = 256;
};

struct DecoderTraits {
  enum class Windows { none, all_layers, some_layers };
  std::span<const DecoderFlavor> flavors;
  std::span<const NeutralEntry> neutral;  // of config.json, beside those of all decoders
  bool rotate_halves = false;             // as in Hugging Face's files; else neighbouring pairs, and rows of wq and wk are permuted there
  bool qk_norm = false;                   // RMSNorm of every head of q and k before the rotation
  bool qkv_bias = false;                  // always
  bool may_attention_bias = false;        // q, k, v and o where config.json says so
  bool may_mlp_bias = false;              // likewise
  Windows windows = Windows::none;        // by config.json
  int64_t head_dim = 0;                   // where nothing says it; 0: dim / heads
  double norm_eps = 1e-5, rope_theta = 10000;  // of flavours
  int64_t max_seq_len = 32768;
};

// Hyper-parameters, as model.overrides names them.
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
  bool rope_scaling = false;  // by the settings that follow (fused/rope.h)
  std::string rope_type = "llama3";
  double rope_factor = 8, rope_low_freq_factor = 1, rope_high_freq_factor = 4, rope_beta_fast = 32, rope_beta_slow = 1;
  double rope_attention_factor = 0;  // 0: 0.1 ln(factor) + 1
  bool rope_truncate = true;
  int64_t rope_original_context = 8192;
  int64_t rotary_dim = 0;  // elements of a head, from its first on, that are rotated; 0: all
  double norm_eps = 1e-5;
  bool tied = false;
  bool depth_init = true;
  std::string init = "v1";  // or "v2" (platform.md 4.6)
  bool block_causal = false;
  bool attention_bias = false, mlp_bias = false;
  int64_t window = 0;               // above 0: tokens that a token sees, itself the last, in layers with a window
  std::string window_layers = "w";  // w: with a window, f: without; from layer 0 on, repeated

  int64_t ffn() const;
  int64_t head() const { return head_dim > 0 ? head_dim : dim / n_heads; }
  int64_t window_of(int64_t layer) const;
  RopeScaling rope() const;  // rope_type none unless rope_scaling
  const DecoderTraits& traits() const { return *owner->decoder; }
  bool qkv_bias() const { return traits().qkv_bias || attention_bias; }
  void validate() const;  // Error naming the field

  const ModelFamily& family() const override { return *owner; }
  OptionTable hf_parameters() const override;
  nlohmann::ordered_json hf_config(const std::string& torch_dtype) const override;
  bool tied_head() const override { return tied; }
  int64_t rotated_heads(std::string_view native) const override;
};

// One walk for overrides, checkpoints and printing.
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
}

std::shared_ptr<ModelDescription> decoder_flavor(const ModelFamily& family, const std::string& name);
std::shared_ptr<ModelDescription> read_decoder(const ModelFamily& family, const nlohmann::json& config, const std::string& what);
inline constexpr ModelFamily::TensorName kDecoderTensors[] = {
    {"model.embed_tokens.weight", "tok_embeddings.weight"},
    {"model.norm.weight", "norm.weight"},
    {"lm_head.weight", "output.weight"},
    {"model.layers.{}.input_layernorm.weight", "layers.{}.attention_norm.weight"},
    {"model.layers.{}.post_attention_layernorm.weight", "layers.{}.ffn_norm.weight"},
    {"model.layers.{}.self_attn.q_proj.weight", "layers.{}.attention.wq.weight"},
    {"model.layers.{}.self_attn.k_proj.weight", "layers.{}.attention.wk.weight"},
    {"model.layers.{}.self_attn.v_proj.weight", "layers.{}.attention.wv.weight"},
    {"model.layers.{}.self_attn.o_proj.weight", "layers.{}.attention.wo.weight"},
    {"model.layers.{}.self_attn.q_proj.bias", "layers.{}.attention.wq.bias"},
    {"model.layers.{}.self_attn.k_proj.bias", "layers.{}.attention.wk.bias"},
    {"model.layers.{}.self_attn.v_proj.bias", "layers.{}.attention.wv.bias"},
    {"model.layers.{}.self_attn.o_proj.bias", "layers.{}.attention.wo.bias"},
    {"model.layers.{}.self_attn.q_norm.weight", "layers.{}.attention.q_norm.weight"},
    {"model.layers.{}.self_attn.k_norm.weight", "layers.{}.attention.k_norm.weight"},
    {"model.layers.{}.mlp.gate_proj.weight", "layers.{}.feed_forward.w1.weight"},
    {"model.layers.{}.mlp.up_proj.weight", "layers.{}.feed_forward.w3.weight"},
    {"model.layers.{}.mlp.down_proj.weight", "layers.{}.feed_forward.w2.weight"},
    {"model.layers.{}.mlp.gate_proj.bias", "layers.{}.feed_forward.w1.bias"},
    {"model.layers.{}.mlp.up_proj.bias", "layers.{}.feed_forward.w3.bias"},
    {"model.layers.{}.mlp.down_proj.bias", "layers.{}.feed_forward.w2.bias"},
};

// The record of a family.
constexpr ModelFamily decoder_family(std::string_view name, std::string_view hf_type, std::string_view hf_architecture,
                                     const DecoderTraits& traits) {
  return {.name = name,
          .hf_type = hf_type,
          .hf_architecture = hf_architecture,
          .tensors = kDecoderTensors,
          .flavor = decoder_flavor,
          .read_hf = read_decoder,
          .decoder = &traits};
}

}  // namespace halftone
