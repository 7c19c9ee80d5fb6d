#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "halftone/base/error.h"
#include "halftone/config/field.h"

// Describes a family of models, except for its forward pass (registry.h pairs the two). No torch here.
namespace halftone {

class ModelDescription;
struct DecoderTraits;

struct ModelFamily {
  // Name of a tensor in Hugging Face's files and here; "{}" is the block number. A native tensor whose hf name has "{e}" stacks one file
  // tensor per expert, numbered by {e}.
  struct TensorName {
    std::string_view hf, native;  // hf empty: not in the files, zero when loaded
    bool transposed = false;      // the last two dimensions are swapped, in unquantised files
    bool experts_apart() const { return hf.find("{e}") != std::string_view::npos; }
  };
  std::string_view name;                      // model.name
  std::string_view hf_type, hf_architecture;  // model_type and architectures of config.json
  std::span<const TensorName> tensors;
  std::shared_ptr<ModelDescription> (*flavor)(const ModelFamily& family, const std::string& name);  // Error listing the flavours
  // From config.json. An unsupported entry, or sizes that do not fit together, is an Error that starts with `what`.
  std::shared_ptr<ModelDescription> (*read_hf)(const ModelFamily& family, const nlohmann::json& config, const std::string& what);
  const DecoderTraits* decoder = nullptr;  // for decoders (decoder_config.h)
  std::string_view also = {};              // a second model.name for its flavours

  // None, or null, for a name that the family lacks. `expert`: index of the file's tensor, if each expert has its own.
  std::optional<std::string> hf_name(std::string_view native, int64_t expert = 0) const;
  std::optional<std::string> native_name(std::string_view hf, int64_t* expert = nullptr) const;
  const TensorName* tensor(std::string_view native) const;
};

// The hyper-parameters of one model. Each family defines a struct and an enumeration of its fields (DescriptionOf).
class ModelDescription {
 public:
  virtual ~ModelDescription() = default;
  virtual const ModelFamily& family() const = 0;
  virtual OptionTable hyper_parameters() const = 0;                         // all, by their names in model.overrides
  virtual bool set(const std::string& name, const OptionValue& value) = 0;  // false: no such name; Error: another type
  nlohmann::json json() const;                                              // for checkpoints and reports
  // The hyper-parameters that config.json determines and that affect the result, with derived ones filled in.
  virtual OptionTable hf_parameters() const = 0;
  // config.json without the special tokens, in a form that transformers 4 and 5 read.
  virtual nlohmann::ordered_json hf_config(const std::string& torch_dtype) const = 0;
  virtual bool tied_head() const = 0;
  // Number of heads whose rows are rotated as halves in Hugging Face's files and as adjacent pairs here; 0: the tensor is the same in
  // both. A bias counts as rows of one element.
  virtual int64_t rotated_heads(std::string_view native) const = 0;
  virtual int64_t experts() const { return 0; }  // per layer
  // Whether files may contain this tensor although the model has none; it is not read.
  virtual bool ignores(std::string_view) const { return false; }
};

template <class T>
void set_option(T& target, const OptionValue& value, const std::string& name) {
  if (const T* exact = std::get_if<T>(&value)) {
    target = *exact;
    return;
  }
  if constexpr (std::is_same_v<T, double>) {
    if (const auto* integer = std::get_if<int64_t>(&value)) {
      target = static_cast<double>(*integer);
      return;
    }
  }
  fail("model.overrides.{}: expected {}, found another type", name,
       std::is_same_v<T, bool>          ? "true or false"
       : std::is_same_v<T, double>      ? "a number"
       : std::is_same_v<T, std::string> ? "a string"
                                        : "an integer");
}

// Base of a family's Config, which has a fields(config, f) over (name, member) pairs.
template <class Config>
class DescriptionOf : public ModelDescription {
 public:
  OptionTable hyper_parameters() const override {
    OptionTable table;
    fields(static_cast<const Config&>(*this), [&](const char* name, const auto& value) { table[name] = value; });
    return table;
  }
  bool set(const std::string& name, const OptionValue& value) override {
    bool found = false;
    fields(static_cast<Config&>(*this), [&](const char* field, auto& target) {
      if (name == field) found = true, set_option(target, value, name);
    });
    return found;
  }
};

}  // namespace halftone
