#include "halftone/models/registry.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <type_traits>

#include "halftone/base/error.h"
#include "halftone/models/llama3/model.h"

namespace halftone {
namespace {

// Sets the hyper-parameter `name`; false when the family has none of that name. Error on a value of the wrong type.
bool set_field(llama3::Config& c, const std::string& name, const OptionValue& value) {
  bool found = false;
  llama3::fields(c, [&](const char* field, auto& target) {
    if (name != field) return;
    found = true;
    using T = std::decay_t<decltype(target)>;
    if (const T* exact = std::get_if<T>(&value)) {
      target = *exact;
    } else if (const auto* integer = std::get_if<int64_t>(&value); integer && std::is_same_v<T, double>) {
      target = static_cast<T>(*integer);
    } else {
      fail("model.overrides.{}: expected {}, found another type", name,
           std::is_same_v<T, bool>     ? "true or false"
           : std::is_same_v<T, double> ? "a number"
                                       : "an integer");
    }
  });
  return found;
}

std::vector<std::string> field_names() {
  std::vector<std::string> names;
  llama3::Config c;
  llama3::fields(c, [&](const char* field, auto&) { names.emplace_back(field); });
  return names;
}

BuiltModel build_llama3(const ModelConfig& config, int64_t vocab_size) {
  llama3::Config c = llama3::flavor(config.flavor);
  if (vocab_size > 0) c.vocab_size = vocab_size;
  for (const auto& [name, value] : config.overrides) {
    check(set_field(c, name, value), "model.overrides.{}: llama3 has no such hyper-parameter; it has {}", name,
          fmt::join(field_names(), ", "));
  }
  check(vocab_size <= 0 || c.vocab_size >= vocab_size, "model.overrides.vocab_size: {} is smaller than the tokenizer's {} entries",
        c.vocab_size, vocab_size);
  if (config.attn_mask_type) c.block_causal = *config.attn_mask_type == "block_causal";
  if (config.rope_scaling_mode == "on") c.rope_scaling = true;
  if (config.rope_scaling_mode == "off") c.rope_scaling = false;
  nlohmann::ordered_json json;
  llama3::fields(c, [&](const char* field, const auto& value) { json[field] = value; });
  return {std::make_unique<llama3::Llama>(c), json.dump(), c.block_causal};
}

}  // namespace

BuiltModel build_model(const ModelConfig& config, int64_t vocab_size) {
  if (config.name == "llama3") return build_llama3(config, vocab_size);
  fail("model.name: this build has llama3; found '{}'", config.name);
}

}  // namespace halftone
