#include "halftone/models/deepseek_v3/family.h"

#include "halftone/models/decoder_config.h"

namespace halftone::deepseek_v3 {
namespace {

// Widths: attention's first, then those of the dense layers. All flavours except the debug model mask attention between documents.
constexpr DecoderFlavor row(const char* name, int64_t dim, int64_t layers, int64_t heads, int64_t q_lora_rank, int64_t ffn, double mscale,
                            int64_t vocab, const ExpertColumns& moe) {
  DecoderFlavor f{name, dim, layers, heads, heads, ffn, vocab};
  f.rope_scaling = true, f.block_causal = layers > 6, f.moe = moe, f.q_lora_rank = q_lora_rank, f.mscale = mscale;
  return f;
}

constexpr DecoderFlavor kFlavors[] = {
    row("debugmodel", 256, 6, 16, 0, 1024, 0.70, 2048, {8, 3, 256, 2, 1, "softmax", 0, 0, 1, false}),
    row("16B", 2048, 27, 16, 0, 10944, 0.70, 102400, {64, 6, 1408, 2, 1, "softmax", 0, 0, 1, false}),
    row("236B", 5120, 60, 128, 1536, 12288, 1.0, 102400, {160, 6, 1536, 2, 1, "softmax", 8, 3, 16, false}),
    row("671B", 7168, 61, 128, 1536, 18432, 1.0, 129280, {256, 8, 2048, 1, 3, "sigmoid", 8, 4, 2.5, true}),
};

constexpr std::array kTensors =
    joined(kDecoderTensors, kExpertTensors,
           std::to_array<ModelFamily::TensorName>({
               {"model.layers.{}.mlp.gate.e_score_correction_bias", "layers.{}.moe.expert_bias"},
               {"model.layers.{}.mlp.shared_experts.gate_proj.weight", "layers.{}.moe.shared_experts.w1.weight"},
               {"model.layers.{}.mlp.shared_experts.up_proj.weight", "layers.{}.moe.shared_experts.w3.weight"},
               {"model.layers.{}.mlp.shared_experts.down_proj.weight", "layers.{}.moe.shared_experts.w2.weight"},
               {"model.layers.{}.self_attn.q_a_proj.weight", "layers.{}.attention.wq_a.weight"},
               {"model.layers.{}.self_attn.q_a_layernorm.weight", "layers.{}.attention.q_norm.weight"},
               {"model.layers.{}.self_attn.q_b_proj.weight", "layers.{}.attention.wq_b.weight"},
               {"model.layers.{}.self_attn.kv_a_proj_with_mqa.weight", "layers.{}.attention.wkv_a.weight"},
               {"model.layers.{}.self_attn.kv_a_layernorm.weight", "layers.{}.attention.kv_norm.weight"},
               {"model.layers.{}.self_attn.kv_b_proj.weight", "layers.{}.attention.wkv_b.weight"},
           }));

constexpr DecoderTraits kTraits = {
    .flavors = kFlavors,
    .norm_eps = 1e-5,
    .rope_theta = 10000,
    .max_seq_len = 16384,
    .rope = {.type = RopeScaling::Type::yarn, .factor = 40, .attention_factor = 1, .truncate = true, .original_context = 4096},
    .scales_long_rows_alone = true,
    .experts = DecoderTraits::Experts::deepseek,
    .expert_bias = true,
    .balance = 1e-3,
    .latent = {.kv_rank = 512, .qk_nope = 128, .qk_rope = 64, .v = 128},
    .gguf = "deepseek2"};

}  // namespace

constinit const ModelFamily kFamily = decoder_family("deepseek_v3", "deepseek_v3", "DeepseekV3ForCausalLM", kTraits, kTensors);

}  // namespace halftone::deepseek_v3
