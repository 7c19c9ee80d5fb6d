#include "halftone/nn/latent_attention.h"

#include <ATen/ops/split_with_sizes.h>

#include <cmath>

#include "halftone/ops/activation_stats.h"
#include "halftone/ops/latent_attention.h"
#include "halftone/ops/range.h"

namespace halftone::nn {

LatentAttention::LatentAttention(const Shape& s, int layer, Init in, Init out)
    : shape_(s),
      layer_(layer),
      wq_(s.q_lora_rank > 0 ? add<Linear>("wq_a", s.dim, s.q_lora_rank, in) : add<Linear>("wq", s.dim, s.heads * s.qk_dim(), in)),
      q_norm_(s.q_lora_rank > 0 ? &add<RMSNorm>("q_norm", s.q_lora_rank, s.norm_eps) : nullptr),
      wq_b_(s.q_lora_rank > 0 ? &add<Linear>("wq_b", s.q_lora_rank, s.heads * s.qk_dim(), in) : nullptr),
      wkv_a_(add<Linear>("wkv_a", s.dim, s.kv_lora_rank + s.qk_rope_dim, in)),
      kv_norm_(add<RMSNorm>("kv_norm", s.kv_lora_rank, s.norm_eps)),
      wkv_b_(add<Linear>("wkv_b", s.kv_lora_rank, s.heads * (s.qk_nope_dim + s.v_dim), in)),
      wo_(add<Linear>("wo", s.heads * s.v_dim, s.dim, out)),
      down_({&wq_, &wkv_a_}) {}

at::Tensor LatentAttention::operator()(const Activation& x, const SequenceInfo& info) {
  const Range range("{}", fqn());
  AttentionArgs args;
  args.batch = info.batch, args.seq = info.seq;
  args.heads = args.kv_heads = wkv_b_.out_features() / (shape_.qk_nope_dim + shape_.v_dim), args.head_dim = shape_.qk_dim(),
  args.v_dim = shape_.v_dim;
  args.scale = shape_.scale_factor / std::sqrt(static_cast<double>(shape_.qk_dim()));
  args.cos = info.cos, args.sin = info.sin, args.rotate_halves = shape_.rotate_halves;
  args.positions = info.positions, args.documents = info.documents;
  // Their gradients arrive in one tensor.
  const std::vector<at::Tensor> parts =
      at::split_with_sizes(down_.enter(x, info.step, port()), {wq_.out_features(), shape_.kv_lora_rank, shape_.qk_rope_dim}, 1);
  const at::Tensor kv = wkv_b_(kv_norm_(parts[1], {}, {&wkv_b_}).second, info.step);
  const at::Tensor q = wq_b_ == nullptr ? parts[0] : (*wq_b_)((*q_norm_)(parts[0], {}, {wq_b_}).second, info.step);
  if (const auto& stats = activation_stats(); stats && info.counts) stats->latent_attention(fqn(), q, kv, parts[2], args);
  const Activation seen = info.caches ? Activation(latent_attention_cached(q, kv, parts[2], args, info.caches->at(layer_)))
                                      : latent_attention(q, kv, parts[2], args, info.step.recompute_results.get());
  clear_padding(seen, info.padding, port());
  return wo_.leave(seen, info.step, port());
}

std::vector<NormUse> LatentAttention::norm_uses() {
  std::vector<NormUse> uses = {{&kv_norm_, {&wkv_b_}}};
  if (q_norm_ != nullptr) uses.push_back({q_norm_, {wq_b_}});
  return uses;
}

}  // namespace halftone::nn
