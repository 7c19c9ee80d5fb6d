#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "halftone/ops/attention_core.h"

namespace halftone {

// Attention of packed rows in which continuations share their prefix: a run of positions is the prefix, each run behind it continues it
// and sees neither the others nor itself beyond its own earlier positions. The tensors hold every prefix once. The positions that RoPE
// reads are explicit: those of a continuation begin behind the prefix. Without gradients.
class SharedPrefixes : public AttentionPort {
 public:
  struct Run {
    int64_t begin = 0, end = 0;  // positions of the row
    int64_t size() const { return end - begin; }
  };
  struct Group {
    int64_t row = 0;
    Run prefix;
    std::vector<Run> continuations;  // adjacent
  };
  // documents: of the rows, in which every prefix and every continuation is one.
  SharedPrefixes(Documents documents, std::vector<Group> groups) : documents_(std::move(documents)), groups_(std::move(groups)) {}

  aten::AttentionState attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionArgs& args) const override;
  aten::AttentionGradients backward(const at::Tensor& d_out, const aten::AttentionState& state, const AttentionArgs& args,
                                    const aten::AttentionGradients& room) const override;

 private:
  Documents documents_;
  std::vector<Group> groups_;
};

}  // namespace halftone
