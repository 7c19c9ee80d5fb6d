#include "halftone/nn/groups.h"

#include <mutex>

#include "halftone/base/log.h"
#include "halftone/ops/collectives.h"
#include "halftone/ops/linear.h"
#include "halftone/ops/quantization_stats.h"

namespace halftone::nn {

Activation enter(const Activation& x, const Groups& g) {
  if (g.tensor == nullptr) return x;
  return g.sequence_shards ? gather_ranks(x, *g.tensor) : split_work(x, *g.tensor);
}

at::Tensor leave(const at::Tensor& partial, const Groups& g) {
  if (g.tensor == nullptr) return partial;
  return g.sequence_shards ? scatter_sum(partial, *g.tensor) : sum_ranks(partial, *g.tensor);
}

RowShares row_shares(Way way, const LinearRecipe& recipe, const Groups& g) {
  if (g.tensor == nullptr || !g.sequence_shards || quantization_stats() != nullptr) return {};  // the statistics read full operands
  if (!can_share_rows(recipe)) {
    static std::once_flag told;
    if (g.in_parts) std::call_once(told, [&] { log_warning("{}: scales span several rows: GEMMs wait for all shards", recipe.name); });
    return {};
  }
  RowShares shares;
  (way == Way::in ? shares.input : shares.output) = g.tensor, shares.in_parts = g.in_parts;
  return shares;
}

}  // namespace halftone::nn
