#pragma once
#include <span>
#include <string_view>

#include "halftone/nn/groups.h"

namespace halftone::nn {

class Module;

// How a parameter is split for tensor parallelism (Shoeybi et al. 2019). A parameter that no rule names is used by all ranks, and each
// computes part of its gradient.
struct SplitRule {
  std::string_view name;  // of a Linear or a parameter: matches at the end of the fqn, after a dot
  int64_t dim;            // dimension that is split; for a Linear 0: its outputs, 1: its inputs, and then its output is a partial sum
  bool uneven = false;    // the last ranks may have less
};
// `dim` for norms between blocks: every rank has their full gradient if it has all tokens.
inline constexpr int64_t kOfStream = -1;

// One rank of a tensor-parallel group.
struct TensorPart {
  int64_t ranks = 1, rank = 0;
  bool sequence_shards = true, cuts_experts = true;  // as in Groups
  comm::Communicator* processes = nullptr;           // null: for a model that is used for its shapes only
  static TensorPart of(const Groups& g) {
    return g.tensor == nullptr ? TensorPart()
                               : TensorPart{g.tensor->size(), g.tensor->index(), g.sequence_shards, g.cuts_experts, g.tensor};
  }
};

// Splits the parameters of a model after its recipes are set and before materialisation. Error naming a parameter that cannot be split.
void split(Module& model, std::span<const SplitRule> rules, const TensorPart& part);

}  // namespace halftone::nn
