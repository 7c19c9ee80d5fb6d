#pragma once
#include "halftone/models/decoder_config.h"

namespace halftone {

// Hyper-parameters of a small model of a family, overriding those in `table`.
inline OptionTable small_family(const ModelFamily& family, OptionTable table) {
  const DecoderTraits& traits = *family.decoder;
  OptionTable own;
  if (traits.experts != DecoderTraits::Experts::none)
    own = {{"num_experts", int64_t{4}}, {"experts_per_token", int64_t{2}}, {"expert_ffn_dim", int64_t{32}}};
  if (traits.experts != DecoderTraits::Experts::none && !traits.clamped) own["dense_layers"] = int64_t{1};
  if (traits.latent.kv_rank > 0) {
    for (const char* width : {"q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"})
      own[width] = int64_t{32};
    own["n_kv_heads"] = table.at("n_heads");
  }
  for (const auto& [name, value] : own) table[name] = value;
  return table;
}

}  // namespace halftone
