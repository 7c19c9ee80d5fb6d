#pragma once
#include <ATen/ops/stack.h>

#include "halftone/checkpoint/hf.h"

// Converts full tensors between the layouts: the reference for reading and writing by rows.
namespace halftone {

// The file tensors of one of our tensors.
inline std::vector<NamedTensor> native_to_hf(const NamedTensor& t, const ModelDescription& model) {
  const ModelFamily::TensorName& name = *model.family().tensor(t.name);
  std::vector<NamedTensor> parts;
  if (name.hf.empty()) return parts;
  for (int64_t e = 0; name.experts_apart() && e < model.experts(); ++e)
    parts.push_back({*model.family().hf_name(t.name, e), t.tensor.select(0, e)});
  if (name.experts_apart()) return parts;
  const int64_t heads = model.rotated_heads(t.name);
  return {{*model.family().hf_name(t.name), heads             ? permute_to_hf(t.tensor, heads)
                                            : name.transposed ? t.tensor.transpose(1, 2).contiguous()
                                                              : t.tensor}};
}

// read(name in the files) returns a tensor.
template <class Read>
NamedTensor hf_to_native(const std::string& native, const ModelDescription& model, Read&& read) {
  const ModelFamily::TensorName& name = *model.family().tensor(native);
  std::vector<at::Tensor> parts;
  for (int64_t e = 0; e < (name.experts_apart() ? model.experts() : 1); ++e) parts.push_back(read(*model.family().hf_name(native, e)));
  if (name.experts_apart()) return {native, at::stack(parts)};
  const int64_t heads = model.rotated_heads(native);
  return {native, heads ? permute_from_hf(parts[0], heads) : name.transposed ? parts[0].transpose(1, 2).contiguous() : parts[0]};
}

}  // namespace halftone
