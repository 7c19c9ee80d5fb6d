#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "halftone/models/family.h"

namespace halftone::llama3 {

// Hyper-parameters of the Llama 3 family (platform.md 4.1).
struct Config : DescriptionOf<Config> {
  int64_t dim = 256, n_layers = 6, n_heads = 16, n_kv_heads = 16;
  int64_t ffn_dim = 0;  // 0: round_up(int(ffn_dim_multiplier * int(8 dim / 3)), multiple_of)
  double ffn_dim_multiplier = 1.0;
  int64_t multiple_of = 256;
  int64_t head_dim = 0;  // 0: dim / n_heads
  int64_t vocab_size = 2048;
  int64_t max_seq_len = 131072;
  double rope_theta = 500000;
  bool rope_scaling = true;  // llama3 scaling of the frequencies (platform.md 4.5)
  double rope_factor = 8, rope_low_freq_factor = 1, rope_high_freq_factor = 4;
  int64_t rope_original_context = 8192;
  double norm_eps = 1e-5;
  bool tied = false;
  bool depth_init = true;
  bool block_causal = false;

  int64_t ffn() const;
  int64_t head() const { return head_dim > 0 ? head_dim : dim / n_heads; }
  void validate() const;  // Error naming the field

  const ModelFamily& family() const override;
  OptionTable hf_parameters() const override;
  nlohmann::ordered_json hf_config(const std::string& torch_dtype) const override;
  bool tied_head() const override { return tied; }
  int64_t rotated_heads(std::string_view native) const override;
};

// Flavours: debugmodel, 1B, 3B, 8B, 70B, 405B, with suffixes _flex, _flex_attn, _varlen, _varlen_attn = block_causal.
Config flavor(const std::string& name);
std::vector<std::string> flavors();

extern const ModelFamily kFamily;  // hf.cpp

// One walk for overrides, checkpoints and printing.
template <class C, class F>
void fields(C& c, F&& f) {
  f("dim", c.dim), f("n_layers", c.n_layers), f("n_heads", c.n_heads), f("n_kv_heads", c.n_kv_heads), f("ffn_dim", c.ffn_dim);
  f("ffn_dim_multiplier", c.ffn_dim_multiplier), f("multiple_of", c.multiple_of), f("head_dim", c.head_dim);
  f("vocab_size", c.vocab_size), f("max_seq_len", c.max_seq_len), f("rope_theta", c.rope_theta), f("rope_scaling", c.rope_scaling);
  f("rope_factor", c.rope_factor), f("rope_low_freq_factor", c.rope_low_freq_factor), f("rope_high_freq_factor", c.rope_high_freq_factor);
  f("rope_original_context", c.rope_original_context), f("norm_eps", c.norm_eps), f("tied", c.tied), f("depth_init", c.depth_init);
  f("block_causal", c.block_causal);
}

}  // namespace halftone::llama3
