#include "halftone/models/mistral/family.h"

#include "halftone/models/decoder_config.h"

namespace halftone::mistral {
namespace {

constexpr DecoderFlavor kFlavors[] = {
    {"debugmodel", 256, 6, 16, 4, 768, 2048, false, 10000, 32768, 512},
    {"7B", 4096, 32, 32, 8, 14336, 32768},
    {"7B-v0.1", 4096, 32, 32, 8, 14336, 32000, false, 10000, 32768, 4096},
};

constexpr DecoderTraits kTraits = {
    .flavors = kFlavors, .windows = DecoderTraits::Windows::all_layers, .rope_theta = 1e6, .gguf = kPlainGguf};

}  // namespace

constinit const ModelFamily kFamily = decoder_family("mistral", "mistral", "MistralForCausalLM", kTraits);

}  // namespace halftone::mistral
