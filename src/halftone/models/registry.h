#pragma once
#include <memory>
#include <string>

#include "halftone/config/model_config.h"
#include "halftone/nn/model.h"

namespace halftone {

struct BuiltModel {
  std::unique_ptr<nn::Model> model;
  std::string overrides_json;  // hyper-parameters as resolved, for the checkpoint and the log
  bool block_causal = false;
};

// The model that `config` names, described but without storage. vocab_size: the tokenizer's, used where overrides leave it
// unset. Error on an unknown family, flavour or override, naming the nearest.
BuiltModel build_model(const ModelConfig& config, int64_t vocab_size);

}  // namespace halftone
