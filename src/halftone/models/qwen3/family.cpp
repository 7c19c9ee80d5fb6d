#include "halftone/models/qwen3/family.h"

#include "halftone/models/decoder_config.h"

namespace halftone::qwen3 {
namespace {

constexpr DecoderFlavor kFlavors2[] = {
    {"debugmodel", 256, 6, 8, 2, 768, 2048, true}, {"0.5B", 896, 24, 14, 2, 4864, 151936, true},
    {"1.5B", 1536, 28, 12, 2, 8960, 151936, true}, {"3B", 2048, 36, 16, 2, 11008, 151936, true},
    {"7B", 3584, 28, 28, 4, 18944, 152064},        {"14B", 5120, 48, 40, 8, 13824, 152064},
    {"32B", 5120, 64, 40, 8, 27648, 152064},       {"72B", 8192, 80, 64, 8, 29568, 152064},
};

constexpr DecoderFlavor kFlavors3[] = {
    {"debugmodel", 256, 8, 16, 8, 3072, 2048, true}, {"0.6B", 1024, 28, 16, 8, 3072, 151936, true},
    {"1.7B", 2048, 28, 16, 8, 6144, 151936, true},   {"4B", 2560, 36, 32, 8, 9728, 151936, true},
    {"8B", 4096, 36, 32, 8, 12288, 151936},          {"14B", 5120, 40, 40, 8, 17408, 151936},
    {"32B", 5120, 64, 64, 8, 25600, 151936},
};

constexpr DecoderFlavor of_experts(const char* name, int64_t dim, int64_t layers, int64_t heads, int64_t kv_heads, int64_t ffn,
                                   double theta, int64_t vocab, const ExpertColumns& moe) {
  DecoderFlavor f{name, dim, layers, heads, kv_heads, ffn, vocab};
  f.rope_theta = theta, f.moe = moe;
  return f;
}
constexpr DecoderFlavor debug_moe(const char* name) { return of_experts(name, 256, 8, 16, 8, 3072, 1e6, 2048, {64, 8, 768}); }

constexpr DecoderFlavor kFlavorsMoe[] = {
    debug_moe("debugmodel"),
    debug_moe("debugmodel_moe"),
    of_experts("30B-A3B", 2048, 48, 32, 4, 6144, 1e6, 151936, {128, 8, 768}),
    of_experts("235B-A22B", 4096, 94, 64, 4, 12288, 5e6, 151936, {128, 8, 1536}),
};

constexpr DecoderTraits traits(std::span<const DecoderFlavor> flavors, bool third) {
  return {.flavors = flavors,
          .rotate_halves = true,
          .qk_norm = third,
          .qkv_bias = !third,
          .may_attention_bias = third,
          .windows = DecoderTraits::Windows::some_layers,
          .head_dim = third ? 128 : 0,
          .norm_eps = 1e-6,
          .rope_theta = 1e6,
          .max_seq_len = third ? 40960 : 32768,
          .gguf = third ? "qwen3" : "qwen2"};
}
constexpr DecoderTraits with_experts() {
  DecoderTraits t = traits(kFlavorsMoe, true);
  t.windows = DecoderTraits::Windows::switched, t.experts = DecoderTraits::Experts::qwen, t.gguf = "qwen3moe";
  return t;
}
constexpr DecoderTraits kTraits2 = traits(kFlavors2, false), kTraits3 = traits(kFlavors3, true), kTraitsMoe = with_experts();

constexpr std::array kTensors3 = joined(kDecoderTensors, kHeadNormTensors);
constexpr std::array kTensorsMoe =
    joined(kTensors3, kExpertTensors, std::to_array<ModelFamily::TensorName>({{"", "layers.{}.moe.expert_bias"}}));
constexpr ModelFamily moe() {
  ModelFamily f = decoder_family("qwen3_moe", "qwen3_moe", "Qwen3MoeForCausalLM", kTraitsMoe, kTensorsMoe);
  f.also = "qwen3";
  return f;
}

}  // namespace

constinit const ModelFamily kQwen2 = decoder_family("qwen2", "qwen2", "Qwen2ForCausalLM", kTraits2);
constinit const ModelFamily kFamily = decoder_family("qwen3", "qwen3", "Qwen3ForCausalLM", kTraits3, kTensors3);
constinit const ModelFamily kMoe = moe();

}  // namespace halftone::qwen3
