#include "halftone/models/registry.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/models/decoder.h"
#include "halftone/models/deepseek_v3/family.h"
#include "halftone/models/gpt_oss/family.h"
#include "halftone/models/llama3/family.h"
#include "halftone/models/mistral/family.h"
#include "halftone/models/qwen3/family.h"

namespace halftone {
namespace {

struct Entry {
  const ModelFamily* family;
  std::unique_ptr<nn::Model> (*build)(const ModelDescription& description);
};

template <class Model, class Config>
std::unique_ptr<nn::Model> build(const ModelDescription& description) {
  return std::make_unique<Model>(dynamic_cast<const Config&>(description));
}

constexpr Entry kEntries[] = {
    {&llama3::kFamily, build<Decoder, DecoderConfig>},  {&mistral::kFamily, build<Decoder, DecoderConfig>},
    {&qwen3::kQwen2, build<Decoder, DecoderConfig>},    {&qwen3::kFamily, build<Decoder, DecoderConfig>},
    {&qwen3::kMoe, build<Decoder, DecoderConfig>},      {&deepseek_v3::kFamily, build<Decoder, DecoderConfig>},
    {&gpt_oss::kFamily, build<Decoder, DecoderConfig>},
};

std::shared_ptr<const ModelDescription> describe(const ModelFamily& family, const ModelConfig& config, int64_t vocab_size) {
  const std::shared_ptr<ModelDescription> d = family.flavor(family, config.flavor == kHfFlavor ? "debugmodel" : config.flavor);
  const auto set = [&](const std::string& name, const OptionValue& value) {
    if (d->set(name, value)) return;
    std::vector<std::string> names;
    for (const auto& [known, unused] : d->hyper_parameters()) names.push_back(known);
    fail("model.overrides.{}: {} has no such hyper-parameter; it has {}", name, family.name, fmt::join(names, ", "));
  };
  for (const auto& [name, value] : config.overrides) set(name, value);
  const auto vocabulary = std::get<int64_t>(d->hyper_parameters().at("vocab_size"));
  check(vocabulary >= vocab_size, "the tokenizer has {} entries, {} {} a vocabulary of {}; set model.overrides.vocab_size = {}", vocab_size,
        family.name, config.flavor, vocabulary, vocab_size);
  if (config.attn_mask_type) set("block_causal", *config.attn_mask_type == "block_causal");
  if (config.rope_scaling_mode != "auto") set("rope_scaling", config.rope_scaling_mode == "on");
  return d;
}

}  // namespace

const std::vector<const ModelFamily*>& model_families() {
  static const std::vector<const ModelFamily*> families = [] {
    std::vector<const ModelFamily*> all;
    for (const Entry& e : kEntries) all.push_back(e.family);
    return all;
  }();
  return families;
}

namespace {

const Entry& entry_of(const ModelConfig& config) {
  const Entry* found = nullptr;
  std::vector<std::string_view> names;
  for (const Entry& e : kEntries) {
    names.push_back(e.family->name);
    const bool also = e.family->also == config.name && has_decoder_flavor(*e.family, config.flavor);
    if (e.family->name == config.name || (also && !has_decoder_flavor(*found->family, config.flavor))) found = &e;
  }
  check(found != nullptr, "model.name: this build has {}; found '{}'", fmt::join(names, ", "), config.name);
  return *found;
}

}  // namespace

const ModelFamily& family_of(const ModelConfig& config) { return *entry_of(config).family; }

BuiltModel build_model(const ModelConfig& config, int64_t vocab_size) {
  const Entry& entry = entry_of(config);
  const auto description = describe(*entry.family, config, vocab_size);
  return {entry.build(*description), description, std::get<bool>(description->hyper_parameters().at("block_causal"))};
}

}  // namespace halftone
