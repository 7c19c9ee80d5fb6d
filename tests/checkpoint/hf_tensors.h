#pragma once
#include "halftone/checkpoint/hf.h"

// One tensor into the other layout, whole: what reading and writing by rows is compared with.
namespace halftone {

inline NamedTensor native_to_hf(const NamedTensor& t, const ModelDescription& model) {
  const int64_t heads = model.rotated_heads(t.name);
  return {model.family().hf_name(t.name).value(), heads ? permute_to_hf(t.tensor, heads) : t.tensor};
}

inline NamedTensor hf_to_native(const NamedTensor& t, const ModelDescription& model) {
  const std::string name = model.family().native_name(t.name).value();
  const int64_t heads = model.rotated_heads(name);
  return {name, heads ? permute_from_hf(t.tensor, heads) : t.tensor};
}

}  // namespace halftone
