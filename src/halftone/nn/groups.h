#pragma once
#include "halftone/comm/communicator.h"
#include "halftone/formats/recipe.h"
#include "halftone/ops/activation.h"
#include "halftone/ops/row_exchange.h"

namespace halftone::nn {

// The process groups that share the work on the rows of a micro-batch; null: not parallelized.
struct Groups {
  comm::Communicator* tensor = nullptr;   // heads, widths and vocabulary (tp)
  comm::Communicator* context = nullptr;  // positions of a row (cp)
  comm::Communicator* experts = nullptr;  // experts (ep)
  bool sequence_shards = true;            // sequence parallelism: between blocks a rank of `tensor` has 1/n of the tokens; false: all
  bool cuts_experts = true;               // `tensor` also splits the widths of experts; false: its ranks hold different experts
  double expert_capacity = 0;             // for the rows a rank sends to each rank of `experts` (ops/expert_exchange.h)
  OperandSpec expert_format;              // format in which tokens are sent
  bool in_parts = false;                  // GEMMs with `sequence_shards` overlap with the transfers, part by part
  bool split_loss = true;                 // logits stay sharded by vocabulary over the ranks of `tensor`

  bool first_of_tensor() const { return tensor == nullptr || tensor->index() == 0; }
};

// Sequence parallelism (Korthikanti et al. 2022): enter all-gathers this rank's tokens before a tensor-parallel region, leave
// reduce-scatters its partial sums.
Activation enter(const Activation& x, const Groups& groups);
at::Tensor leave(const at::Tensor& partial, const Groups& groups);
// The same, fused into the GEMM after or before it, if one of the recipe's can: linears get these shares, and then neither enter nor
// leave is called. Otherwise returns no shares.
enum class Way { in, out };
RowShares row_shares(Way way, const LinearRecipe& recipe, const Groups& groups);

}  // namespace halftone::nn
