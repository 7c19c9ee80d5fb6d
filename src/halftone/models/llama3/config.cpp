#include "halftone/models/llama3/config.h"

#include <array>

#include <fmt/ranges.h>

#include "halftone/base/error.h"

namespace halftone::llama3 {
namespace {

struct Flavor {
  const char* name;
  int64_t dim, layers, heads, kv_heads;
  double ffn_multiplier;
  int64_t multiple_of, vocab;
  bool tied;
};

constexpr std::array kFlavors = {
    Flavor{"debugmodel", 256, 6, 16, 16, 1.0, 256, 2048, false}, Flavor{"1B", 2048, 16, 32, 8, 1.5, 1024, 128256, true},
    Flavor{"3B", 3072, 28, 24, 8, 1.0, 1024, 128256, true},      Flavor{"8B", 4096, 32, 32, 8, 1.3, 1024, 128256, false},
    Flavor{"70B", 8192, 80, 64, 8, 1.3, 4096, 128256, false},    Flavor{"405B", 16384, 126, 128, 8, 1.2, 4096, 128256, false},
};
constexpr std::array kSuffixes = {"_flex_attn", "_varlen_attn", "_flex", "_varlen"};

}  // namespace

int64_t Config::ffn() const {
  if (ffn_dim > 0) return ffn_dim;
  const auto hidden = static_cast<int64_t>(ffn_dim_multiplier * static_cast<double>(8 * dim / 3));
  return (hidden + multiple_of - 1) / multiple_of * multiple_of;
}

void Config::validate() const {
  check(dim > 0 && n_layers > 0 && n_heads > 0 && vocab_size > 0 && multiple_of > 0,
        "model: dim, n_layers, n_heads, vocab_size and multiple_of must be positive, found {}, {}, {}, {}, {}", dim, n_layers, n_heads,
        vocab_size, multiple_of);
  check(n_kv_heads > 0 && n_heads % n_kv_heads == 0, "model.overrides.n_kv_heads: {} does not divide n_heads = {}", n_kv_heads, n_heads);
  check(head_dim > 0 || dim % n_heads == 0, "model.overrides.dim: {} is not a multiple of n_heads = {}; set head_dim", dim, n_heads);
  check(head() % 8 == 0 && head() <= 256, "model: head_dim must be a multiple of 8 up to 256, found {}", head());
  check(ffn() > 0 && ffn() % 8 == 0, "model: the feed-forward width must be a positive multiple of 8, found {}", ffn());
  check(rope_theta > 0 && norm_eps > 0, "model: rope_theta and norm_eps must be positive, found {} and {}", rope_theta, norm_eps);
}

Config flavor(const std::string& name) {
  std::string base = name;
  bool block_causal = false;
  for (const std::string suffix : kSuffixes) {
    if (base.size() > suffix.size() && base.ends_with(suffix)) {
      base.resize(base.size() - suffix.size());
      block_causal = true;
      break;
    }
  }
  for (const Flavor& f : kFlavors) {
    if (base != f.name) continue;
    Config c;
    c.dim = f.dim, c.n_layers = f.layers, c.n_heads = f.heads, c.n_kv_heads = f.kv_heads;
    c.ffn_dim_multiplier = f.ffn_multiplier, c.multiple_of = f.multiple_of, c.vocab_size = f.vocab, c.tied = f.tied;
    c.block_causal = block_causal;
    return c;
  }
  fail("model.flavor: llama3 has no flavour '{}'; choose one of {}", name, fmt::join(flavors(), ", "));
}

std::vector<std::string> flavors() {
  std::vector<std::string> names;
  for (const Flavor& f : kFlavors) names.emplace_back(f.name);
  return names;
}

}  // namespace halftone::llama3
