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

// What sets one family of models apart, its forward pass aside (registry.h pairs the two). No torch here.
namespace halftone {

class ModelDescription;
struct DecoderTraits;

struct ModelFamily {
  // A tensor in Hugging Face's files and here; "{}" stands for the number of the block. Ours with "{e}" there is made of one tensor for
  // every expert, whose number that is.
  struct TensorName {
    std::string_view hf, native;  // hf empty: files have none of it, it is zero there
    bool transposed = false;      // the last two dimensions, in files with plain numbers
    bool experts_apart() const { return hf.find("{e}") != std::string_view::npos; }
  };
  std::string_view name;                      // model.name
  std::string_view hf_type, hf_architecture;  // model_type and architectures of config.json
  std::span<const TensorName> tensors;
  std::shared_ptr<ModelDescription> (*flavor)(const ModelFamily& family, const std::string& name);  // Error listing the flavours
  // Of config.json; an entry that the family does not honour, or sizes that do not fit together, are errors that start with `what`.
  std::shared_ptr<ModelDescription> (*read_hf)(const ModelFamily& family, const nlohmann::json& config, const std::string& what);
  const DecoderTraits* decoder = nullptr;  // of decoders (decoder_config.h)
  std::string_view also = {};              // model.name under which its flavours can be asked for, too

  // None, or null, for a name that the family does not have. `expert`: of whom the file's tensor is, where each has its own.
  std::optional<std::string> hf_name(std::string_view native, int64_t expert = 0) const;
  std::optional<std::string> native_name(std::string_view hf, int64_t* expert = nullptr) const;
  const TensorName* tensor(std::string_view native) const;
};

// The hyper-parameters of one model. A family's own are a struct with a walk over its fields (DescriptionOf).
class ModelDescription {
 public:
  virtual ~ModelDescription() = default;
  virtual const ModelFamily& family() const = 0;
  virtual OptionTable hyper_parameters() const = 0;                         // all of them, as model.overrides names them
  virtual bool set(const std::string& name, const OptionValue& value) = 0;  // false: no such name; Error: another type
  nlohmann::json json() const;                                              // for checkpoints and reports
  // The hyper-parameters that config.json decides and on which the result depends, derived ones filled in.
  virtual OptionTable hf_parameters() const = 0;
  // config.json, the special tokens aside, so that transformers 4 and 5 read it.
  virtual nlohmann::ordered_json hf_config(const std::string& torch_dtype) const = 0;
  virtual bool tied_head() const = 0;
  // Heads whose rows are rotated as halves in Hugging Face's files and as neighbouring pairs here; 0: the tensor is the same in both.
  // A bias counts as rows of one element.
  virtual int64_t rotated_heads(std::string_view native) const = 0;
  virtual int64_t experts() const { return 0; }  // of a layer
  // Whether files may hold such a tensor, which has no place in this model and is not read.
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

// Base of a family's Config, which has a fields(config, f) of (name, member) pairs.
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
