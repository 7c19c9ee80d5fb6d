#include "halftone/models/decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cmath>

#include "halftone/base/error.h"
#include "halftone/nn/pass.h"
#include "halftone/ops/batch_invariant.h"
#include "halftone/ops/rope_table.h"

namespace halftone {
namespace {

constexpr double kInitStd = 0.02, kCut = 2.0;

bool second(const DecoderConfig& c) { return c.init == "v2"; }  // platform.md 4.6
nn::Init init_in(const DecoderConfig& c) {
  return second(c) ? nn::Init{nn::Init::Kind::normal, kInitStd, 0} : nn::Init{nn::Init::Kind::truncated_normal, kInitStd, kCut};
}
// Layers that write to the residual stream have a smaller initial scale with depth.
nn::Init init_out(const DecoderConfig& c, int layer) {
  const double depth = c.depth_init && !second(c) ? layer + 1 : static_cast<double>(c.n_layers);
  nn::Init init = init_in(c);
  init.std /= std::sqrt(2 * depth);
  return init;
}
nn::Init init_up(const DecoderConfig& c, int layer) { return second(c) ? init_in(c) : init_out(c, layer); }
nn::Init init_head(const DecoderConfig& c) {
  const double std = 1 / std::sqrt(static_cast<double>(c.dim));
  return {nn::Init::Kind::truncated_normal, std, 3 * std};
}
nn::Init init_embedding(const DecoderConfig& c) {
  if (second(c)) return init_in(c);
  return c.tied ? init_head(c) : nn::Init{nn::Init::Kind::normal, 1.0, 0};
}

nn::Attention::Shape attention_shape(const DecoderConfig& c, int layer) {
  const DecoderTraits& t = c.traits();
  return {.dim = c.dim,
          .heads = c.n_heads,
          .kv_heads = c.n_kv_heads,
          .head_dim = c.head(),
          .rotate_halves = t.rotate_halves,
          .qkv_bias = c.qkv_bias(),
          .out_bias = c.out_bias(),
          .qk_norm_eps = t.qk_norm ? c.norm_eps : 0,
          .window = c.window_of(layer),
          .sinks = t.sinks};
}

nn::LatentAttention::Shape latent_shape(const DecoderConfig& c) {
  return {.dim = c.dim,
          .heads = c.n_heads,
          .q_lora_rank = c.q_lora_rank,
          .kv_lora_rank = c.kv_lora_rank,
          .qk_nope_dim = c.qk_nope_head_dim,
          .qk_rope_dim = c.qk_rope_head_dim,
          .v_dim = c.v_head_dim,
          .norm_eps = c.latent_eps(),
          .scale_factor = c.score_factor(),
          .rotate_halves = c.traits().rotate_halves};
}

nn::MoE::Shape moe_shape(const DecoderConfig& c) {
  return {.dim = c.dim,
          .hidden = c.expert_ffn_dim,
          .routing = {.experts = c.num_experts,
                      .top_k = c.experts_per_token,
                      .score = c.route_score == "sigmoid" ? nn::Routing::Score::sigmoid : nn::Routing::Score::softmax,
                      .normalize = c.route_norm,
                      .scale = c.route_scale,
                      .groups = c.route_groups,
                      .kept_groups = c.route_kept_groups},
          .shared_hidden = c.shared_experts * c.expert_ffn_dim,
          .clamped = c.traits().clamped,
          .balance = c.balance,
          .expert_bias = c.has_expert_bias(),
          .aux_loss = c.route_aux_loss,
          .z_loss = c.route_z_loss};
}

// One module tree for all layers, so that names read layers.{i}.
class Layers : public nn::Module {
 public:
  Layers(const DecoderConfig& config, std::vector<DecoderBlock*>& blocks) {
    for (int i = 0; i < config.n_layers; ++i) blocks.push_back(&add<DecoderBlock>(std::to_string(i), config, i));
  }
};

}  // namespace

DecoderBlock::DecoderBlock(const DecoderConfig& c, int layer)
    : attention_norm(add<nn::RMSNorm>("attention_norm", c.dim, c.norm_eps)),
      attention(c.latent() ? nullptr : &add<nn::Attention>("attention", attention_shape(c, layer), layer, init_in(c), init_out(c, layer))),
      latent(c.latent() ? &add<nn::LatentAttention>("attention", latent_shape(c), layer, init_in(c), init_out(c, layer)) : nullptr),
      ffn_norm(add<nn::RMSNorm>("ffn_norm", c.dim, c.norm_eps)),
      feed_forward(c.has_experts(layer) ? nullptr
                                        : &add<nn::FeedForward>("feed_forward", c.dim, c.ffn(), init_in(c), init_up(c, layer),
                                                                init_out(c, layer), c.mlp_bias)),
      moe(c.has_experts(layer) ? &add<nn::MoE>("moe", moe_shape(c), init_in(c), init_up(c, layer), init_out(c, layer)) : nullptr) {
  make_unit(fmt::format("layers.{}", layer), layer);
  if (!c.traits().sinks) return;
  // GPT-OSS: the same for weights, biases and sinks.
  const auto deep = [&](nn::Parameter& p) {
    if (p.init.kind != nn::Init::Kind::zeros || p.name == "bias") p.init = init_out(c, layer);
  };
  attention->for_each_parameter(deep), moe->for_each_parameter(deep);
}

std::vector<nn::Linear*> DecoderBlock::ffn_readers() const {
  if (feed_forward != nullptr) return feed_forward->readers();
  return moe->shared() != nullptr ? moe->shared()->readers() : std::vector<nn::Linear*>{};
}

nn::Stream DecoderBlock::operator()(const nn::Stream& in, const nn::SequenceInfo& info) {
  auto [residual, h] = attention_norm(in.x, in.branch, attention_readers());
  std::tie(residual, h) = ffn_norm(residual, latent ? (*latent)(h, info) : (*attention)(h, info), ffn_readers());
  if (moe != nullptr) return {residual, (*moe)(h, info)};
  return {residual, (*feed_forward)(h, info.step, info.padding)};
}

Decoder::Decoder(const DecoderConfig& config)
    : config_((config.validate(), config)),
      tok_embeddings_(add<nn::Embedding>("tok_embeddings", config.vocab_size, config.dim, init_embedding(config))),
      norm_((add<Layers>("layers", config, layers_), add<nn::RMSNorm>("norm", config.dim, config.norm_eps))),
      output_(add<nn::Linear>("output", config.dim, config.tied ? 0 : config.vocab_size, init_head(config))) {
  if (config.tied) output_.tie(tok_embeddings_.weight);
  tok_embeddings_.make_unit("tok_embeddings"), norm_.make_unit("norm"), output_.make_unit("norm");
  assign_names("");
}

// Dynamic RoPE depends on the number of positions.
void Decoder::prepare(at::Device device, int64_t positions) {
  std::tie(cos_, sin_) = rope_tables(positions, config_.rotated(), config_.rope_theta, config_.rope(), device);
}

nn::Stream Decoder::embed(const at::Tensor& tokens, const nn::SequenceInfo& info) {
  nn::Stream s{tok_embeddings_(tokens.reshape(-1), residual_dtype_), {}};
  nn::clear_padding(s.x, info.padding, tok_embeddings_.port());
  return s;
}

HeadLoss Decoder::head(const nn::Stream& in, const at::Tensor& labels, double grad_scale, const nn::SequenceInfo& info) {
  const Head head = output_.head();
  return head_loss(output_.port().enter(norm_(in.x, in.branch).second), head, labels.reshape(-1).contiguous(), grad_scale, info.step,
                   info.loss_factor, z_loss_);
}

std::vector<nn::NormUse> Decoder::norm_uses() {
  std::vector<nn::NormUse> uses;
  for (DecoderBlock* b : layers_) {
    uses.push_back({&b->attention_norm, b->attention_readers()});
    if (b->latent != nullptr)
      for (nn::NormUse& use : b->latent->norm_uses()) uses.push_back(std::move(use));
    if (b->feed_forward != nullptr) uses.push_back({&b->ffn_norm, b->feed_forward->readers()});  // experts are not Linears
  }
  uses.push_back({&norm_, {&output_}});
  return uses;
}

nn::SequenceInfo Decoder::sequence_info(const nn::ModelInput& input) const {
  nn::SequenceInfo info;
  info.step = input.step;
  info.batch = input.tokens.size(0), info.seq = input.tokens.size(1);
  check(info.seq <= cos_.size(0), "model: rows of {} tokens, but tables for {} positions", info.seq, cos_.size(0));
  info.cos = cos_, info.sin = sin_;
  if (input.positions.defined()) info.positions = input.positions.reshape(-1).contiguous();
  if (input.padding.defined()) info.padding = input.padding.reshape(-1);
  info.documents = input.documents, info.loss_factor = input.loss_factor;
  return info;
}

at::Tensor Decoder::logits(const nn::Stream& in, const nn::SequenceInfo& info) {
  return head_logits(output_.port().enter(norm_(in.x, in.branch).second).value, output_.head(), info.step);
}

at::Tensor Decoder::next_token_logits(const at::Tensor& tokens, std::vector<KvCache>& caches, nn::UnitAccess* access) {
  at::NoGradGuard no_grad;
  nn::SequenceInfo info;
  info.batch = tokens.size(0), info.seq = tokens.size(1);
  const int64_t length = caches.front().length + info.seq;
  check(length <= caches.front().k.size(1), "generate: {} positions requested, the caches have {}", length, caches.front().k.size(1));
  // Frequencies follow the length of the text: cached keys keep the ones they were rotated with, as in transformers.
  const RopeScaling scaling = config_.rope();
  check(!batch_invariant() || scaling.type != RopeScaling::Type::dynamic,
        "debug.batch_invariant: dynamic RoPE scaling rotates a key by the length of the text so far; switch one of them off");
  if (scaling.type == RopeScaling::Type::dynamic && (length > scaling.original_context || cos_.size(0) != scaling.original_context))
    prepare(cos_.device(), std::max(length, scaling.original_context));
  check(length <= cos_.size(0), "generate: {} positions requested, the model was prepared for {}", length, cos_.size(0));
  info.cos = cos_, info.sin = sin_, info.caches = &caches;
  const auto enter = [&](int64_t unit) {
    if (access != nullptr) access->before_forward(unit);
  };
  enter(0);
  nn::Stream s = embed(tokens, info);
  for (int64_t i = 0; i < blocks(); ++i) enter(i + 1), s = block(i, s, info);
  enter(blocks() + 1);
  const at::Tensor h = output_.port().enter(norm_(s.x, s.branch).second).value;
  const at::Tensor last = h.reshape({info.batch, info.seq, config_.dim}).select(1, info.seq - 1).contiguous();
  return head_logits(last, output_.head(), info.step);
}

std::vector<KvCache> Decoder::make_caches(int64_t batch, int64_t capacity) const {
  std::vector<KvCache> caches(layers_.size());
  const auto options = tok_embeddings_.weight.weight.value.options();
  for (size_t i = 0; i < caches.size(); ++i) {
    const DecoderBlock& b = *layers_[i];
    const auto [k, v] = b.latent ? b.latent->cache_widths() : b.attention->cache_widths();
    caches[i].k = at::empty({batch, capacity, k}, options), caches[i].v = at::empty({batch, capacity, v}, options);
  }
  return caches;
}

nn::ModelSize Decoder::size() const {
  nn::ModelSize s;
  s.layers = config_.n_layers, s.dim = config_.dim, s.heads = config_.n_heads, s.kv_heads = config_.n_kv_heads;
  s.qk_dim = config_.head(), s.v_dim = config_.latent() ? config_.v_head_dim : config_.head();
  s.window = config_.window;
  for (int64_t i = 0; i < config_.n_layers; ++i) s.windowed_layers += config_.window_of(i) > 0;
  s.vocab = config_.vocab_size, s.max_seq_len = config_.max_seq_len, s.tied = config_.tied;
  const auto count = [](nn::Module& module) {
    int64_t n = 0;
    module.for_each_parameter([&](const nn::Parameter& p) { n += p.buffer ? 0 : p.whole_numel(); });
    return n;
  };
  s.active_parameters = s.parameters = count(const_cast<Decoder&>(*this));
  for (DecoderBlock* b : layers_)
    if (b->moe != nullptr)
      s.active_parameters -= count(b->moe->experts()) / config_.num_experts * (config_.num_experts - config_.experts_per_token);
  s.embedding_parameters = config_.vocab_size * config_.dim;
  return s;
}

}  // namespace halftone
