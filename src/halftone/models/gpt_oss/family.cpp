#include "halftone/models/gpt_oss/family.h"

#include "halftone/models/decoder_config.h"

namespace halftone::gpt_oss {
namespace {

constexpr DecoderFlavor row(const char* name, int64_t dim, int64_t layers, int64_t vocab, const ExpertColumns& moe) {
  DecoderFlavor f{name, dim, layers, 64, 8, 2880, vocab};
  f.window = 128, f.rope_scaling = true, f.moe = moe;
  return f;
}

constexpr DecoderFlavor kFlavors[] = {
    row("debugmodel", 256, 4, 201088, {8, 4, 2880}),
    row("20b", 2880, 24, 201088, {32, 4, 2880}),
    row("120b", 2880, 36, 201088, {128, 4, 2880}),
};

// Hugging Face's experts are stacked, with inputs before outputs; only torchtitan has the selection bias.
constexpr std::array kTensors =
    joined(kDecoderTensors, std::to_array<ModelFamily::TensorName>({
                                {"", "layers.{}.moe.expert_bias"},
                                {"model.layers.{}.mlp.router.weight", "layers.{}.moe.router.gate.weight"},
                                {"model.layers.{}.mlp.router.bias", "layers.{}.moe.router.gate.bias"},
                                {"model.layers.{}.mlp.experts.gate_up_proj", "layers.{}.moe.experts.mlp1_weight", true},
                                {"model.layers.{}.mlp.experts.gate_up_proj_bias", "layers.{}.moe.experts.mlp1_bias"},
                                {"model.layers.{}.mlp.experts.down_proj", "layers.{}.moe.experts.mlp2_weight", true},
                                {"model.layers.{}.mlp.experts.down_proj_bias", "layers.{}.moe.experts.mlp2_bias"},
                                {"model.layers.{}.self_attn.sinks", "layers.{}.attention.sinks"},
                            }));

constexpr DecoderTraits kTraits = {
    .flavors = kFlavors,
    .rotate_halves = true,
    .qkv_bias = true,
    .out_bias = true,
    .windows = DecoderTraits::Windows::some_layers,
    .head_dim = 64,
    .norm_eps = 1e-5,
    .rope_theta = 150000,
    .max_seq_len = 131072,
    .rope = {.type = RopeScaling::Type::yarn, .factor = 32, .attention_factor = 0, .truncate = false, .original_context = 4096},
    .experts = DecoderTraits::Experts::gpt_oss,
    .clamped = true,
    .balance = 1e-3,
    .sinks = true,
    .window_layers = "wf",
    .gguf = "gpt-oss"};

}  // namespace

constinit const ModelFamily kFamily = decoder_family("gpt_oss", "gpt_oss", "GptOssForCausalLM", kTraits, kTensors);

}  // namespace halftone::gpt_oss
