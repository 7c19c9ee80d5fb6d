#include "halftone/models/llama3/family.h"

#include "halftone/models/decoder_config.h"

namespace halftone::llama3 {
namespace {

// Llama 3: FFN width from a multiplier, RoPE for long rows.
constexpr DecoderFlavor of_3(const char* name, int64_t dim, int64_t layers, int64_t heads, int64_t kv_heads, double ffn_multiplier,
                             int64_t multiple_of, int64_t vocab, bool tied) {
  DecoderFlavor f{name, dim, layers, heads, kv_heads, 0, vocab, tied};
  f.rope_scaling = true, f.ffn_multiplier = ffn_multiplier, f.multiple_of = multiple_of;
  return f;
}

constexpr DecoderFlavor kFlavors[] = {
    of_3("debugmodel", 256, 6, 16, 16, 1.0, 256, 2048, false),
    of_3("1B", 2048, 16, 32, 8, 1.5, 1024, 128256, true),
    of_3("3B", 3072, 28, 24, 8, 1.0, 1024, 128256, true),
    of_3("8B", 4096, 32, 32, 8, 1.3, 1024, 128256, false),
    of_3("70B", 8192, 80, 64, 8, 1.3, 4096, 128256, false),
    of_3("405B", 16384, 126, 128, 8, 1.2, 4096, 128256, false),
    {"Llama-2-7B", 4096, 32, 32, 32, 11008, 32000, false, 10000, 4096},
    {"Llama-2-13B", 5120, 40, 40, 40, 13824, 32000, false, 10000, 4096},
    {"SmolLM2-135M", 576, 30, 9, 3, 1536, 49152, true, 100000, 8192},
    {"SmolLM2-360M", 960, 32, 15, 5, 2560, 49152, true, 100000, 8192},
    {"SmolLM2-1.7B", 2048, 24, 32, 32, 8192, 49152, true, 130000, 8192},
};

constexpr DecoderTraits kTraits = {.flavors = kFlavors,
                                   .may_attention_bias = true,
                                   .may_mlp_bias = true,
                                   .norm_eps = 1e-5,
                                   .rope_theta = 500000,
                                   .max_seq_len = 131072,
                                   .gguf = kPlainGguf};

}  // namespace

constinit const ModelFamily kFamily = decoder_family("llama3", "llama", "LlamaForCausalLM", kTraits);

}  // namespace halftone::llama3
