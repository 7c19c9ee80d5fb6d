#include "halftone/models/decoder_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "halftone/base/error.h"
#include "halftone/models/rope_reader.h"

namespace halftone {
namespace {

constexpr std::array<std::string_view, 4> kSuffixes = {"_flex_attn", "_varlen_attn", "_flex",
                                                       "_varlen"};  // the same sizes with block_causal

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

double DecoderConfig::score_factor() const {
  const double magnitude = rope_scaling && rope_type == "yarn" && rope_factor > 1 ? 0.1 * mscale * std::log(rope_factor) + 1 : 1;
  return magnitude * magnitude;
}

bool DecoderConfig::set(const std::string& name, const OptionValue& value) {
  const bool known = DescriptionOf::set(name, value);
  if (name == "n_heads" && latent()) n_kv_heads = n_heads;
  return known;
}

void DecoderConfig::validate() const {
  const std::string_view name = owner->name;
  check(dim > 0 && n_layers > 0 && n_heads > 0 && vocab_size > 0 && multiple_of > 0,
        "model: dim, n_layers, n_heads, vocab_size and multiple_of must be positive, found {}, {}, {}, {}, {}", dim, n_layers, n_heads,
        vocab_size, multiple_of);
  check(n_kv_heads > 0 && n_heads % n_kv_heads == 0, "model.overrides.n_kv_heads: {} does not divide n_heads = {}", n_kv_heads, n_heads);
  check(latent() || head_dim > 0 || dim % n_heads == 0, "model.overrides.dim: {} is not a multiple of n_heads = {}; set head_dim", dim,
        n_heads);
  check(head() % 8 == 0 && head() <= 256, "model: head_dim must be a multiple of 8 up to 256, found {}", head());
  check(ffn() > 0 && ffn() % 8 == 0, "model: the feed-forward width must be a positive multiple of 8, found {}", ffn());
  check(rope_theta > 0 && norm_eps > 0, "model: rope_theta and norm_eps must be positive, found {} and {}", rope_theta, norm_eps);
  validate_experts();
  validate_latent();
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

void DecoderConfig::validate_experts() const {
  const bool has = traits().experts != DecoderTraits::Experts::none;
  check(num_experts >= (has ? 1 : 0) && (has || num_experts == 0), "model.overrides.num_experts: {} has {}, found {}", owner->name,
        has ? "experts, at least one" : "no experts", num_experts);
  if (!has) return;
  check(experts_per_token >= 1 && experts_per_token <= num_experts,
        "model.overrides.experts_per_token: expected 1 to num_experts = {}, found {}", num_experts, experts_per_token);
  check(expert_ffn_dim > 0 && expert_ffn_dim % 8 == 0, "model.overrides.expert_ffn_dim: expected a positive multiple of 8, found {}",
        expert_ffn_dim);
  check(shared_experts >= 0 && dense_layers >= 0 && dense_layers <= n_layers,
        "model.overrides: expected shared_experts of at least 0 and dense_layers of 0 to n_layers, found {} and {}", shared_experts,
        dense_layers);
  check(!traits().clamped || (shared_experts == 0 && dense_layers == 0), "model.overrides: {} has no shared_experts and no dense_layers",
        owner->name);
  check(route_score == "softmax" || route_score == "sigmoid", "model.overrides.route_score: expected softmax or sigmoid, found '{}'",
        route_score);
  check(std::isfinite(route_scale) && route_scale > 0, "model.overrides.route_scale: expected a number above 0, found {}", route_scale);
  for (const auto& [name, value] : {std::pair{"balance", balance}, {"route_aux_loss", route_aux_loss}, {"route_z_loss", route_z_loss}})
    check(value >= 0 && value <= 1, "model.overrides.{}: expected 0 to 1, found {}", name, value);
  if (route_groups == 0) return;
  const int64_t size = route_groups > 0 ? num_experts / route_groups : 0;
  check(size >= 2 && size * route_groups == num_experts,
        "model.overrides.route_groups: {} groups of the {} experts are not of equal size, two or more", route_groups, num_experts);
  check(route_kept_groups >= 1 && route_kept_groups <= route_groups && experts_per_token <= route_kept_groups * size,
        "model.overrides.route_kept_groups: {} of {} groups have no {} experts", route_kept_groups, route_groups, experts_per_token);
}

void DecoderConfig::validate_latent() const {
  const bool has = traits().latent.kv_rank > 0;
  check(latent() == has, "model.overrides.kv_lora_rank: {} has {} attention, found {}", owner->name, has ? "latent" : "no latent",
        kv_lora_rank);
  if (!has) return;
  for (const int64_t width : {q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim})
    check(width >= 0 && width % 8 == 0 && (width > 0 || width == q_lora_rank),
          "model.overrides: widths of latent attention must be positive multiples of 8 (q_lora_rank 0: none), found {}", width);
  check(rotary_dim == 0 && n_kv_heads == n_heads,
        "model.overrides: latent attention has n_kv_heads = n_heads and no rotary_dim, found {} and {}", n_kv_heads, rotary_dim);
  check(latent_norm_eps >= 0 && mscale >= 0, "model.overrides: expected latent_norm_eps and mscale of at least 0, found {} and {}",
        latent_norm_eps, mscale);
}

namespace {

// The name without its block_causal suffix, and whether it had one.
std::pair<std::string_view, bool> without_suffix(std::string_view name) {
  for (const std::string_view suffix : kSuffixes)
    if (name.size() > suffix.size() && name.ends_with(suffix)) return {name.substr(0, name.size() - suffix.size()), true};
  return {name, false};
}

void set_experts(DecoderConfig& c, const ExpertColumns& f) {
  c.num_experts = f.experts, c.experts_per_token = f.top_k, c.expert_ffn_dim = f.ffn;
  c.shared_experts = f.shared, c.dense_layers = f.dense_layers;
  c.route_score = f.score, c.route_norm = f.norm, c.route_scale = f.scale;
  c.route_groups = f.groups, c.route_kept_groups = f.kept_groups;
  if (f.experts > 0) c.balance = c.traits().balance;
}

void set_rope(DecoderConfig& c, const RopeScaling& s) {
  if (s.type == RopeScaling::Type::none) return;
  c.rope_type = name_of(s.type), c.rope_factor = s.factor, c.rope_original_context = s.original_context;
  c.rope_beta_fast = s.beta_fast, c.rope_beta_slow = s.beta_slow, c.rope_truncate = s.truncate;
  c.rope_attention_factor = s.attention_factor;
}

}  // namespace

bool has_decoder_flavor(const ModelFamily& family, std::string_view name) {
  const std::span<const DecoderFlavor> all = family.decoder->flavors;
  return std::any_of(all.begin(), all.end(), [&](const DecoderFlavor& f) { return without_suffix(name).first == f.name; });
}

std::shared_ptr<ModelDescription> decoder_flavor(const ModelFamily& family, const std::string& name) {
  const DecoderTraits& traits = *family.decoder;
  const auto [base, block_causal] = without_suffix(name);
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
    c->window = f.window, c->block_causal = block_causal || f.block_causal;
    if (f.window > 0) c->window_layers = traits.window_layers;
    set_experts(*c, f.moe);
    set_rope(*c, traits.rope);
    c->q_lora_rank = f.q_lora_rank, c->mscale = f.mscale, c->kv_lora_rank = traits.latent.kv_rank;
    c->qk_nope_head_dim = traits.latent.qk_nope, c->qk_rope_head_dim = traits.latent.qk_rope, c->v_head_dim = traits.latent.v;
    return c;
  }
  fail("model.flavor: {} has no flavour '{}'; choose one of {} (and {} for block_causal)", family.name, name, fmt::join(known, ", "),
       fmt::join(kSuffixes, ", "));
}

}  // namespace halftone
