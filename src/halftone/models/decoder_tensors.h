#pragma once
#include <algorithm>
#include <array>

#include "halftone/models/family.h"

// Tensor names of decoders.
namespace halftone {

inline constexpr std::array kDecoderTensors = std::to_array<ModelFamily::TensorName>({
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
    {"model.layers.{}.mlp.gate_proj.weight", "layers.{}.feed_forward.w1.weight"},
    {"model.layers.{}.mlp.up_proj.weight", "layers.{}.feed_forward.w3.weight"},
    {"model.layers.{}.mlp.down_proj.weight", "layers.{}.feed_forward.w2.weight"},
    {"model.layers.{}.mlp.gate_proj.bias", "layers.{}.feed_forward.w1.bias"},
    {"model.layers.{}.mlp.up_proj.bias", "layers.{}.feed_forward.w3.bias"},
    {"model.layers.{}.mlp.down_proj.bias", "layers.{}.feed_forward.w2.bias"},
});

inline constexpr std::array kHeadNormTensors = std::to_array<ModelFamily::TensorName>({
    {"model.layers.{}.self_attn.q_norm.weight", "layers.{}.attention.q_norm.weight"},
    {"model.layers.{}.self_attn.k_norm.weight", "layers.{}.attention.k_norm.weight"},
});

// One tensor per expert.
inline constexpr std::array kExpertTensors = std::to_array<ModelFamily::TensorName>({
    {"model.layers.{}.mlp.gate.weight", "layers.{}.moe.router.gate.weight"},
    {"model.layers.{}.mlp.experts.{e}.gate_proj.weight", "layers.{}.moe.experts.w1"},
    {"model.layers.{}.mlp.experts.{e}.up_proj.weight", "layers.{}.moe.experts.w3"},
    {"model.layers.{}.mlp.experts.{e}.down_proj.weight", "layers.{}.moe.experts.w2"},
});

template <size_t... N>
constexpr auto joined(const std::array<ModelFamily::TensorName, N>&... tables) {
  std::array<ModelFamily::TensorName, (N + ...)> all{};
  auto* to = all.data();
  ((to = std::copy(tables.begin(), tables.end(), to)), ...);
  return all;
}

}  // namespace halftone
