#pragma once
#include <memory>

#include "halftone/models/decoder_config.h"
#include "halftone/models/decoder_splits.h"
#include "halftone/nn/latent_attention.h"
#include "halftone/nn/model.h"
#include "halftone/nn/moe.h"

namespace halftone {

class DecoderBlock : public nn::Module {
 public:
  DecoderBlock(const DecoderConfig& config, int layer);
  std::vector<std::string_view> class_names() const override { return {"TransformerBlock", "Module"}; }
  // Returns the stream after attention, and the feed-forward's branch.
  nn::Stream operator()(const nn::Stream& in, const nn::SequenceInfo& info);
  // Linears that read the norms' output; with experts, those of the shared ones.
  std::vector<nn::Linear*> attention_readers() const { return latent ? latent->readers() : attention->readers(); }
  std::vector<nn::Linear*> ffn_readers() const;
  nn::RMSNorm& attention_norm;
  nn::Attention* attention;  // one of these two, "attention"
  nn::LatentAttention* latent;
  nn::RMSNorm& ffn_norm;
  nn::FeedForward* feed_forward;  // one of these two, "feed_forward" or "moe"
  nn::MoE* moe;
};

// Pre-norm blocks of grouped-query attention (Ainslie et al. 2023) or latent attention, and of SwiGLU (Shazeer 2020) or a mixture of
// experts, as described by decoder_config.h.
class Decoder : public nn::Model {
 public:
  explicit Decoder(const DecoderConfig& config);
  nn::SequenceInfo sequence_info(const nn::ModelInput& input) const override;
  nn::Stream embed(const at::Tensor& tokens, const nn::SequenceInfo& info) override;
  int64_t blocks() const override { return static_cast<int64_t>(layers_.size()); }
  nn::Stream block(int64_t i, const nn::Stream& in, const nn::SequenceInfo& info) override { return (*layers_.at(i))(in, info); }
  HeadLoss head(const nn::Stream& in, const at::Tensor& labels, double grad_scale, const nn::SequenceInfo& info) override;
  at::Tensor logits(const nn::Stream& in, const nn::SequenceInfo& info) override;
  at::Tensor next_token_logits(const at::Tensor& tokens, std::vector<KvCache>& caches, nn::UnitAccess* access = nullptr) override;
  std::vector<KvCache> make_caches(int64_t batch, int64_t capacity) const override;
  nn::ModelSize size() const override;
  std::span<const nn::SplitRule> splits() const override { return kDecoderSplits; }
  std::vector<nn::NormUse> norm_uses() override;
  void prepare(at::Device device, int64_t positions) override;

 private:
  DecoderConfig config_;
  nn::Embedding& tok_embeddings_;
  std::vector<DecoderBlock*> layers_;
  nn::RMSNorm& norm_;
  nn::Linear& output_;
  at::Tensor cos_, sin_;
};

}  // namespace halftone
