#pragma once
#include <memory>
#include <vector>

#include "halftone/config/model_config.h"
#include "halftone/models/family.h"
#include "halftone/nn/model.h"

namespace halftone {

// All families of this build; a new one is a folder and a line in registry.cpp.
const std::vector<const ModelFamily*>& model_families();

// Flavour of a model that model.overrides describes completely, as read from a Hugging Face folder.
inline constexpr const char* kHfFlavor = "hf";

// By model.name and, for families that share a name, model.flavor. Error on an unknown name.
const ModelFamily& family_of(const ModelConfig& config);

struct BuiltModel {
  std::unique_ptr<nn::Model> model;
  std::shared_ptr<const ModelDescription> description;
  bool block_causal = false;
};

// The model that `config` names, described but without storage. vocab_size: the tokenizer's, 0 for none; the
// flavour or the override has at least as many. Error on an unknown family, flavour or override, listing what there is.
BuiltModel build_model(const ModelConfig& config, int64_t vocab_size);

}  // namespace halftone
