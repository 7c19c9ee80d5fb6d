#pragma once
#include <span>
#include <string_view>

#include "halftone/nn/groups.h"

namespace halftone::nn {

class Module;

// How a parameter is cut for tensor parallelism (Shoeybi et al. 2019). A parameter that no rule names is computed with by all processes,
// each of which has a part of its gradient.
struct SplitRule {
  std::string_view name;  // of a Linear or of a parameter, which ends so behind a dot
  int64_t dim;            // that is cut; of a Linear 0: its outputs, 1: its inputs, and then `name` is where partial sums come from
  bool uneven = false;    // the last processes may have less
};
// `dim` of norms between blocks: each process has their whole gradient where it has all tokens.
inline constexpr int64_t kOfStream = -1;

// A process of those that share a model's widths out.
struct TensorPart {
  int64_t ranks = 1, rank = 0;
  bool sequence_shards = true, cuts_experts = true;  // as in Groups
  comm::Communicator* processes = nullptr;           // null: for a model that only its shapes are asked of
  static TensorPart of(const Groups& g) {
    return g.tensor == nullptr ? TensorPart()
                               : TensorPart{g.tensor->size(), g.tensor->index(), g.sequence_shards, g.cuts_experts, g.tensor};
  }
};

// Cuts the parameters of a model that has its recipes, before it gets memory. Error naming the parameter that cannot be cut.
void split(Module& model, std::span<const SplitRule> rules, const TensorPart& part);

}  // namespace halftone::nn
