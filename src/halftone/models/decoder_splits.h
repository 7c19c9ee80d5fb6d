#pragma once
#include <array>

#include "halftone/nn/model.h"

namespace halftone {

// Tensor-parallel rules of decoders: heads, widths and vocabulary are split. Parameters without a rule are replicated: norms of heads,
// routers, the low-rank projections of latent attention.
inline constexpr auto kDecoderSplits = std::to_array<nn::SplitRule>({
    {"tok_embeddings.weight", 0, true},
    {"output", 0, true},
    {"attention_norm.weight", nn::kOfStream},
    {"ffn_norm.weight", nn::kOfStream},
    {"norm.weight", nn::kOfStream},  // the final norm, but not q_norm, k_norm or kv_norm
    {"attention.wq", 0},
    {"attention.wq_b", 0},
    {"attention.wk", 0},
    {"attention.wv", 0},
    {"attention.wkv_b", 0},
    {"attention.sinks", 0},
    {"attention.wo", 1},
    {"feed_forward.w1", 0},
    {"feed_forward.w3", 0},
    {"feed_forward.w2", 1},
    {"shared_experts.w1", 0},
    {"shared_experts.w3", 0},
    {"shared_experts.w2", 1},
    {"experts.w1", 1},
    {"experts.w3", 1},
    {"experts.w2", 2},
    {"experts.mlp1_weight", 1},
    {"experts.mlp1_bias", 1},
    {"experts.mlp2_weight", 2},
});

}  // namespace halftone
