#include "halftone/nn/groups.h"

#include "halftone/ops/collectives.h"

namespace halftone::nn {

Activation enter(const Activation& x, const Groups& g) {
  if (g.tensor == nullptr) return x;
  return g.sequence_shards ? gather_ranks(x, *g.tensor) : split_work(x, *g.tensor);
}

at::Tensor leave(const at::Tensor& partial, const Groups& g) {
  if (g.tensor == nullptr) return partial;
  return g.sequence_shards ? scatter_sum(partial, *g.tensor) : sum_ranks(partial, *g.tensor);
}

}  // namespace halftone::nn
