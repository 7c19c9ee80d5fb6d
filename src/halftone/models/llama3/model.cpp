#include "halftone/models/llama3/model.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <cmath>

#include "halftone/base/error.h"
#include "halftone/ops/rope_table.h"

namespace halftone::llama3 {
namespace {

constexpr double kInitStd = 0.02, kCut = 2.0;

nn::Init init_in() { return {nn::Init::Kind::truncated_normal, kInitStd, kCut}; }
// Layers that write into the residual stream start smaller with depth.
nn::Init init_out(const Config& c, int layer) {
  const double depth = c.depth_init ? layer + 1 : static_cast<double>(c.n_layers);
  return {nn::Init::Kind::truncated_normal, kInitStd / std::sqrt(2 * depth), kCut};
}
nn::Init init_head(const Config& c) {
  const double std = 1 / std::sqrt(static_cast<double>(c.dim));
  return {nn::Init::Kind::truncated_normal, std, 3 * std};
}
nn::Init init_embedding(const Config& c) { return c.tied ? init_head(c) : nn::Init{nn::Init::Kind::normal, 1.0, 0}; }

// One module tree for all layers, so that names read layers.{i}.
class Layers : public nn::Module {
 public:
  Layers(const Config& config, std::vector<Block*>& blocks) {
    for (int i = 0; i < config.n_layers; ++i) blocks.push_back(&add<Block>(std::to_string(i), config, i));
  }
};

}  // namespace

Block::Block(const Config& c, int layer)
    : attention_norm(add<nn::RMSNorm>("attention_norm", c.dim, c.norm_eps)),
      attention(add<nn::Attention>("attention", nn::Attention::Shape{c.dim, c.n_heads, c.n_kv_heads, c.head()}, layer, init_in(),
                                   init_out(c, layer))),
      ffn_norm(add<nn::RMSNorm>("ffn_norm", c.dim, c.norm_eps)),
      feed_forward(add<nn::FeedForward>("feed_forward", c.dim, c.ffn(), init_in(), init_out(c, layer))) {
  make_unit(fmt::format("layers.{}", layer), layer);
}

nn::Stream Block::operator()(const nn::Stream& in, const nn::SequenceInfo& info) {
  auto [residual, h] = attention_norm(in.x, in.branch, attention.readers());
  std::tie(residual, h) = ffn_norm(residual, attention(h, info), feed_forward.readers());
  return {residual, feed_forward(h, info.step)};
}

Llama::Llama(const Config& config)
    : config_((config.validate(), config)),
      tok_embeddings_(add<nn::Embedding>("tok_embeddings", config.vocab_size, config.dim, init_embedding(config))),
      norm_((add<Layers>("layers", config, layers_), add<nn::RMSNorm>("norm", config.dim, config.norm_eps))),
      output_(add<nn::Linear>("output", config.dim, config.tied ? 0 : config.vocab_size, init_head(config))) {
  if (config.tied) output_.tie(tok_embeddings_.weight);
  tok_embeddings_.make_unit("tok_embeddings"), norm_.make_unit("norm"), output_.make_unit("norm");
  assign_names("");
}

void Llama::prepare(at::Device device, int64_t positions) {
  const RopeScaling scaling = config_.rope_scaling ? RopeScaling{.type = RopeScaling::Type::llama3,
                                                                 .factor = config_.rope_factor,
                                                                 .low_freq_factor = config_.rope_low_freq_factor,
                                                                 .high_freq_factor = config_.rope_high_freq_factor,
                                                                 .original_context = config_.rope_original_context}
                                                   : RopeScaling{};
  std::tie(cos_, sin_) = rope_tables(positions, config_.head(), config_.rope_theta, scaling, device);
}

nn::Stream Llama::embed(const at::Tensor& tokens, const nn::SequenceInfo&) {
  return {tok_embeddings_(tokens.reshape(-1), residual_dtype_), {}};
}

HeadLoss Llama::head(const nn::Stream& in, const at::Tensor& labels, double grad_scale, const nn::SequenceInfo& info) {
  return head_loss(norm_(in.x, in.branch).second, output_.head(), labels.reshape(-1).contiguous(), grad_scale, info.step, info.loss_factor,
                   z_loss_);
}

std::vector<nn::NormUse> Llama::norm_uses() {
  std::vector<nn::NormUse> uses;
  for (Block* b : layers_) {
    uses.push_back({&b->attention_norm, b->attention.readers()});
    uses.push_back({&b->ffn_norm, b->feed_forward.readers()});
  }
  uses.push_back({&norm_, {&output_}});
  return uses;
}

nn::SequenceInfo Llama::sequence_info(const nn::ModelInput& input) const {
  nn::SequenceInfo info;
  info.step = input.step;
  info.batch = input.tokens.size(0), info.seq = input.tokens.size(1);
  check(info.seq <= cos_.size(0), "model: rows of {} tokens, but tables for {} positions", info.seq, cos_.size(0));
  info.cos = cos_, info.sin = sin_;
  if (input.positions.defined()) info.positions = input.positions.reshape(-1).contiguous();
  info.documents = input.documents, info.loss_factor = input.loss_factor;
  return info;
}

at::Tensor Llama::next_token_logits(const at::Tensor& tokens, std::vector<KvCache>& caches) {
  at::NoGradGuard no_grad;
  nn::SequenceInfo info;
  info.batch = tokens.size(0), info.seq = tokens.size(1);
  check(caches.front().length + info.seq <= cos_.size(0), "generate: {} positions asked for, the model was prepared for {}",
        caches.front().length + info.seq, cos_.size(0));
  info.cos = cos_, info.sin = sin_, info.caches = &caches;
  nn::Stream s = embed(tokens, info);
  for (int64_t i = 0; i < blocks(); ++i) s = block(i, s, info);
  const at::Tensor h = norm_(s.x, s.branch).second;
  const at::Tensor last = h.reshape({info.batch, info.seq, config_.dim}).select(1, info.seq - 1).contiguous();
  return output_(last, info.step).to(at::kFloat);
}

std::vector<KvCache> Llama::make_caches(int64_t batch, int64_t capacity) const {
  std::vector<KvCache> caches(layers_.size());
  const auto options = tok_embeddings_.weight.weight.value.options();
  for (KvCache& c : caches) {
    c.k = at::empty({batch, capacity, config_.n_kv_heads * config_.head()}, options);
    c.v = at::empty_like(c.k);
  }
  return caches;
}

nn::ModelSize Llama::size() const {
  nn::ModelSize s;
  s.layers = config_.n_layers, s.dim = config_.dim, s.heads = config_.n_heads, s.kv_heads = config_.n_kv_heads;
  s.qk_dim = s.v_dim = config_.head();
  s.vocab = config_.vocab_size, s.max_seq_len = config_.max_seq_len, s.tied = config_.tied;
  const_cast<Llama*>(this)->for_each_parameter([&](nn::Parameter& p) { s.parameters += p.numel(); });
  s.active_parameters = s.parameters;
  s.embedding_parameters = config_.vocab_size * config_.dim;
  return s;
}

}  // namespace halftone::llama3
