#include "halftone/models/decoder_config.h"

#include <fmt/ranges.h>

#include <array>
#include <cmath>

#include "halftone/base/error.h"
#include "halftone/models/rope_reader.h"

namespace halftone {
namespace {

constexpr std::array kSuffixes = {"_flex_attn", "_varlen_attn", "_flex", "_varlen"};  // the same sizes with block_causal

}  // namespace

int64_t DecoderConfig::ffn() const {
  if (ffn_dim > 0) return ffn_dim;
  const auto hidden = static_cast<int64_t>(ffn_dim_multiplier * static_cast<double>(8 * dim / 3));
  return (hidden + multiple_of - 1) / multiple_of * multiple_of;
}

int64_t DecoderConfig::window_of(int64_t layer) const {
  return window > 0 && window_layers[static_cast<size_t>(layer) % window_layers.size()] == 'w' ? window : 0;
}

RopeScaling DecoderConfig::rope() const {
  if (!rope_scaling) return {};
  RopeScaling s;
  s.type = rope_type_named(rope_type), s.factor = rope_factor;
  s.low_freq_factor = rope_low_freq_factor, s.high_freq_factor = rope_high_freq_factor;
  s.beta_fast = rope_beta_fast, s.beta_slow = rope_beta_slow, s.truncate = rope_truncate;
  s.attention_factor = rope_attention_factor > 0 ? rope_attention_factor : yarn_attention_factor(rope_factor);
  s.original_context = rope_original_context;
  return s;
}

void DecoderConfig::validate() const {
  const std::string_view name = owner->name;
  check(dim > 0 && n_layers > 0 && n_heads > 0 && vocab_size > 0 && multiple_of > 0,
        "model: dim, n_layers, n_heads, vocab_size and multiple_of must be positive, found {}, {}, {}, {}, {}", dim, n_layers, n_heads,
        vocab_size, multiple_of);
  check(n_kv_heads > 0 && n_heads % n_kv_heads == 0, "model.overrides.n_kv_heads: {} does not divide n_heads = {}", n_kv_heads, n_heads);
  check(head_dim > 0 || dim % n_heads == 0, "model.overrides.dim: {} is not a multiple of n_heads = {}; set head_dim", dim, n_heads);
  check(head() % 8 == 0 && head() <= 256, "model: head_dim must be a multiple of 8 up to 256, found {}", head());
  check(ffn() > 0 && ffn() % 8 == 0, "model: the feed-forward width must be a positive multiple of 8, found {}", ffn());
  check(rope_theta > 0 && norm_eps > 0, "model: rope_theta and norm_eps must be positive, found {} and {}", rope_theta, norm_eps);
  check(rotary_dim >= 0 && rotary_dim % 2 == 0 && rotary_dim <= head(),
        "model.overrides.rotary_dim: expected an even number up to head_dim = {}, found {}", head(), rotary_dim);
  check(init == "v1" || init == "v2", "model.overrides.init: expected v1 or v2, found '{}'", init);
  check(!attention_bias || traits().may_attention_bias, "model.overrides.attention_bias: {} has {}", name,
        traits().qkv_bias ? "biases on q, k and v anyway and none on o" : "no biases");
  check(!mlp_bias || traits().may_mlp_bias, "model.overrides.mlp_bias: {} has no biases there", name);
  check(window >= 0 && (window == 0 || traits().windows != DecoderTraits::Windows::none),
        "model.overrides.window: {} has no sliding windows, found {}", name, window);
  check(!window_layers.empty() && window_layers.find_first_not_of("wf") == std::string::npos,
        "model.overrides.window_layers: expected letters w (with a window) and f (without), found '{}'", window_layers);
  check(traits().windows == DecoderTraits::Windows::some_layers || window_layers == "w",
        "model.overrides.window_layers: {} has its window in all layers or none, expected w, found '{}'", name, window_layers);
  rope();
}

std::shared_ptr<ModelDescription> decoder_flavor(const ModelFamily& family, const std::string& name) {
  const DecoderTraits& traits = *family.decoder;
  std::string base = name;
  bool block_causal = false;
  for (const std::string suffix : kSuffixes) {
    if (base.size() <= suffix.size() || !base.ends_with(suffix)) continue;
    base.resize(base.size() - suffix.size());
    block_causal = true;
    break;
  }
  std::vector<std::string_view> known;
  for (const DecoderFlavor& f : traits.flavors) {
    known.emplace_back(f.name);
    if (base != f.name) continue;
    const auto or_else = [](auto own, auto of_family) { return own > 0 ? own : of_family; };
    auto c = std::make_shared<DecoderConfig>(family);
    c->dim = f.dim, c->n_layers = f.layers, c->n_heads = f.heads, c->n_kv_heads = f.kv_heads;
    c->ffn_dim = f.ffn, c->ffn_dim_multiplier = f.ffn_multiplier, c->multiple_of = f.multiple_of;
    c->vocab_size = f.vocab, c->tied = f.tied, c->head_dim = traits.head_dim;
    c->rope_theta = or_else(f.rope_theta, traits.rope_theta), c->rope_scaling = f.rope_scaling;
    c->max_seq_len = or_else(f.max_seq_len, traits.max_seq_len), c->norm_eps = traits.norm_eps;
    c->window = f.window, c->block_causal = block_causal;
    return c;
  }
  fail("model.flavor: {} has no flavour '{}'; choose one of {} (and {} for block_causal)", family.name, name, fmt::join(known, ", "),
       fmt::join(kSuffixes, ", "));
}

}  // namespace halftone
